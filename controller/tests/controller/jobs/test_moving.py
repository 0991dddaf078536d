"""A job goes on with another lease: when, where, and what if anything fails in the middle."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from wiresum import join
from wiresum.controller.driver import Endpoint, Reconciled, SwitchSizes
from wiresum.controller.jobs import moving, report
from wiresum.controller.jobs.cluster import Switch
from wiresum.controller.jobs.job import State, Worker
from wiresum.controller.jobs.limits import Limits, Quota
from wiresum.controller.jobs.move import Cause
from wiresum.controller.jobs.outputs import Admit, Evict, Grant, Halt, Move, Save, Tell
from wiresum.controller.jobs.positions import Role
from wiresum.controller.store import Store
from wiresum_lab.doubles.controller import NOBODY, JobsHarness, member, switch

SIZES = SwitchSizes(slots=512, lanes_max=360, jobs_max=8)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with contextlib.closing(Store(tmp_path)) as store:
        store.begin()
        yield store


def two(first: SwitchSizes = SIZES, second: SwitchSizes = SIZES) -> list[Switch]:
    """Switches that reach all hosts. With more slots the second one is where jobs go first."""
    return [
        switch("first", first, endpoint=Endpoint("10.0.0.1", 43488)),
        switch("second", second, endpoint=Endpoint("10.0.0.2", 43488)),
    ]


def running(made: JobsHarness, name: str = "a-job", world_size: int = 3, **fields: object) -> list[Worker]:
    """Of a job that can move."""
    return made.running(world_size, job_name=name, can_move=True, **fields)


def in_the_way(made: JobsHarness, name: str, slots: int) -> Worker:
    """Of a job at the second switch that cannot move."""
    made.jobs.drain("first", resume=False)
    (worker,) = made.ask_all(1, job_name=name, slots=slots)
    made.jobs.drain("first", resume=True)
    assert worker.job.switch_name == "second"
    made.jobs.attend(member(worker), made.now)
    return worker


def restart(made: JobsHarness, name: str) -> None:
    """A switch loses what it holds."""
    made.change(name, "it was killed")
    made.reloaded = True
    made.change(name, "")


def moves(made: JobsHarness) -> list[join.Move]:
    return [output.event.move for output in made.outputs(Move)]


def halts(made: JobsHarness) -> list[tuple[int, int]]:
    """Ranks, and the number of the move."""
    return [(output.worker.rank, output.event.halt.move_number) for output in made.outputs(Halt)]


def ends(made: JobsHarness) -> set[str]:
    return {tell.ended.reason for tell in made.outputs(Tell)}


def end_of(made: JobsHarness) -> join.JobEnded:
    return made.outputs(Tell)[0].ended


# When it moves, and where to.


def test_a_job_goes_on_at_a_switch_that_was_started_anew() -> None:
    made = JobsHarness(SIZES)
    workers = running(made, slots=512)
    job = workers[0].job
    key, secret = job.key, {worker.token for worker in workers}
    restart(made, "leaf")
    assert halts(made) == [(0, 1), (1, 1), (2, 1)]
    (admit,) = made.outputs(Admit)
    assert admit.entry.key not in (0, key)
    for worker, move in zip(workers, moves(made), strict=True):
        assert move.move_number == 1
        assert move.grant.key == admit.entry.key == job.key
        assert (move.grant.job, move.grant.slots) == (admit.entry.job, 512)
        assert (move.grant.worker, move.grant.token) == (worker.rank, worker.token)
        assert move.roles == bytes(512)
    assert {worker.token for worker in workers} == secret
    assert (job.state, job.moving, job.moved) == (State.RUNNING, None, None)
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
    assert [(job.state, job.slots, job.move_number) for job in jobs] == [
        (State.RUNNING, slots, 1) for slots in (128, 256, 64, 64)
    ]
    assert waits.job.state is State.QUEUED, "jobs that run come before those that wait"


def test_a_worker_that_cannot_move_keeps_its_job_from_moving() -> None:
    made = JobsHarness(SIZES)
    made.ask(rank=0, world_size=2, can_move=True)
    made.ask(rank=1, world_size=2)
    workers = [grant.worker for grant in made.outputs(Grant)]
    for worker in workers:
        made.jobs.attend(member(worker), made.now)
    restart(made, "leaf")
    assert end_of(made).reason == "leaf was started anew, and what it had summed is lost"
    assert halts(made) == []


def test_a_job_that_has_not_begun_does_not_move() -> None:
    made = JobsHarness(SIZES)
    made.switch_answers = False
    worker = made.ask(can_move=True)
    made.change("leaf", "")
    made.jobs.reconciled(made.done[-1], Reconciled(reloaded=True), made.now)  # type: ignore[arg-type]
    made.settle()
    assert made.refused(worker)[0] == "UNAVAILABLE", "it is asked for again"


def test_a_job_that_a_worker_has_left_does_not_move() -> None:
    made = JobsHarness(SIZES)
    workers = running(made)
    made.leave(workers[0])
    restart(made, "leaf")
    assert end_of(made).cause == join.JobEnded.SWITCH_LOST


def test_a_job_whose_rounds_stand_still_moves_from_a_lost_switch_to_another() -> None:
    made = JobsHarness(switches=two())
    workers = running(made)
    job, other = workers[0].job, "second"
    assert job.switch_name == "first"
    made.change("first", "no answer")
    made.wait(0.8, beating=workers)
    assert made.outputs(Admit) == []
    made.wait(0.4, beating=workers)
    assert job.switch_name == other
    assert made.outputs(Admit)[0].entry.key == job.key
    assert [move.grant.switch_name for move in moves(made)] == [other] * 3
    assert moves(made)[0].grant.switch_endpoint.address == "10.0.0.2"
    assert made.jobs.moving.count == {Cause.SWITCH_LOST: 1}
    (old,) = (each for each in made.jobs.all() if each is not job)
    assert (old.state, old.switch_name) == (State.ENDING, "first"), "the switch may still have its slots"
    assert made.switches[0].leases.slots_free == 512 - job.slots
    made.change("first", "")
    assert made.switches[0].leases.slots_free == 512
    assert made.jobs.all() == [job]


def test_workers_hear_of_a_move_only_when_another_switch_has_the_job() -> None:
    made = JobsHarness(switches=two())
    workers = running(made)
    made.jobs.drain("first", resume=False)
    made.switch_answers = False
    made.wait(1, beating=workers)
    (admit,) = made.outputs(Admit)
    assert halts(made) == []
    made.switch_answers = True
    made.jobs.admitted("second", admit.entry.job, made.now)
    made.settle()
    assert workers[0].job.switch_name == "second"
    kinds = [type(output) for output in made.done if isinstance(output, Admit | Halt | Move)]
    assert kinds == [Admit, Halt, Halt, Halt, Move, Move, Move]


def test_a_job_whose_rounds_move_keeps_its_lease() -> None:
    made = JobsHarness(switches=two())
    workers = running(made)
    made.change("first", "no answer")
    for round_newest in range(2, 200):
        made.wait(0.5, beating=workers, round_newest=round_newest)
    assert (halts(made), ends(made)) == ([], set())


def test_a_job_stays_if_its_switch_comes_back_before_there_is_a_place() -> None:
    made = JobsHarness(switches=two(second=SwitchSizes(slots=64, lanes_max=360, jobs_max=1)))
    workers = running(made, slots=64)
    job = workers[0].job
    other = in_the_way(made, "other", 64)
    made.change("first", "no answer")
    made.wait(5, beating=workers)
    assert made.jobs.waiting.position(job.moving.lease) == 1  # type: ignore[union-attr, arg-type]
    made.change("first", "")
    made.wait(0.2, beating=workers)
    assert (job.moving, halts(made)) == (None, [])
    assert made.jobs.waiting.crowded is False
    made.leave(other)
    made.wait(30, beating=workers)
    assert (job.switch_name, ends(made)) == ("first", set())


def test_a_job_that_no_other_switch_takes_ends_and_hears_why() -> None:
    made = JobsHarness(switches=two(second=SwitchSizes(slots=64, lanes_max=360, jobs_max=8)))
    workers = running(made, slots=256)
    made.change("first", "no answer")
    made.wait(29, beating=workers)
    assert ends(made) == set()
    made.wait(2, beating=workers)
    assert end_of(made).cause == join.JobEnded.SWITCH_LOST
    assert "first is lost: no answer, and for 30 s the job has made no progress. No other switch could take it: " in (
        end_of(made).reason
    )
    assert made.jobs.all()[0].state is State.ENDING


@pytest.mark.parametrize(
    ("second", "why"),
    [
        (SwitchSizes(128, 360, 8), "it has 256 slots, and second could give it 128 at most"),
        (SwitchSizes(512, 180, 8), "its packets have 360 words, and would have 180 at second"),
        (SwitchSizes(512, 360, 8, threads_max=2), "it has 4 threads, and would have 2 at second"),
    ],
)
def test_a_switch_that_cannot_carry_the_lease_as_it_is_is_no_place(second: SwitchSizes, why: str) -> None:
    made = JobsHarness(switches=[*two(second=second)])
    workers = running(made, slots=256)
    assert workers[0].job.switch_name == "first"
    made.jobs.drain("first", resume=False)
    made.wait(60, beating=workers)
    assert (halts(made), ends(made)) == ([], set())
    made.change("first", "no answer")
    made.wait(31, beating=workers)
    assert why in end_of(made).reason or "first cannot be used now" in end_of(made).reason


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
    assert workers[0].job.threads == 2
    made.jobs.drain("second", resume=True)
    made.jobs.drain("first", resume=False)
    made.wait(0.3, beating=workers)
    assert (workers[0].job.switch_name, workers[0].job.threads, moves(made)[0].grant.threads) == ("second", 2, 2)


def test_a_drained_switch_is_left_as_places_are_found_and_a_job_without_one_stays() -> None:
    made = JobsHarness(switches=two(second=SwitchSizes(slots=256, lanes_max=360, jobs_max=8)))
    jobs = [running(made, name, slots=256)[0].job for name in ("a", "b")]
    workers = [worker for job in jobs for worker in job.workers.values()]
    assert {job.switch_name for job in jobs} == {"first"}
    made.jobs.drain("first", resume=False)
    made.wait(0.3, beating=workers)
    assert [job.switch_name for job in jobs] == ["second", "first"]
    made.wait(300, beating=workers)
    assert ends(made) == set()
    assert made.jobs.moving.count == {Cause.SWITCH_DRAINED: 1}
    for worker in jobs[0].workers.values():
        made.leave(worker)
    made.wait(0.3, beating=list(jobs[1].workers.values()))
    assert jobs[1].switch_name == "second"
    assert made.switches[0].leases.slots_free == 512


def test_jobs_that_wait_for_a_drained_one_to_find_a_place_are_not_held_up() -> None:
    made = JobsHarness(limits=Limits(overtaken_max=0), switches=two(second=SwitchSizes(256, 360, 8)))
    large, other = running(made, "large", slots=256), in_the_way(made, "small", 128)
    made.jobs.drain("first", resume=False)
    made.wait(5, beating=[*large, other])
    assert made.jobs.waiting.position(large[0].job.moving.lease) == 1  # type: ignore[union-attr, arg-type]
    next_one = made.ask(job_name="next", slots=64)
    assert (next_one.job.state, next_one.job.switch_name) == (State.RUNNING, "second")


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
    assert (workers[0].job.switch_name, waits.job.state) == ("second", State.QUEUED)


def test_a_move_needs_no_quota_besides_the_job_s_own() -> None:
    made = JobsHarness(switches=two(), quotas=[Quota("poor", slots=256, jobs=1, worker_threads=12)])
    workers = running(made, tenant="poor", slots=256)
    made.jobs.drain("first", resume=False)
    made.wait(0.3, beating=workers)
    assert workers[0].job.switch_name == "second"


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
    assert (restored.job.switch_name, halts(after)) == ("first", [])


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
        made.ask(rank=rank, world_size=2, can_move=True, endpoint=endpoint)
    workers = [grant.worker for grant in made.outputs(Grant)]
    assert list(workers[0].job.nodes) == ["spine", "left", "right"]
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
    assert (job.state, list(job.nodes), job.move_number) == (State.RUNNING, ["spine", "left", "right"], 1)
    assert {evict.switch_name for evict in made.outputs(Evict)} == {"spine", "left", "right"}
    assert [admit.switch_name for admit in made.outputs(Admit)] == ["spine", "left", "right"], "the root is told first"
    assert {admit.entry.key for admit in made.outputs(Admit)} == {job.key}


def test_a_job_moves_from_a_tree_to_a_single_switch_and_back() -> None:
    made = JobsHarness(switches=tree())
    workers = over_the_tree(made)
    made.jobs.drain("flat", resume=True)
    made.change("right", "no answer")
    made.wait(1.5, beating=workers)
    job = workers[0].job
    assert list(job.nodes) == ["flat"]
    assert [(move.grant.switch_name, move.grant.worker) for move in moves(made)] == [("flat", 0), ("flat", 1)]
    made.change("right", "")
    made.jobs.drain("flat", resume=False)
    made.wait(0.3, beating=workers)
    assert list(job.nodes) == ["spine", "left", "right"]
    assert [(move.grant.switch_name, move.grant.worker) for move in moves(made)[2:]] == [("left", 0), ("right", 0)]
    assert made.slots_free == 4 * 512 - 3 * job.slots


# What is repeated.


def test_what_one_worker_has_and_another_lacks_is_repeated() -> None:
    made = JobsHarness(SIZES)
    running(made, slots=16)
    made.ahead = {0: {3}, 1: {3, 4}}
    restart(made, "leaf")
    told = [move.roles for move in moves(made)]
    assert [roles[3] for roles in told] == [Role.AHEAD, Role.REPEATS, Role.BEHIND]
    assert [roles[4] for roles in told] == [Role.BEHIND, Role.REPEATS, Role.BEHIND]
    assert [sum(roles) for roles in told] == [3, 6, 2]


# What fails in the middle.


def positions(*rounds: int, slots: int = 16) -> bytes:
    return struct.pack(f">{slots}I", *rounds, *[7] * (slots - len(rounds)))


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ([b"\0" * 63], "has halted, and says 63 bytes of positions for 16 slots"),
        ([b""], "has halted, and says 0 bytes of positions for 16 slots"),
        ([b"\0" * (1 << 17)], "has halted, and says 131072 bytes of positions for 16 slots"),
        ([positions(7), positions(8)], "has halted, and then says other positions"),
        ([positions(7, 7, 9)], "a-job' cannot move: the workers' positions in slot 2 are more than one round apart"),
        ([positions(1 << 31)], "a-job' cannot move: the workers' positions in slot 0 are more than one round apart"),
    ],
)
def test_positions_that_cannot_be_end_the_job_and_name_the_worker(said: Sequence[bytes], why: str) -> None:
    made = JobsHarness(SIZES)
    workers = running(made, slots=16)
    made.deaf = {worker.token for worker in workers[1:]}
    restart(made, "leaf")
    assert moves(made) == []
    if "more than one round" in why:
        made.obey(workers[2], join.JobEvent(halt=join.Halt(move_number=1)))
    for text in said:
        made.jobs.beat(workers[1], 1, made.now, join.Halted(move_number=1, positions=text))
    made.settle()
    assert why in end_of(made).reason
    assert end_of(made).cause == join.JobEnded.ABORTED_BY_WORKER
    assert end_of(made).worker.rank == 1 or "cannot move" in why
    assert moves(made) == []
    made.wait(10)
    assert (made.jobs.all(), made.slots_free) == ([], 512)


@pytest.mark.parametrize("number", [0, 1, 5, (1 << 32) - 1])
def test_a_worker_that_says_unasked_that_it_has_halted_ends_its_job(number: int) -> None:
    made = JobsHarness(SIZES)
    workers = running(made, slots=16)
    made.jobs.beat(workers[1], 1, made.now, join.Halted(move_number=number, positions=positions()))
    made.settle()
    assert "says that it has halted, which it was not told to" in end_of(made).reason
    assert end_of(made).worker.rank == 1
    assert made.outputs(Admit) == []


def test_what_a_worker_said_before_it_heard_of_a_second_halt_does_not_count() -> None:
    made = JobsHarness(SIZES)
    workers = running(made, slots=16)
    restart(made, "leaf")
    made.deaf = {worker.token for worker in workers}
    restart(made, "leaf")
    assert workers[0].job.state is State.MOVING
    for worker in workers:
        made.jobs.beat(worker, 1, made.now, join.Halted(move_number=1, positions=positions()))
    made.settle()
    assert workers[0].job.state is State.MOVING
    for worker in workers:
        made.jobs.beat(worker, 1, made.now, join.Halted(move_number=2, positions=positions()))
    made.settle()
    assert (workers[0].job.state, ends(made)) == (State.RUNNING, set())
    assert [move.move_number for move in moves(made)] == [1, 1, 1, 2, 2, 2]


def test_a_worker_that_never_halts_is_named() -> None:
    made = JobsHarness(SIZES)
    workers = running(made)
    made.deaf = {workers[1].token}
    restart(made, "leaf")
    made.wait(29, beating=workers)
    assert ends(made) == set()
    assert "waits for rank 1 (127.0.0.1, process 1001 on 'host-1') to halt" in said_of(made)
    made.wait(2, beating=workers)
    assert end_of(made).worker.rank == 1
    assert "it has not halted for 30 s, so the job cannot move (leaf was started anew" in end_of(made).reason


def test_a_worker_whose_heartbeats_are_late_is_given_longer_to_halt() -> None:
    """Something holds its interpreter's lock, and its connection stands."""
    made = JobsHarness(SIZES)
    workers = running(made)
    made.deaf = {workers[1].token}
    restart(made, "leaf")
    made.wait(300, beating=[workers[0], workers[2]])
    assert ends(made) == set()
    made.deaf.clear()
    made.obey(workers[1], join.JobEvent(halt=join.Halt(move_number=1)))
    made.settle()
    assert workers[0].job.state is State.RUNNING
    made.deaf = {workers[1].token}
    restart(made, "leaf")
    made.wait(601, beating=[workers[0], workers[2]])
    assert end_of(made).worker.rank == 1


