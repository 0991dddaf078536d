"""Jobs go on with another lease when their switch is killed, drained or replaced, and when the controller is killed in
the middle; each worker checks every element of every sum.

With `-s` each test prints how long a job has stood still.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest

from wiresum import join
from wiresum_lab.laboratory import SOON_S, Job, Laboratory
from wiresum_lab.processes import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def other_than(name: str) -> str:
    return {"left": "right", "right": "left"}[name]


@contextlib.contextmanager
def standing_still(what: str, *jobs: Job) -> Iterator[None]:
    """Waits until the jobs go on after what is done inside, and prints how long a sum has taken at most."""
    before = {job: len(job.lines(0)) for job in jobs}
    yield
    for job in jobs:
        job.goes_on()
    slowest_s = max(line.get("slowest_s", 0.0) for job in jobs for line in job.lines(0)[before[job] :])
    print(f"{what}: the longest sum took {slowest_s:.2f} s")  # noqa: T201 - for people


def report_of(laboratory: Laboratory, job: Job) -> join.JobReport:
    """Of the job itself, and not of a lease that it had."""
    found = laboratory.await_report(
        lambda report: any(each.name == job.name and each.state != "ending" for each in report.jobs), "the job runs"
    )
    return next(each for each in found.jobs if each.name == job.name and each.state != "ending")


def await_moved(laboratory: Laboratory, job: Job, times: int) -> join.JobReport:
    wait_until(
        lambda: (found := report_of(laboratory, job)).moves >= times and found.state == "running" and not found.waiting,
        f"{job.name} has moved {times} times",
        SOON_S,
        job.check,
    )
    return report_of(laboratory, job)


def await_gone(laboratory: Laboratory) -> None:
    """No job and no lease is left, and all slots are free."""
    laboratory.await_report(
        lambda report: not report.jobs and all(switch.slots_free == laboratory.slots for switch in report.switches),
        "all slots are free",
    )


def test_a_job_goes_on_at_a_switch_that_was_killed_and_started_again(laboratory: Laboratory) -> None:
    """The other one is drained, so there is no other place; two jobs share the switch."""
    laboratory.drain("right")
    jobs = [laboratory.job(name, size) for name, size in (("one", 2), ("two", 3))]
    for times in (1, 2):
        with standing_still("killed and started again", *jobs):
            laboratory.switches["left"].kill()
            laboratory.start_switch("left")
        for job in jobs:
            assert await_moved(laboratory, job, times).switch_name == "left"
    for job in jobs:
        job.finish()
    await_gone(laboratory)


def test_a_job_goes_on_at_another_switch_when_its_own_is_killed(laboratory: Laboratory) -> None:
    job = laboratory.job("night", 3)
    lost = laboratory.jobs_at()["night"]
    with standing_still("killed, and another switch took over", job):
        laboratory.switches[lost].kill()
    found = await_moved(laboratory, job, 1)
    assert found.switch_name == other_than(lost)
    laboratory.start_switch(lost)
    laboratory.await_switches("ready")
    job.goes_on()
    assert dict(laboratory.operator.report().service.moves)["switch_lost"] == 1
    job.finish()
    await_gone(laboratory)


def test_a_drained_switch_is_empty_soon_and_its_jobs_go_on_elsewhere(laboratory: Laboratory) -> None:
    jobs = [laboratory.job(f"job-{n}") for n in range(3)]
    for drained in ("left", "right"):
        with standing_still(f"{drained} drained", *jobs):
            laboratory.drain(drained)
        laboratory.await_report(
            lambda report, drained=drained: (
                next(s for s in report.switches if s.name == drained).slots_free == laboratory.slots
            ),
            f"{drained} is empty",
        )
        laboratory.switches[drained].stop()
        laboratory.start_switch(drained)
        laboratory.drain(drained, resume=True)
        laboratory.await_switches("ready")
        for job in jobs:
            job.goes_on()
    for job in jobs:
        job.finish()
    await_gone(laboratory)


def test_a_job_that_no_other_switch_can_take_runs_on_at_a_drained_one(laboratory: Laboratory) -> None:
    job = laboratory.job("large", variables={"WIRESUM_SLOTS": "256"})
    at = laboratory.jobs_at()["large"]
    in_the_way = laboratory.job("in-the-way")
    assert laboratory.jobs_at()["in-the-way"] == other_than(at)
    laboratory.drain(at)
    laboratory.await_report(
        lambda report: any("it moves when another place can take it" in each.waiting for each in report.jobs),
        "it says that it finds no place",
    )
    job.for_seconds(3)
    assert report_of(laboratory, job).switch_name == at
    in_the_way.finish()
    assert await_moved(laboratory, job, 1).switch_name == other_than(at)
    job.goes_on()
    job.finish()


@pytest.mark.parametrize("pause_s", [0.0, 0.2, 0.6, 1.1, 1.3])
def test_a_controller_that_is_killed_in_the_middle_leaves_the_job_to_its_standby(
    laboratory: Laboratory, pause_s: float
) -> None:
    """`pause_s`: after the switch is back, or after the other one may take over."""
    job = laboratory.job("night", 3)
    lost = laboratory.jobs_at()["night"]
    if pause_s < 1:
        laboratory.drain(other_than(lost))
    with standing_still(f"killed with its controller, {pause_s:.1f} s later", job):
        laboratory.switches[lost].kill()
        if pause_s < 1:
            laboratory.start_switch(lost)
        time.sleep(pause_s)
        laboratory.controllers["active"].kill()
    found = await_moved(laboratory, job, 1)
    assert found.switch_name == (lost if pause_s < 1 else other_than(lost))
    job.finish()
    laboratory.await_report(lambda report: not [j for j in report.jobs if j.state != "ending"], "it has ended")


def test_a_worker_that_is_killed_while_its_job_moves_is_named(laboratory: Laboratory) -> None:
    laboratory.drain("right")
    job = laboratory.job("night", 3)
    laboratory.switches["left"].kill()
    job.programs[1].kill()
    laboratory.start_switch("left")
    for rank in (0, 2):
        assert "rank 1" in job.error(rank)
