from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]

pytest.importorskip("torch", reason="needs PyTorch")


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--kills", "3"], ["--kills", "1", "--standby"]], ids=["restarted", "standby"])
def test_a_training_gives_the_same_bits_however_often_its_controller_is_killed(
    run_bench: Run, tmp_path: Path, arguments: list[str]
) -> None:
    finished = run_bench("benchmarks.cluster.restart", *arguments, "--folder", str(tmp_path), "--json")
    logs = "\n".join(f"{path.name}: {path.read_text()[-3000:]}" for path in sorted(tmp_path.glob("*.log")))
    assert finished.returncode == 0, finished.stdout + finished.stderr + logs
    outcome = json.loads(finished.stdout)
    assert outcome["kills"] == int(arguments[1])
    assert len(outcome["digests"]) == 1
    assert outcome["failures"] == []
    assert outcome["visits"] > 0
    assert 0 < outcome["steps_without_controller"] < outcome["steps"]


@pytest.mark.slow
def test_a_training_gives_the_same_bits_however_often_its_switch_is_killed(run_bench: Run, tmp_path: Path) -> None:
    finished = run_bench("benchmarks.cluster.restart", "--switch", "--kills", "3", "--folder", str(tmp_path), "--json")
    logs = "\n".join(f"{path.name}: {path.read_text()[-3000:]}" for path in sorted(tmp_path.glob("*.log")))
    assert finished.returncode == 0, finished.stdout + finished.stderr + logs
    outcome = json.loads(finished.stdout)
    assert (outcome["kills"], len(outcome["digests"])) == (3, 1)
    assert (tmp_path / "controller0.log").read_text().count("it has moved to leaf, since leaf was started anew") == 3


@pytest.mark.slow
def test_a_training_gives_the_same_bits_however_often_the_other_switch_takes_over(
    run_bench: Run, tmp_path: Path
) -> None:
    options = ["--other-switch", "--kills", "3", "--folder", str(tmp_path), "--json"]
    finished = run_bench("benchmarks.cluster.restart", *options)
    logs = "\n".join(f"{path.name}: {path.read_text()[-3000:]}" for path in sorted(tmp_path.glob("*.log")))
    assert finished.returncode == 0, finished.stdout + finished.stderr + logs
    outcome = json.loads(finished.stdout)
    assert (outcome["kills"], len(outcome["digests"])) == (3, 1)
    moved = re.findall(r"it has moved to (\w+), since (\w+) ", (tmp_path / "controller0.log").read_text())
    assert len(moved) == 3 and all(sorted(pair) == ["leaf", "other"] for pair in moved), moved


@pytest.mark.slow
def test_a_training_gives_the_same_bits_however_often_it_goes_on_without_its_switch(
    run_bench: Run, tmp_path: Path
) -> None:
    options = ["--without-switch", "--kills", "2", "--workers", "3", "--folder", str(tmp_path), "--json"]
    finished = run_bench("benchmarks.cluster.restart", *options)
    logs = "\n".join(f"{path.name}: {path.read_text()[-3000:]}" for path in sorted(tmp_path.glob("*.log")))
    assert finished.returncode == 0, finished.stdout + finished.stderr + logs
    outcome = json.loads(finished.stdout)
    assert (outcome["kills"], len(outcome["digests"])) == (2, 1)
    assert 0 < outcome["steps_without_controller"] < outcome["steps"]
    assert (tmp_path / "workers.log").read_text().count("serves again: the job returns to it") == 2
