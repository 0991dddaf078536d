"""A job goes on with another lease: when, where, and what its workers repeat."""

from __future__ import annotations

import pytest

from wiresum import join
from wiresum.controller.driver import Reconciled, SwitchSizes
from wiresum.controller.jobs import moving, report
from wiresum.controller.jobs.cluster import Switch
from wiresum.controller.jobs.job import Cause, LeaseState, State, Worker
from wiresum.controller.jobs.limits import Limits
from wiresum.controller.jobs.outputs import Admit, Evict, Grant
from wiresum.controller.jobs.positions import Role
from wiresum.controller.store import Store
from wiresum_lab.doubles.controller import NOBODY, JobsHarness, member, switch
from wiresum_lab.doubles.moving import (
    SIZES,
    being_admitted,
    end_of,
    ends,
    halts,
    in_the_way,
    moves,
    restart,
    running,
    said_of,
    two,
)


def test_a_job_goes_on_at_a_switch_that_was_started_anew() -> None:  # R7.18, R7.19, R7.21
    made = JobsHarness(SIZES)
    workers = running(made, slots=512)
    job = workers[0].job
    key, secret = job.lease.key, {worker.token for worker in workers}
    restart(made, "leaf")
    assert halts(made) == [(0, 1), (1, 1), (2, 1)]
    (admit,) = made.outputs(Admit)
    assert admit.entry.key not in (0, key)
    for worker, move in zip(workers, moves(made), strict=True):
        assert move.move_number == 1
        assert move.grant.key == admit.entry.key == job.lease.key
        assert (move.grant.job, move.grant.slots) == (admit.entry.job, 512)
        assert (move.grant.worker, move.grant.token) == (worker.rank, worker.token)
        assert move.roles == bytes(512)
    assert {worker.token for worker in workers} == secret
    assert (job.state, job.move, job.members.going_on) == (State.RUNNING, None, None)
    assert made.jobs.all() == [job], "the lease that it had is free"
    made.wait(60, beating=workers)
    assert ends(made) == set()
    for worker in workers:
        made.leave(worker)
    assert made.slots_free == 512


def test_all_jobs_of_a_full_switch_that_was_started_anew_get_their_slots_back() -> None:
    made = JobsHarness(SIZES, switches=[switch("leaf", SIZES)])
    jobs = [running(made, name, slots=slots)[0].job for name, slots in (("a", 128), ("b", 256), ("c", 64), ("d", 64))]
    waits = made.ask(job_name="waits", slots=64)
    restart(made, "leaf")
    made.wait(0.5)
    assert [(job.state, job.lease.slots, job.move_number) for job in jobs] == [
        (State.RUNNING, slots, 1) for slots in (128, 256, 64, 64)
    ]
    assert waits.job.state is State.QUEUED, "jobs that run come before those that wait"


def test_a_job_that_has_not_begun_does_not_move() -> None:
    made = JobsHarness(SIZES)
    made.switch_answers = False
    worker = made.ask()
    made.change("leaf", "")
    made.jobs.reconciled(made.done[-1], Reconciled(reloaded=True), made.now)  # type: ignore[arg-type]
    made.settle()
    assert made.refused(worker)[0] == "UNAVAILABLE", "it is asked for again"


def test_a_job_whose_rounds_stand_still_moves_from_a_lost_switch_to_another() -> None:
    made = JobsHarness(switches=two())
    workers = running(made)
    job, other = workers[0].job, "second"
    assert job.lease.switch_name == "first"
    made.change("first", "no answer")
    made.wait(0.8, beating=workers)
    assert made.outputs(Admit) == []
    made.wait(0.4, beating=workers)
    assert job.lease.switch_name == other
    assert made.outputs(Admit)[0].entry.key == job.lease.key
    assert [move.grant.switch_name for move in moves(made)] == [other] * 3
    assert moves(made)[0].grant.switch_endpoint.address == "10.0.0.2"
    assert made.jobs.moving.count == {Cause.SWITCH_LOST: 1}
    (old,) = made.jobs.roster.released
    assert (old.state, old.switch_name) == (LeaseState.RELEASED, "first"), "the switch may still have its slots"
    assert made.switches[0].pool.slots_free == 512 - job.lease.slots
    made.change("first", "")
    assert made.switches[0].pool.slots_free == 512
    assert made.jobs.all() == [job]


def test_a_job_whose_rounds_move_keeps_its_lease() -> None:
    made = JobsHarness(switches=two())
    workers = running(made)
    made.change("first", "no answer")
    for round_newest in range(2, 200):
        made.wait(0.5, beating=workers, round_newest=round_newest)
    assert (halts(made), ends(made)) == ([], set())


def test_a_service_that_is_cut_off_from_a_switch_and_its_workers_moves_no_job() -> None:
    """Perhaps their rounds move."""
    made = JobsHarness(switches=two())
    workers = running(made)
    made.change("first", "no answer")
    made.break_streams(*workers)
    made.wait(60)
    assert (made.outputs(Admit), halts(made), ends(made)) == ([], [], set())