@pytest.mark.parametrize("after_it_halted", [False, True])
def test_a_worker_that_dies_in_the_middle_is_named(after_it_halted: bool) -> None:
    made = JobsHarness(SIZES)
    workers = running(made)
    made.deaf = {workers[2].token} | (set() if after_it_halted else {workers[1].token})
    made.wait(0.5, beating=workers)
    restart(made, "leaf")
    made.break_streams(workers[1])
    made.wait(2.9, beating=[workers[0], workers[2]])
    assert ends(made) == set()
    made.wait(0.3, beating=[workers[0], workers[2]])
    assert end_of(made).worker.rank == 1
    assert "was lost while the job moved: its connection to the service broke" in end_of(made).reason


def test_workers_that_leave_or_abort_in_the_middle_end_the_job() -> None:
    made = JobsHarness(SIZES)
    workers = running(made)
    made.deaf = {workers[1].token}
    restart(made, "leaf")
    made.abort(workers[0], "the loss is NaN")
    assert end_of(made).reason.endswith("ended the job: the loss is NaN")
    assert end_of(made).cause == join.JobEnded.ABORTED_BY_WORKER
    made.wait(6)
    assert (made.jobs.all(), made.slots_free) == ([], 512)
    made.deaf.clear()
    made.done.clear()
    workers = running(made, "next")
    made.deaf = {workers[1].token}
    restart(made, "leaf")
    made.leave(workers[1])
    made.wait(3.2, beating=[workers[0], workers[2]])
    assert end_of(made).cause == join.JobEnded.WORKER_LEFT
    made.wait(6)
    assert (made.jobs.all(), made.slots_free) == ([], 512)


