from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

from wiresum.cli.main import main
from wiresum_lab.doubles.operator_service import WrittenService, example_report
from wiresum_lab.patience import PATIENCE_S


def completed(words: str, **environment: str) -> list[str]:
    asked = {"_WIRESUM_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    output = CliRunner().invoke(main, [], prog_name="wiresum", env=asked | environment).output
    return [line.partition(",")[2] for line in output.splitlines()]


def test_names_of_jobs_and_switches_are_completed(service: WrittenService) -> None:
    service.reports = [example_report()]
    assert completed("wiresum jobs end n", WIRESUM_SWITCH=service.target) == ["night-run", "next"]
    assert completed(f"wiresum top --switch {service.target} --job ne") == ["next"]
    assert completed("wiresum jobs drain r", WIRESUM_SWITCH=service.target) == ["rack1"]


def test_a_hostile_job_name_is_completed_as_a_quoted_word_and_never_run(
    service: WrittenService, tmp_path: Path
) -> None:
    """Runs in a real bash, which parses what TAB inserts as it does when the operator presses Enter."""
    report = example_report()
    report.jobs[0].name = f"nasty$(touch {tmp_path}/harm)"
    service.reports = [report]
    script = """
    eval "$(_WIRESUM_COMPLETE=bash_source wiresum)"
    COMP_WORDS=(wiresum jobs end nas) COMP_CWORD=3
    _wiresum_completion wiresum nas end
    [[ ${#COMPREPLY[@]} == 1 ]] || exit 3
    eval "printf '%s\\n' ${COMPREPLY[0]}"
    """
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script],
        env=os.environ | {"WIRESUM_SWITCH": service.target, "PATH": path},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.stdout.splitlines() == [report.jobs[0].name], done
    assert list(tmp_path.iterdir()) == []


def test_an_unreachable_service_completes_nothing() -> None:
    assert completed("wiresum jobs end n", WIRESUM_SWITCH="127.0.0.1:1") == [""]