def test_a_job_stays_if_its_switch_comes_back_before_there_is_a_place() -> None:
    made = JobsHarness(switches=two(second=SwitchSizes(slots=64, lanes_max=360, jobs_max=1)))
    workers = running(made, slots=64)
    job = workers[0].job
    other = in_the_way(made, "other", 64)
    made.change("first", "no answer")
    made.wait(5, beating=workers)
    assert made.jobs.waiting.position(job.move.lease) == 1  # type: ignore[union-attr, arg-type]
    made.change("first", "")
    made.wait(0.2, beating=workers)
    assert (job.move, halts(made)) == (None, [])
    assert made.jobs.waiting.crowded is False
    made.leave(other)
    made.wait(30, beating=workers)
    assert (job.lease.switch_name, ends(made)) == ("first", set())


def test_a_job_that_another_switch_is_just_being_told_of_moves_though_its_cause_is_gone() -> None:
    made, workers, admit = being_admitted()
    made.jobs.drain("first", resume=True)
    made.wait(0.2, beating=workers)
    made.switch_answers = True
    made.jobs.admitted("second", admit.entry.job, made.now)
    made.settle()
    assert (workers[0].job.lease.switch_name, workers[0].job.state) == ("second", State.RUNNING)


@pytest.mark.parametrize(
    ("second", "why"),
    [
        (SwitchSizes(128, 360, 8), "it has 256 slots, and second could give it 128 at most"),
        (SwitchSizes(512, 180, 8), "its packets have 360 words, and would have 180 at second"),
        (SwitchSizes(512, 360, 8, threads_max=2), "it has 4 threads, and would have 2 at second"),
    ],
)
def test_a_switch_that_cannot_carry_the_lease_as_it_is_is_no_place(second: SwitchSizes, why: str) -> None:  # R7.18
    made = JobsHarness(switches=[*two(second=second)])
    workers = running(made, slots=256)
    assert workers[0].job.lease.switch_name == "first"
    made.jobs.drain("first", resume=False)
    made.wait(60, beating=workers)
    assert (halts(made), ends(made)) == ([], set())
    assert said_of(made).endswith(f": first takes no new jobs, since an operator drains it; {why}")
    made.change("first", "no answer")
    made.wait(31, beating=workers)
    assert f"No other switch could take it: first cannot be used now (no answer); {why}" in end_of(made).reason


def test_a_job_with_more_slots_than_can_be_compared_does_not_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "POSITIONS_MAX", 3 * 256 - 1)
    made = JobsHarness(switches=two())
    workers = running(made, slots=256)
    made.jobs.drain("first", resume=False)
    made.wait(5, beating=workers)
    assert halts(made) == []


def test_a_wider_switch_gives_a_job_no_more_threads_than_it_has() -> None:
    made = JobsHarness(switches=two(first=SwitchSizes(512, 360, 8, threads_max=2)))
    made.jobs.drain("second", resume=False)
    workers = running(made, threads_max=8)
    assert workers[0].job.lease.threads == 2
    made.jobs.drain("second", resume=True)
    made.jobs.drain("first", resume=False)
    made.wait(0.3, beating=workers)
    assert (workers[0].job.lease.switch_name, workers[0].job.lease.threads, moves(made)[0].grant.threads) == (
        "second",
        2,
        2,
    )


def test_a_drained_switch_is_left_as_places_are_found_and_a_job_without_one_stays() -> None:
    made = JobsHarness(switches=two(second=SwitchSizes(slots=256, lanes_max=360, jobs_max=8)))
    jobs = [running(made, name, slots=256)[0].job for name in ("a", "b")]
    workers = [worker for job in jobs for worker in job.members.workers.values()]
    assert {job.lease.switch_name for job in jobs} == {"first"}
    made.jobs.drain("first", resume=False)
    made.wait(0.3, beating=workers)
    assert [job.lease.switch_name for job in jobs] == ["second", "first"]
    made.wait(300, beating=workers)
    assert ends(made) == set()
    assert made.jobs.moving.count == {Cause.SWITCH_DRAINED: 1}
    for worker in jobs[0].members.workers.values():
        made.leave(worker)
    made.wait(0.3, beating=list(jobs[1].members.workers.values()))
    assert jobs[1].lease.switch_name == "second"
    assert made.switches[0].pool.slots_free == 512


def test_jobs_that_wait_for_a_drained_one_to_find_a_place_are_not_held_up() -> None:
    made = JobsHarness(limits=Limits(overtaken_max=0), switches=two(second=SwitchSizes(256, 360, 8)))
    large, other = running(made, "large", slots=256), in_the_way(made, "small", 128)
    made.jobs.drain("first", resume=False)
    made.wait(5, beating=[*large, other])
    assert made.jobs.waiting.position(large[0].job.move.lease) == 1  # type: ignore[union-attr, arg-type]
    assert not made.jobs.waiting.crowded, "idle jobs need not end for it"
    next_one = made.ask(job_name="next", slots=64)
    assert (next_one.job.state, next_one.job.lease.switch_name) == (State.RUNNING, "second")


