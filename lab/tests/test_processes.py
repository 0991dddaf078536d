"""Programs are awaited, supervised, and ended together with their children."""

from __future__ import annotations

import multiprocessing
import os
import sys
from pathlib import Path

import pytest

from wiresum_lab.processes import PORTS, Program, ProgramError, cpu_seconds, unused_port, wait_until

FORKS = "import os, signal; child = os.fork(); child and print('ready: child', child, flush=True); signal.pause()"


def test_a_program_is_awaited_by_its_output_and_ended_with_its_children(tmp_path: Path) -> None:
    with Program([sys.executable, "-c", FORKS], tmp_path / "log") as program:
        child = Path("/proc") / program.await_text(r"ready: child (\d+)")[1]
        assert child.exists()
    wait_until(lambda: not child.exists() or "Z" in (child / "stat").read_text().split()[2], "the child has ended")
    assert program.exit_code is not None


def test_a_program_that_exits_at_its_start_is_an_error_with_its_output(tmp_path: Path) -> None:
    program = Program(["sh", "-c", "echo no such switch; exit 3"], tmp_path / "log", name="the switch")
    with pytest.raises(ProgramError, match=r"the switch ended with exit code 3\n.*\nno such switch"):
        program.await_text("ready")


def test_only_new_lines_of_an_appended_log_count(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("ready: the one before\n")
    with Program(["sh", "-c", "echo ready: this one; sleep 600"], tmp_path / "log", append=True) as program:
        assert program.await_text("ready: (.*)")[1] == "this one"


def test_a_timeout_is_an_error_that_names_the_condition() -> None:
    with pytest.raises(AssertionError, match="after 0 s this was still not so: an event that never happens"):
        wait_until(lambda: False, "an event that never happens", 0.0)


def draw(_: int) -> list[int]:
    blocks = [unused_port(16) for _ in range(10)]
    return [unused_port() for _ in range(40)] + [port for first in blocks for port in range(first, first + 16)]


def test_no_port_is_given_twice_while_those_who_have_it_live() -> None:
    own = draw(0)  # so that the children inherit ports that were not given yet
    with multiprocessing.get_context("fork").Pool(3) as pool:
        ports = [*own, *(port for drawn in pool.map(draw, range(3), chunksize=1) for port in drawn)]
    assert len(set(ports)) == len(ports)
    assert set(ports) <= set(PORTS)


def test_the_cpu_time_of_another_process_is_measured() -> None:
    before_s = cpu_seconds(os.getpid())
    sum(i * i for i in range(200_000))
    assert cpu_seconds(os.getpid()) > before_s
