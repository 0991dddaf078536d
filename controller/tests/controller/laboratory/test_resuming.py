"""Jobs go on at a `wiresum switch` that is killed and started again, with all that it knew lost; each worker checks
every element of every sum, several of which are under way at any time.

With `-s` each test prints how long a sum has taken at most.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from wiresum.join.constants import THREADS_MAX
from wiresum_lab.laboratory import HOST, WORKER, Job
from wiresum_lab.processes import Program, unused_port, wait_until, wiresum

pytestmark = pytest.mark.timeout(300)

LANES = 64


class Switch:
    """At ports that it keeps."""

    def __init__(self, folder: Path) -> None:
        self.endpoint = f"{HOST}:{unused_port()}"
        self._log = folder / "switch.log"
        self._data = unused_port(THREADS_MAX)
        self.program = self.start()

    def start(self) -> Program:
        ends = ["--control", self.endpoint, "--bind", HOST, "--port", str(self._data)]
        self.program = Program(
            wiresum("switch", *ends, "--lanes", str(LANES), "--threads", "2"), self._log, append=True
        )
        self.program.await_text("ready: control")
        return self.program

    def restart(self) -> None:
        self.program.kill()
        self.start()


@pytest.fixture
def switch(tmp_path: Path) -> Iterator[Switch]:
    switch = Switch(tmp_path)
    yield switch
    switch.program.stop()


Start = Callable[..., Job]


@pytest.fixture
def start(switch: Switch, tmp_path: Path) -> Iterator[Start]:
    programs: list[Program] = []

    def start_job(name: str, size: int, **variables: str) -> Job:
        """Waits until it sums."""
        stop, salt = tmp_path / f"{name}.stop", len(programs) + 1
        own = {
            "WIRESUM_SWITCH": switch.endpoint, "WIRESUM_ADDRESS": HOST, "WIRESUM_LANES": str(LANES),
            "OMP_NUM_THREADS": "1",
        } | variables  # fmt: skip
        job = Job(
            name,
            [
                Program(
                    [sys.executable, *map(str, (WORKER, name, rank, size, salt, stop, 60, 64))],
                    tmp_path / f"{name}-{rank}.log",
                    own,
                )
                for rank in range(size)
            ],
            stop,
        )
        programs.extend(job.programs)
        wait_until(job.steps, f"{name} sums", meanwhile=job.check)
        return job

    yield start_job
    for program in programs:
        program.kill()


def slowest_s(job: Job) -> float:
    return max(float(line.get("slowest_s", 0.0)) for line in job.lines(0))


@pytest.mark.parametrize(
    "pause_s", [pytest.param(0.0, marks=pytest.mark.slow), pytest.param(3.0, marks=pytest.mark.nightly)]
)
def test_jobs_go_on_at_a_switch_that_is_killed_and_started_again(switch: Switch, start: Start, pause_s: float) -> None:
    """`pause_s`: for which there is none."""
    jobs = [start("wide", 3, WIRESUM_THREADS="4"), start("narrow", 2, WIRESUM_THREADS="1")]
    for _ in range(2):
        switch.program.kill()
        time.sleep(pause_s)
        switch.start()
        for job in jobs:
            job.goes_on()
    print(f"{pause_s:.1f} s without a switch: the longest sum took {max(map(slowest_s, jobs)):.2f} s")  # noqa: T201 - for people
    for job in jobs:
        job.finish()