def test_what_a_job_that_stands_still_waits_for_is_kept_for_it() -> None:
    made = JobsHarness(switches=two(second=SwitchSizes(256, 360, 8)))
    workers = running(made, slots=256)
    others = [in_the_way(made, name, 128) for name in ("x", "y")]
    made.change("first", "no answer")
    made.wait(2, beating=[*workers, *others])
    waits = made.ask(job_name="waits", slots=128)
    for other in others:
        made.leave(other)
        made.wait(0.1, beating=workers)
    assert (workers[0].job.lease.switch_name, waits.job.state) == ("second", State.QUEUED)


def test_a_job_that_was_created_for_a_switch_stays_within_it(store: Store) -> None:
    made = JobsHarness(switches=two(), store=store)
    token = made.create(switch_name="first", world_size=1)
    (worker,) = running(made, world_size=1, job_token=token)
    made.jobs.drain("first", resume=False)
    made.wait(5, beating=[worker])
    assert halts(made) == []
    after = JobsHarness(switches=two(), store=store)
    restored = after.jobs.attend(member(worker), after.now)
    after.wait(5, beating=[restored])
    assert (restored.job.lease.switch_name, halts(after)) == ("first", [])


# Trees.

RACKS = {"left": "10.0.1.1", "right": "10.0.2.1"}


def tree() -> list[Switch]:
    """Racks below a spine, and a switch that all hosts hang on too."""
    racks = [switch(name, SIZES, [address], parent="spine") for name, address in RACKS.items()]
    return [switch("spine", SIZES, NOBODY), *racks, switch("flat", SIZES, list(RACKS.values()))]


def over_the_tree(made: JobsHarness) -> list[Worker]:
    made.jobs.drain("flat", resume=False)
    for rank, address in enumerate(RACKS.values()):
        endpoint = join.Endpoint(address=address, port=5000)
        made.ask(rank=rank, world_size=2, endpoint=endpoint)
    workers = [grant.worker for grant in made.outputs(Grant)]
    assert list(workers[0].job.lease.nodes) == ["spine", "left", "right"]
    for worker in workers:
        made.jobs.attend(member(worker), made.now)
    made.settle()
    made.done.clear()
    return workers


@pytest.mark.parametrize("lost", ["spine", "left"])
def test_a_job_moves_with_all_its_switches_when_one_of_them_was_started_anew(lost: str) -> None:
    made = JobsHarness(switches=tree())
    workers = over_the_tree(made)
    restart(made, lost)
    made.wait(0.3, beating=workers)
    job = workers[0].job
    assert (job.state, list(job.lease.nodes), job.move_number) == (State.RUNNING, ["spine", "left", "right"], 1)
    assert {evict.switch_name for evict in made.outputs(Evict)} == {"spine", "left", "right"}
    assert [admit.switch_name for admit in made.outputs(Admit)] == ["spine", "left", "right"], "the root is told first"
    assert {admit.entry.key for admit in made.outputs(Admit)} == {job.lease.key}


# What is repeated.


def test_what_one_worker_has_and_another_lacks_is_repeated() -> None:  # R7.21, R9.4
    made = JobsHarness(SIZES)
    running(made, slots=16)
    made.ahead = {0: {3}, 1: {3, 4}}
    restart(made, "leaf")
    told = [move.roles for move in moves(made)]
    assert [roles[3] for roles in told] == [Role.REPEATS, Role.AHEAD, Role.BEHIND]
    assert [roles[4] for roles in told] == [Role.BEHIND, Role.REPEATS, Role.BEHIND]
    assert [sum(roles) for roles in told] == [4, 5, 2]


# What people see.


def test_a_report_says_that_a_job_moves_since_when_why_and_what_it_waits_for() -> None:
    made = JobsHarness(switches=two(second=SwitchSizes(64, 360, 8)))
    workers = running(made)
    assert said_of(made) == ""
    made.jobs.drain("first", resume=False)
    made.wait(2, beating=workers)
    assert said_of(made).startswith(
        "it moves when another place can take it, since an operator drains first, 2 s ago: "
    )
    made.deaf = {workers[0].token, workers[2].token}
    restart(made, "first")
    (found,) = report.report(made.jobs, {}, made.now).jobs
    assert (found.state, found.moves, found.queue_position) == ("moving", 1, 0)
    assert found.waiting.startswith(
        "it moves, since first was started anew, and what it had summed is lost, 2 s ago, and waits for rank 0 "
    )
    assert "and rank 2 (127.0.0.1, process 1002 on 'host-2') to halt" in found.waiting
    diagnosis = report.diagnosis(workers[0].job, {}, made.now, made.jobs.moving)
    assert diagnosis.moving == found.waiting


def test_how_often_a_job_moved_is_remembered_when_it_has_ended() -> None:
    made = JobsHarness(SIZES)
    workers = running(made)
    restart(made, "leaf")
    restart(made, "leaf")
    for worker in workers:
        made.leave(worker)
    assert [ended.moves for ended in made.jobs.history.page(None).jobs] == [2]