def test_a_job_whose_workers_all_leave_in_the_middle_has_completed() -> None:
    made = JobsHarness(SIZES)
    workers = running(made)
    made.deaf = {workers[1].token}
    restart(made, "leaf")
    for worker in workers:
        made.leave(worker)
    assert [ended.outcome for ended in made.jobs.history.find(None, "", 0)] == ["completed"]
    assert (made.jobs.all(), made.slots_free) == ([], 512)


def test_a_worker_that_was_cut_off_hears_of_the_move_when_it_comes_back() -> None:
    """It still says where it was before."""
    made = JobsHarness(switches=two())
    workers = running(made)
    before = member(workers[1])
    made.deaf = {workers[1].token}
    made.jobs.drain("first", resume=False)
    made.wait(0.3, beating=workers)
    made.deaf.clear()
    made.jobs.broken(workers[1], workers[1].stream, made.now)
    made.jobs.attend(before, made.now)
    made.settle()
    assert halts(made) == [(0, 1), (1, 1), (2, 1), (1, 1)]
    assert [output.worker.rank for output in made.outputs(Move)] == [0, 1, 2]
    # The same once it has halted: the stream breaks before it is told to move.
    made.jobs.drain("first", resume=True)
    made.jobs.drain("second", resume=False)
    before, told = member(workers[1]), made.obey
    made.deaf = {workers[1].token}
    made.wait(0.3, beating=workers)
    told(workers[1], join.JobEvent(halt=join.Halt(move_number=2)))
    made.settle()
    assert workers[1].job.state is State.RUNNING
    made.wait(2, beating=workers)
    assert len(made.outputs(Move)) == 6, "once on each stream"
    assert "it has moved, and waits for rank 1" in said_of(made)
    made.deaf.clear()
    made.jobs.broken(workers[1], workers[1].stream, made.now)
    made.jobs.attend(before, made.now)
    made.beat(workers[1])
    made.settle()
    assert [output.worker.rank for output in made.outputs(Move)][6:] == [1]
    made.wait(60, beating=workers)
    assert (ends(made), workers[1].job.moved) == (set(), None)


