"""Programs are awaited, told of when they end, and ended with all that they have started."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from wiresum_lab.processes import Program, ProgramError, wait_until

FORKS = "import os, time; child = os.fork(); child and print('ready: child', child, flush=True); time.sleep(600)"


def test_what_a_program_says_is_awaited_and_all_that_it_started_ends_with_it(tmp_path: Path) -> None:
    with Program([sys.executable, "-c", FORKS], tmp_path / "log") as program:
        child = Path("/proc") / program.await_text(r"ready: child (\d+)")[1]
        assert child.exists()
    wait_until(lambda: not child.exists() or "Z" in (child / "stat").read_text().split()[2], "the child has ended")
    assert program.exit_code is not None


def test_a_program_that_ends_at_its_start_is_an_error_that_shows_what_it_said(tmp_path: Path) -> None:
    program = Program(["sh", "-c", "echo no such switch; exit 3"], tmp_path / "log", name="the switch")
    with pytest.raises(ProgramError, match=r"the switch ended with exit code 3\n.*\nno such switch"):
        program.await_text("ready")


def test_of_a_log_that_goes_on_only_what_is_new_counts(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("ready: the one before\n")
    with Program(["sh", "-c", "echo ready: this one; sleep 600"], tmp_path / "log", append=True) as program:
        assert program.await_text("ready: (.*)")[1] == "this one"


def test_what_does_not_come_is_an_error_that_names_it() -> None:
    with pytest.raises(AssertionError, match="after 0 s this was still not so: a miracle"):
        wait_until(lambda: False, "a miracle", 0.1)
