"""How long a worker may be away whose connection broke, by whether those of the others broke, too."""

from __future__ import annotations

from wiresum.controller.jobs.outputs import Tell
from wiresum_lab.doubles.controller import JobsHarness, member


def test_a_worker_whose_connection_alone_breaks_is_lost_sooner() -> None:
    harness = JobsHarness()
    workers = harness.running(world_size=3)
    harness.wait(1, beating=workers)
    harness.break_streams(workers[1])
    harness.wait(0.9, beating=[workers[0], workers[2]])
    assert harness.outputs(Tell) == []
    harness.wait(0.4, beating=[workers[0], workers[2]])
    told = harness.outputs(Tell)
    assert {tell.worker.rank for tell in told} == {0, 2} and {tell.ended.worker.rank for tell in told} == {1}


def test_after_a_proxy_was_away_no_worker_is_lost_before_the_others_had_time_to_come_back() -> None:
    """The connections of all workers break. The first that is back is no reason to be less patient with the second."""
    harness = JobsHarness()
    workers = harness.running(world_size=2)
    harness.wait(1, beating=workers)
    harness.break_streams(*workers)
    harness.wait(0.5)
    harness.jobs.attend(member(workers[0]), harness.now)
    harness.wait(2.2, beating=workers[:1])
    assert harness.outputs(Tell) == []
    harness.wait(0.8, beating=workers[:1])
    (tell,) = harness.outputs(Tell)
    assert tell.worker is workers[0] and tell.ended.worker.rank == 1