def test_a_worker_that_says_after_the_move_that_it_has_halted_is_named() -> None:
    made = JobsHarness(SIZES)
    workers = running(made)
    made.deaf = {workers[1].token}
    restart(made, "leaf")
    made.obey(workers[1], join.JobEvent(halt=join.Halt(move_number=1)))
    made.settle()
    made.wait(29, beating=workers)
    assert ends(made) == set()
    made.wait(2, beating=workers)
    assert end_of(made).worker.rank == 1
    assert "for 30 s it has not gone on after the job has moved" in end_of(made).reason


def test_a_switch_that_does_not_take_the_job_is_asked_again_and_the_job_runs_on() -> None:
    made = JobsHarness(switches=two())
    workers = running(made)
    made.jobs.drain("first", resume=False)
    made.switch_answers = False
    made.wait(0.2, beating=workers)
    (admit,) = made.outputs(Admit)
    made.switch_answers = True
    made.jobs.refused("second", admit.entry.job, "table admit is full", made.now)
    made.settle()
    assert "second did not take it: table admit is full" in said_of(made)
    assert (halts(made), workers[0].job.switch_name) == ([], "first")
    made.wait(0.8, beating=workers)
    assert len(made.outputs(Admit)) == 1, "not at once"
    made.wait(0.5, beating=workers)
    assert workers[0].job.switch_name == "second"
    assert made.outputs(Admit)[1].entry.key != admit.entry.key
    assert made.slots_free == 1024 - 256


