"""A run of pytest with the suite's plug-in, over a file whose tests end in every way."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FILE = """
import subprocess, time
import pytest
from wiresum_lab.patience import TimedOutError
from wiresum_lab.processes import wait_until

pytestmark = pytest.mark.slow

@pytest.fixture
def late():
    raise TimedOutError("after 60 s this was still not so: the sun rises")

def test_passes(): pass
def test_fails(): assert 1 == 2
def test_waits(): wait_until(lambda: False, "the moon rises", 0.01)
def test_needs_what_is_late(late): pass
def test_expects_a_time_out():
    with pytest.raises(TimedOutError): wait_until(lambda: False, "never", 0.01)
@pytest.mark.timeout(0.5, func_only=True)
def test_is_limited(): time.sleep(60)
@pytest.mark.skip(reason="no moon here")
def test_skipped(): pass
@pytest.mark.skip(reason="no moon here")
def test_skipped_too(): pass
@pytest.mark.nightly
def test_of_the_night(): pass
"""
SETTINGS = "[pytest]\naddopts = --strict-markers --import-mode=importlib -p wiresum_lab.suite.plugin\ntimeout = 60\n"
SETTINGS += "markers =\n  slow\n  nightly\n"


def run(folder: Path, *arguments: str, files: dict[str, str], patience: int = 1) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text(SETTINGS)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    variables = os.environ | {"TEST_PATIENCE": str(patience)}
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("workers", [(), ("--numprocesses", "1", "--dist", "loadfile")], ids=["alone", "workers"])
def test_a_wait_that_runs_out_is_reported_apart_from_failures(tmp_path: Path, workers: tuple[str, ...]) -> None:
    ended = run(tmp_path, "-m", "not nightly", *workers, files={"test_ends.py": FILE})
    *others, closing, last = ended.stdout.splitlines()
    assert last == "2 passed, 1 failed, 3 timed out, 2 skipped (no moon here: 2)", ended.stdout
    assert "1 failed, 2 passed, 2 skipped" in closing and "3 timed out" in closing
    apart = sorted(line for line in others if line.startswith("TIMED OUT test_ends.py::"))
    assert [line.partition(" - ")[2].split(", at ")[0] for line in apart] == [
        "Timeout (>0.5s) from pytest-timeout",
        "after 60 s this was still not so: the sun rises",
        "after 0 s this was still not so: the moon rises",
    ]
    assert "time.sleep(60)" in apart[0], "where the test was"
    assert ended.returncode == pytest.ExitCode.TESTS_FAILED


def test_time_outs_alone_fail_a_run_and_the_limit_of_a_test_grows_with_the_factor(tmp_path: Path) -> None:
    ended = run(tmp_path, "-k", "waits or limited", files={"test_ends.py": FILE}, patience=2)
    assert (ended.returncode, ended.stdout.splitlines()[-1]) == (1, "0 passed, 0 failed, 2 timed out, 0 skipped")
    assert "Timeout (>1.0s)" in ended.stdout and "patience: 120 s for an event, 2 times" in ended.stdout


def test_a_nightly_test_of_what_has_changed_since_the_night_runs_with_the_slow_ones(tmp_path: Path) -> None:
    files = {"p4src/tests/test_compile_program.py": FILE, "lab/tests/test_processes.py": FILE}
    ended = run(tmp_path, "-m", "unproved", "-v", files=files)
    assert ended.stdout.splitlines()[-1].startswith("1 passed, 0 failed")
    assert "p4src/tests/test_compile_program.py::test_of_the_night PASSED" in ended.stdout


def test_workers_start_the_longest_files_first_and_a_run_writes_what_they_took(tmp_path: Path) -> None:
    passes = "def test_passes(): pass\n"
    slow = "import pytest\n@pytest.mark.slow\ndef test_slow(): pass\n"
    table = (
        'budget_s = 10\n[quick]\n"test_a.py" = 1.0\n"test_c.py" = 9.0\n"gone.py" = 3.0\n[slow]\n"test_c.py" = 90.0\n'
    )
    files = {"test_a.py": passes, "test_b.py": passes, "test_c.py": passes + slow, "lab/tests/times.toml": table}
    workers = ("--numprocesses", "1", "--dist", "loadfile", "--no-loadscope-reorder")
    ended = run(tmp_path, "-m", "not slow", "--write-times", "-v", *workers, files=files)
    assert ended.returncode == 0, ended.stdout
    assert re.findall(r"PASSED test_(.)\.py", ended.stdout) == ["c", "b", "a"]
    written = (tmp_path / "lab/tests/times.toml").read_text()
    quick, _, others = written.partition("[slow]\n")
    assert sorted(re.findall(r'^"test_(.)\.py" = \d+\.\d$', quick, re.MULTILINE)) == ["a", "b", "c"]
    assert "gone.py" not in quick and "= 9.0" not in quick
    assert others.startswith('"test_c.py" = 90.0\n'), "of what did not run, the table keeps what it had"
