"""When a worker counts as lost: its heartbeats, its connection, its packets, and a service that was stopped itself."""

from __future__ import annotations

import pytest

from wiresum.controller.driver import SwitchSizes
from wiresum.controller.jobs.job import State
from wiresum.controller.jobs.outputs import Count, Tell
from wiresum_lab.doubles.controller import JobsHarness, member


def test_a_worker_without_heartbeats_is_kept_while_its_connection_lasts() -> None:  # R7.13
    harness = JobsHarness()
    workers = harness.running()
    harness.wait(300, beating=workers[:2])
    assert harness.outputs(Tell) == []
    harness.break_streams(workers[2])
    harness.wait(2.8, beating=workers[:2])
    assert harness.outputs(Tell) == [], "it may come back"
    harness.wait(0.4, beating=workers[:2])
    assert harness.outputs(Tell)[0].ended.worker.rank == 2


def test_a_worker_whose_packets_reach_the_switch_is_kept() -> None:
    harness = JobsHarness()
    workers = harness.running()
    counts = harness.contributions[workers[0].job.lease.number] = [0, 0, 0]
    harness.break_streams(workers[0])
    for _ in range(600):
        counts[0] += 3
        counts[2] += 1
        harness.wait(0.5, beating=workers[1:2])
    assert harness.outputs(Tell) == [], "ranks 0 and 2 were silent for five minutes, but their packets came"
    harness.wait(3.5, beating=workers[1:2])
    assert [tell.ended.worker.rank for tell in harness.outputs(Tell)][:1] == [0], "then its packets stopped"


def test_progress_of_one_worker_proves_that_the_others_are_alive() -> None:
    harness = JobsHarness()
    workers = harness.running()
    for round_newest in range(2, 200):
        harness.wait(0.5, beating=workers[:1], round_newest=round_newest)
    harness.break_streams(workers[1])
    harness.wait(28, beating=workers[:1], round_newest=200)
    assert harness.outputs(Tell) == []
    harness.wait(2.5, beating=workers[:1], round_newest=200)
    assert harness.outputs(Tell)[0].ended.worker.rank == 1


def test_the_switch_is_asked_only_about_workers_that_send_no_heartbeats() -> None:
    harness = JobsHarness()
    workers = harness.running()
    harness.wait(60, beating=workers)
    assert harness.outputs(Count) == []
    harness.wait(10, beating=workers[1:])
    assert 7 <= len(harness.outputs(Count)) <= 9, "once a second, after two of silence"


def test_a_connection_that_breaks_after_a_silence_starts_no_new_timeout() -> None:
    harness = JobsHarness()
    workers = harness.running()
    harness.wait(4, beating=workers[1:])
    harness.break_streams(workers[0])
    harness.wait(20, beating=workers[1:])
    assert harness.outputs(Tell) == []
    harness.jobs.attend(member(workers[0]), harness.now)
    harness.wait(60, beating=workers)
    assert harness.outputs(Tell) == []


def test_workers_whose_connections_broke_while_the_service_was_stopped_may_come_back() -> None:
    harness = JobsHarness()
    workers = harness.running()
    harness.wait(5, beating=workers)
    harness.now += 45
    harness.break_streams(*workers)
    harness.wait(5)
    assert {harness.now - worker.heard_at < 6 for worker in workers} == {True}, "nobody was silent meanwhile"
    for worker in workers[:2]:
        harness.jobs.attend(member(worker), harness.now)
    harness.wait(15, beating=workers[:2])
    harness.jobs.attend(member(workers[2]), harness.now)
    harness.wait(60, beating=workers)
    assert harness.outputs(Tell) == []


def test_a_service_cut_off_from_switch_and_workers_ends_no_job() -> None:
    harness = JobsHarness()
    workers = harness.running()
    harness.wait(1, beating=workers)
    harness.change("leaf", "no answer")
    harness.break_streams(*workers)
    harness.wait(300)
    assert harness.outputs(Tell) == []
    harness.change("leaf", "")
    harness.wait(2)
    assert harness.outputs(Tell) == [], "workers get time to come back"
    for worker in workers:
        harness.jobs.attend(member(worker), harness.now)
    harness.wait(60, beating=workers)
    assert harness.outputs(Tell) == []


def test_a_service_that_stays_cut_off_gives_up_after_ten_minutes() -> None:
    harness = JobsHarness()
    workers = harness.running()
    harness.change("leaf", "no answer")
    harness.wait(598)
    assert workers[0].job.state is State.RUNNING
    harness.wait(4)
    assert workers[0].job.state is State.ENDING
    assert "leaf and all workers have been out of reach" in workers[0].job.ended.reason  # type: ignore[union-attr]


def test_a_worker_that_joins_but_never_attends_is_lost() -> None:
    harness = JobsHarness()
    workers = [harness.ask(rank=rank, world_size=2) for rank in range(2)]
    harness.jobs.attend(member(workers[0]), harness.now)
    harness.wait(9.5, beating=workers[:1])
    assert harness.outputs(Tell) == []
    harness.wait(1, beating=workers[:1])
    (tell,) = harness.outputs(Tell)
    assert tell.worker is workers[0]
    assert tell.ended.worker.rank == 1
    assert "sent no heartbeat" in tell.ended.reason


@pytest.mark.parametrize("says", [[[]], [[0, 0]]], ids=["cannot say", "says once"])
def test_a_broken_connection_is_a_loss_only_after_the_switch_counts_no_packets(says: list[list[int]]) -> None:
    """On bad links the switch answers late, and its first answer proves nothing: earlier packets may be in it."""
    harness = JobsHarness()
    workers = harness.running(world_size=2)
    number = workers[0].job.lease.number
    harness.switch_answers = False
    harness.break_streams(workers[1])
    harness.wait(4, beating=workers[:1])
    for counts in says:
        harness.jobs.counted("leaf", number, counts, harness.now)
    harness.wait(0.1, beating=workers[:1])
    assert workers[0].job.state is State.RUNNING
    harness.contributions[number] = [0, 0]
    harness.switch_answers = True
    harness.jobs.counted("leaf", number, [0, 0], harness.now)
    harness.wait(3.5, beating=workers[:1])
    (tell,) = harness.outputs(Tell)
    assert tell.ended.worker.rank == 1


def test_a_job_queued_while_the_service_was_suspended_is_not_idle_when_it_begins() -> None:
    """Its time of activity is still unknown, and must not be counted from the origin of the clock."""
    harness = JobsHarness(SwitchSizes(slots=256, lanes_max=360, jobs_max=8), now=100_000)
    (first,) = harness.running(world_size=1, job_name="first")
    (second,) = harness.ask_all(1, job_name="second")
    harness.ask(job_name="third")
    assert second.job.state is State.QUEUED
    harness.wait(0.1)
    harness.now += 10
    harness.wait(0.1)
    harness.leave(first)
    harness.wait(1)
    assert second.job.state is State.RUNNING


def test_a_stream_that_was_replaced_by_a_newer_one_may_break() -> None:
    harness = JobsHarness()
    workers = harness.running()
    first = workers[0].stream
    harness.jobs.attend(member(workers[0]), harness.now)
    harness.jobs.broken(workers[0], first, harness.now)
    assert workers[0].broken_at is None
    harness.break_streams(workers[0])
    assert workers[0].broken_at == harness.now