def test_a_next_lease_whose_switch_is_started_anew_before_the_move_is_replaced() -> None:
    made = JobsHarness(switches=two())
    workers = running(made)
    made.deaf = {workers[1].token}
    made.jobs.drain("first", resume=False)
    made.wait(0.3, beating=workers)
    assert workers[0].job.state is State.MOVING
    restart(made, "second")
    assert made.outputs(Admit)[-1].switch_name == "second"
    made.wait(1.2, beating=workers)
    made.obey(workers[1], join.JobEvent(halt=join.Halt(move_number=1)))
    made.settle()
    assert (workers[0].job.state, workers[0].job.switch_name, ends(made)) == (State.RUNNING, "second", set())
    assert len({admit.entry.key for admit in made.outputs(Admit)}) == 2
    assert {move.grant.key for move in moves(made)} == {made.outputs(Admit)[-1].entry.key}


def test_a_job_whose_switch_stays_away_after_it_was_started_anew_ends() -> None:
    made = JobsHarness(SIZES)
    workers = running(made, slots=512)
    made.switch_answers = False
    made.change("leaf", "")
    made.jobs.reconciled(made.done[-1], Reconciled(reloaded=True), made.now)  # type: ignore[arg-type]
    made.change("leaf", "it was killed")
    made.wait(29, beating=workers)
    assert (workers[0].job.state, ends(made)) == (State.MOVING, set())
    made.wait(2, beating=workers)
    assert "leaf was started anew, and what it had summed is lost, and for 30 s no switch has taken the job" in (
        end_of(made).reason
    )
    assert "No other switch could take it: leaf cannot be used now (it was killed)" in end_of(made).reason


