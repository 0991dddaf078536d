"""Workers that come back when their job is over."""

from __future__ import annotations

from wiresum.controller.driver import Sizes
from wiresum.controller.jobs.gone import GONE_MAX
from wiresum.controller.jobs.job import State
from wiresum.controller.jobs.outputs import Tell
from wiresum_lab.doubles.controller import JobsBench as Bench
from wiresum_lab.doubles.controller import member


def test_a_worker_that_comes_back_when_its_job_is_gone_hears_why_it_ended() -> None:
    """Its number may be another job's by then; its token is not."""
    bench = Bench(Sizes(slots=4096, lanes_max=360, jobs_max=1))
    workers = bench.running(world_size=2)
    bench.jobs.broken(workers[1], workers[1].stream, bench.now)
    bench.wait(3.2, beating=workers[:1])
    bench.wait(10)
    assert workers[0].job.state is State.GONE
    others = bench.running(job_name="next", world_size=2)
    assert others[0].job.number == workers[0].job.number
    before = len(bench.outputs(Tell))
    bench.jobs.attend(member(workers[0]), bench.now)
    bench.settle()
    (tell,) = bench.outputs(Tell)[before:]
    assert tell.worker is workers[0]
    assert tell.ended.worker.rank == 1
    bench.jobs.told(workers[0], bench.now)
    bench.jobs.broken(workers[0], workers[0].stream, bench.now)
    assert [job.name for job in bench.jobs.all()] == ["next"]
    assert bench.slots_free == 4096 - others[0].job.slots


def test_a_stranger_hears_nothing_of_a_job_that_is_gone() -> None:
    bench = Bench()
    (worker,) = bench.running(world_size=1)
    bench.leave(worker)
    stranger = member(worker)
    stranger.token = "0" * len(stranger.token)
    assert bench.refusal_of(lambda: bench.jobs.attend(stranger, bench.now))[0] == "NOT_FOUND"
    beyond = member(worker)
    beyond.worker = 1
    assert bench.refusal_of(lambda: bench.jobs.attend(beyond, bench.now))[0] == "NOT_FOUND"


def test_only_so_many_jobs_are_remembered_that_are_gone() -> None:
    bench = Bench()
    workers = []
    for _ in range(GONE_MAX + 1):
        (worker,) = bench.running(world_size=1)
        bench.leave(worker)
        workers.append(worker)
    assert bench.refusal_of(lambda: bench.jobs.attend(member(workers[0]), bench.now))[0] == "NOT_FOUND"
    bench.jobs.attend(member(workers[1]), bench.now)
    bench.settle()
    assert bench.outputs(Tell)[-1].worker is workers[1]
