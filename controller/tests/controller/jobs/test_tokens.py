"""Workers that reconnect after their job has ended."""

from __future__ import annotations

from wiresum.controller.driver import SwitchSizes
from wiresum.controller.jobs.job import State
from wiresum.controller.jobs.outputs import Tell
from wiresum.controller.jobs.tokens import GONE_MAX
from wiresum_lab.doubles.controller import JobsHarness, member


def test_a_worker_that_reconnects_after_the_end_is_told_the_reason() -> None:
    """By then another job may have the number, but not the token."""
    harness = JobsHarness(SwitchSizes(slots=4096, lanes_max=360, jobs_max=1))
    workers = harness.running(world_size=2)
    harness.jobs.broken(workers[1], workers[1].stream, harness.now)
    harness.wait(3.2, beating=workers[:1])
    harness.wait(10)
    assert workers[0].job.state is State.GONE
    others = harness.running(job_name="next", world_size=2)
    assert others[0].job.lease.number == workers[0].job.lease.number
    before = len(harness.outputs(Tell))
    harness.jobs.attend(member(workers[0]), harness.now)
    harness.settle()
    (tell,) = harness.outputs(Tell)[before:]
    assert tell.worker is workers[0]
    assert tell.ended.worker.rank == 1
    harness.jobs.told(workers[0], harness.now)
    harness.jobs.broken(workers[0], workers[0].stream, harness.now)
    assert [job.name for job in harness.jobs.all()] == ["next"]
    assert harness.slots_free == 4096 - others[0].job.lease.slots


def test_a_wrong_token_is_told_nothing_of_an_ended_job() -> None:
    harness = JobsHarness()
    (worker,) = harness.running(world_size=1)
    harness.leave(worker)
    stranger = member(worker)
    stranger.token = "0" * len(stranger.token)
    assert harness.refusal_of(lambda: harness.jobs.attend(stranger, harness.now))[0] == "NOT_FOUND"


def test_the_number_of_remembered_ended_jobs_is_bounded() -> None:
    harness = JobsHarness()
    workers = []
    for _ in range(GONE_MAX + 1):
        (worker,) = harness.running(world_size=1)
        harness.leave(worker)
        workers.append(worker)
    assert harness.refusal_of(lambda: harness.jobs.attend(member(workers[0]), harness.now))[0] == "NOT_FOUND"
    harness.jobs.attend(member(workers[1]), harness.now)
    harness.settle()
    assert harness.outputs(Tell)[-1].worker is workers[1]