def test_a_service_that_is_cut_off_in_the_middle_ends_no_job() -> None:
    made = JobsHarness(SIZES)
    workers = running(made)
    made.deaf = {worker.token for worker in workers}
    restart(made, "leaf")
    made.change("leaf", "no answer")
    made.break_streams(*workers)
    made.wait(500)
    assert ends(made) == set()
    for worker in workers:
        made.jobs.attend(member(worker), made.now)
    made.deaf.clear()
    made.settle()
    assert halts(made) == [(0, 1), (1, 1), (2, 1)] * 2
    made.change("leaf", "")
    made.wait(1.5, beating=workers)
    assert workers[0].job.state is State.RUNNING


def test_a_worker_whose_grant_was_lost_halts_when_it_comes() -> None:
    made = JobsHarness(SIZES)
    first, second = (made.ask(rank=rank, world_size=2, attempt="mine", can_move=True) for rank in range(2))
    made.jobs.attend(member(first), made.now)
    made.jobs.hung_up(second, second.call, made.now)
    restart(made, "leaf")
    assert (first.job.state, halts(made)) == (State.MOVING, [(0, 1)])
    made.ask(rank=1, world_size=2, attempt="mine", can_move=True)
    assert len([grant for grant in made.outputs(Grant) if grant.worker is second]) == 2
    made.jobs.attend(member(second), made.now)
    made.settle()
    assert (first.job.state, halts(made)) == (State.RUNNING, [(0, 1), (1, 1)])


# A service that is killed.


def comes_back(after: JobsHarness, workers: Sequence[Worker]) -> list[Worker]:
    """All attend at the next service, and say what they said before."""
    restored = [after.jobs.attend(member(worker), after.now) for worker in workers]
    after.settle()
    for worker in restored:
        after.beat(worker)
    after.settle()
    return restored


def until_halted(made: JobsHarness, workers: Sequence[Worker], deaf: Sequence[int]) -> None:
    """Ranks that are `deaf` do not hear the halt."""
    made.deaf = {workers[rank].token for rank in deaf}
    made.jobs.drain("first", resume=False)
    made.wait(0.2, beating=workers)


def nothing(made: JobsHarness, workers: Sequence[Worker]) -> None:
    made.jobs.drain("first", resume=False)
    made.settle()


def in_the_queue(made: JobsHarness, workers: Sequence[Worker]) -> None:
    made.jobs.drain("second", resume=False)
    made.jobs.drain("first", resume=False)
    made.wait(0.2, beating=workers)


def being_admitted(made: JobsHarness, workers: Sequence[Worker]) -> None:
    made.switch_answers = False
    made.jobs.drain("first", resume=False)
    made.wait(0.2, beating=workers)


def none_halted(made: JobsHarness, workers: Sequence[Worker]) -> None:
    until_halted(made, workers, [0, 1, 2])


def some_halted(made: JobsHarness, workers: Sequence[Worker]) -> None:
    until_halted(made, workers, [1])


def none_told(made: JobsHarness, workers: Sequence[Worker]) -> None:
    """All have halted and the exchange is on disk, but the service dies before anybody hears of it."""
    told, made.obey = made.obey, lambda worker, event: told(worker, event) if event.HasField("halt") else None  # type: ignore[method-assign]
    until_halted(made, workers, [])


def some_told(made: JobsHarness, workers: Sequence[Worker]) -> None:
    told = made.obey

    def obey(worker: Worker, event: join.JobEvent) -> None:
        if event.HasField("halt") or worker.rank != 2:
            told(worker, event)

    made.obey = obey  # type: ignore[method-assign]
    until_halted(made, workers, [])


def all_told(made: JobsHarness, workers: Sequence[Worker]) -> None:
    until_halted(made, workers, [])


POINTS = [nothing, in_the_queue, being_admitted, none_halted, some_halted, none_told, some_told, all_told]


@pytest.mark.parametrize("point", POINTS)
def test_a_service_that_is_killed_at_any_point_lets_the_next_one_go_on(
    point: Callable[[JobsHarness, Sequence[Worker]], None], store: Store
) -> None:
    before = JobsHarness(switches=two(), store=store)
    workers = running(before)
    point(before, workers)
    said = dict(before.halted)
    numbers = {halted.move_number for halted in said.values()} | {
        output.event.halt.move_number for output in before.outputs(Halt)
    }
    keys = {admit.entry.key for admit in before.outputs(Admit)} | {workers[0].job.key}
    store.begin()
    after = JobsHarness(switches=two(), store=store, now=7.0)
    after.halted = said
    after.jobs.drain("second", resume=True)
    restored = comes_back(after, workers)
    after.wait(5, beating=restored)
    (job,) = after.jobs.all()
    assert (job.state, job.switch_name, job.moving, job.moved) == (State.RUNNING, "second", None, None)
    assert after.halted == {}
    if point is not all_told:
        assert job.key not in keys
        assert min(move.move_number for move in moves(after)) > max(numbers, default=0)
    assert after.slots_free == 1024 - job.slots
    assert len(store.load().jobs) == 1
    after.wait(60, beating=restored)
    assert ends(after) == set()
    for worker in restored:
        after.leave(worker)
    assert (after.slots_free, store.load().jobs) == (1024, [])


def test_a_service_that_is_killed_while_a_switch_comes_back_lets_the_next_one_go_on(store: Store) -> None:
    """Its lease is back in the pool, and the switch holds nothing: other jobs may get the slots."""
    before = JobsHarness(SIZES, store=store)
    workers = running(before, slots=256)
    other = running(before, "other", 1, slots=256)[0]
    before.deaf = {workers[1].token}
    restart(before, "leaf")
    assert (workers[0].job.state, other.job.state) == (State.MOVING, State.RUNNING)
    store.begin()
    after = JobsHarness(SIZES, store=store, now=3.0)
    after.halted = dict(before.halted)
    restored = comes_back(after, [*workers, other])
    after.wait(0.3, beating=restored)
    assert {worker.job.state for worker in restored} == {State.RUNNING}
    assert {worker.job.move_number for worker in restored[:3]} == {2}
    assert after.slots_free == 0
    after.wait(10, beating=restored)
    assert ends(after) == set()


def test_every_number_from_before_a_restart_is_exceeded_and_later_ones_end_the_job(store: Store) -> None:
    """Its disk did not take what the service before had told."""
    workers = running(JobsHarness(SIZES, store=store), slots=16)
    store.begin()
    after = JobsHarness(SIZES, store=store)
    after.halted = {
        workers[0].token: join.Halted(move_number=4, positions=positions()),
        workers[1].token: join.Halted(move_number=9, positions=positions()),
    }
    restored = comes_back(after, workers)
    assert ends(after) == set()
    assert {move.move_number for move in moves(after)} == {10}
    after.jobs.beat(restored[2], 1, after.now, join.Halted(move_number=20, positions=positions()))
    after.settle()
    assert "says that it has halted, which it was not told to" in end_of(after).reason


def test_moves_are_written_down_before_anybody_hears_of_them(store: Store) -> None:
    made = JobsHarness(SIZES, store=store)
    running(made)
    restart(made, "leaf")
    order = [output for output in made.done if isinstance(output, Save | Halt | Move | Evict | Admit)]
    kinds = [type(output) for output in order]
    assert kinds.index(Save) < kinds.index(Halt)
    states = [output.record.state for output in order if isinstance(output, Save)]  # type: ignore[union-attr]
    assert states[0] == "moving"
    last = max(n for n, output in enumerate(order) if isinstance(output, Save) and output.record.state == "running")  # type: ignore[union-attr]
    assert last < kinds.index(Move)


def test_a_service_that_is_stopped_keeps_jobs_that_move_for_the_next_one(store: Store) -> None:
    before = JobsHarness(SIZES, store=store)
    workers = running(before)
    before.deaf = {workers[1].token}
    restart(before, "leaf")
    before.jobs.close("it is restarted", before.now, keep_jobs=True)
    before.settle()
    assert ends(before) == set()
    assert [record.state for record in store.load().jobs] == ["moving"]


# What people see.


def said_of(made: JobsHarness) -> str:
    (job,) = (job for job in report.report(made.jobs, {}, made.now).jobs if job.state != "ending")
    return job.waiting


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
    assert [ended.moves for ended in made.jobs.history.find(None, "", 0)] == [2]
