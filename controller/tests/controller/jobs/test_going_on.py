"""Jobs whose workers had another lease, which was lost, and go on here; and workers that have halted by themselves."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from wiresum import join
from wiresum.controller.driver import SwitchSizes
from wiresum.controller.jobs import asking as asking_module
from wiresum.controller.jobs import moving, report
from wiresum.controller.jobs.job import Cause, Job, State, Worker
from wiresum.controller.jobs.limits import Limits
from wiresum.controller.jobs.outputs import Grant, Refuse, RefuseForGood
from wiresum.controller.jobs.positions import POSITIONS_MAX, roles_of
from wiresum.controller.jobs.refusal import Refusal
from wiresum.join.constants import REASON_CHARACTERS_MAX
from wiresum_lab.doubles.controller import JobsHarness, member
from wiresum_lab.doubles.moving import SIZES, end_of, ends, halting, halts, moves, positions, running, two

SHAPE = {"slots": 16, "threads": 2, "lanes": 90}
FIRST, SECOND = b"the first job 16", b"the second of 16"
"""Two jobs of one name."""


def resumed(*rounds: int, **fields: object) -> join.Resumed:
    return join.Resumed(
        **({"positions": positions(*rounds), "reason": "it was lost", "job_id": FIRST} | SHAPE | fields)
    )  # type: ignore[arg-type]


def asking(rank: int, said: join.Resumed | None, world_size: int = 2, **fields: object) -> dict[str, object]:
    usual: dict[str, object] = {
        "rank": rank,
        "world_size": world_size,
        "threads_max": 2,
        "lanes_max": 90,
    }
    return usual | ({"resumed": said} if said is not None else {}) | fields


def go_on(made: JobsHarness, said: Sequence[join.Resumed], **fields: object) -> list[Worker]:
    return [made.ask(**asking(rank, each, len(said), **fields)) for rank, each in enumerate(said)]


def test_a_job_goes_on_with_the_lease_that_it_had_and_each_worker_hears_its_roles() -> None:  # R7.29
    made = JobsHarness(SIZES)
    running(made, "before")
    workers = go_on(made, [resumed(7, 8, 7), resumed(7, 7, 8), resumed(7, 7, 7)])
    replies = {grant.worker.rank: grant.reply for grant in made.outputs(Grant)}
    assert {(reply.slots, reply.threads, reply.lanes) for reply in replies.values()} == {(16, 2, 90)}
    assert {rank: list(reply.roles[:4]) for rank, reply in replies.items()} == {
        0: [0, 3, 1, 0], 1: [0, 1, 3, 0], 2: [0, 1, 1, 0],
    }  # fmt: skip
    assert {len(reply.roles) for reply in replies.values()} == {16}
    for worker in workers:
        made.jobs.attend(member(worker), made.now)
    assert {worker.positions + worker.roles for worker in workers} == {b""}, "they have them"
    made.wait(40, beating=workers)
    assert workers[0].job.state is State.RUNNING


@pytest.mark.parametrize("goes_on_first", [False, True])
def test_all_workers_of_a_job_go_on_or_none(goes_on_first: bool) -> None:  # R7.29, R7.30
    made = JobsHarness(SIZES)
    said = [resumed(7), None] if goes_on_first else [None, resumed(7)]
    made.ask(**asking(0, said[0]))
    code, text = made.refusal_of(lambda: made.ask(**asking(1, said[1])))
    assert code == "FAILED_PRECONDITION"
    first = "rank 0 (127.0.0.1, process 1000 on 'host-0')"
    does = (
        f"rank 1 begins a job that {first} goes on with"
        if goes_on_first
        else f"rank 1 goes on with a job that {first} begins"
    )
    assert does in text
    assert "these are two jobs named 'a-job'" in text


def test_all_must_have_had_the_same_lease() -> None:
    made = JobsHarness(SIZES)
    made.ask(**asking(0, resumed()))
    code, text = made.refusal_of(lambda: made.ask(**asking(1, resumed(threads=1))))
    assert code == "FAILED_PRECONDITION"
    assert "another lease (16 slots, 1 threads, packets of 90 words) than rank 0" in text


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"slots": 512, "positions": bytes(4 * 512)}, "it has 512 slots, and leaf could give it 256 at most"),
        ({"threads": 2}, "it has 2 threads, and would have 1 at leaf"),
        ({"lanes": 89}, "its packets have 89 words, and would have 90 at leaf"),
    ],
)
def test_a_lease_that_no_switch_can_give_is_refused(fields: dict[str, object], why: str) -> None:
    made = JobsHarness(SwitchSizes(slots=256, lanes_max=360, jobs_max=8, threads_max=1))
    workers = go_on(made, [resumed(**({"threads": 1} | fields))] * 2)
    for worker in workers:
        code, text = made.refused(worker)
        assert (code, f"cannot go on here: {why}" in text) == ("RESOURCE_EXHAUSTED", True), text
    assert made.jobs.all() == []


def test_positions_that_do_not_go_together_are_refused_to_all() -> None:
    made = JobsHarness(SIZES)
    workers = go_on(made, [resumed(7), resumed(9)])
    for worker in workers:
        code, text = made.refused(worker)
        assert code == "FAILED_PRECONDITION"
        assert "cannot go on: the workers' positions in slot 0 are more than one round apart" in text
    assert (made.jobs.all(), made.slots_free) == ([], 512)


@pytest.mark.parametrize(
    ("said", "fields", "why"),
    [
        (resumed(slots=0, positions=b""), {}, "resumed.slots is 0"),
        (resumed(slots=1 << 31), {}, "resumed.slots is 2147483648"),
        (resumed(slots=POSITIONS_MAX // 256 + 1), {"world_size": 256}, "resumed.slots is 4097: it must be 1 to 4096"),
        (resumed(slots=3, positions=bytes(12)), {}, "resumed.slots is 3: every lease has a power of two"),
        (resumed(threads=3), {}, "resumed.threads is 3"),
        (resumed(threads=3), {"threads_max": 3}, "resumed.threads is 3: every lease has a power of two"),
        (resumed(threads=0), {}, "resumed.threads is 0"),
        (resumed(lanes=91), {}, "resumed.lanes is 91"),
        (resumed(positions=bytes(63)), {}, "resumed.positions has 63 bytes for 16 slots"),
        (resumed(positions=bytes(65)), {}, "resumed.positions has 65 bytes for 16 slots"),
        (resumed(reason="\n"), {}, "resumed.reason must be printable"),
        (resumed(reason="x" * (REASON_CHARACTERS_MAX + 1)), {}, "resumed.reason must be printable"),
        (resumed(ended=join.JobEnded(cause=join.JobEnded.SWITCH_LOST)), {}, "resumed.ended.cause is none"),
        (resumed(job_id=bytes(15)), {}, "resumed.job_id has 15 bytes: it must have 16"),
        (resumed(job_id=b""), {}, "resumed.job_id has 0 bytes: it must have 16"),
    ],
)
def test_what_makes_no_sense_is_refused(said: join.Resumed, fields: dict[str, object], why: str) -> None:
    made = JobsHarness(SIZES)
    code, text = made.refusal_of(lambda: made.ask(**(asking(0, said) | fields)))
    assert (code, why in text) == ("INVALID_ARGUMENT", True), text
    assert made.jobs.all() == []


def test_a_job_that_goes_on_comes_before_no_other() -> None:
    """Any tenant's workers could say that theirs does."""
    made = JobsHarness(SwitchSizes(slots=32, lanes_max=360, jobs_max=8))
    (holder,) = made.running(1, job_name="holder", slots=32)
    token = made.create(job_name="begins", priority=5, slots=16)
    begins = made.ask(job_name="begins", slots=16, job_token=token)
    goes_on = go_on(made, [resumed(slots=32, positions=bytes(128))] * 2)
    later = made.ask(job_name="later", slots=16)
    assert {each.job.state for each in (begins, later, *goes_on)} == {State.QUEUED}
    made.leave(holder)
    assert [each.job.state for each in (begins, goes_on[0], later)] == [State.RUNNING, State.QUEUED, State.RUNNING]
    made.leave(begins)
    made.leave(later)
    assert goes_on[0].job.state is State.RUNNING


# Over, while no service heard it.


def ended(
    cause: join.JobEnded.Cause = join.JobEnded.ABORTED_BY_WORKER, reason: str = "NaN", **fields: object
) -> join.Resumed:
    return resumed(**({"positions": b"", "ended": join.JobEnded(cause=cause, reason=reason)} | fields))  # type: ignore[arg-type]


def ends_heard(made: JobsHarness) -> list[tuple[int, str]]:
    """Rank, and what it has heard."""
    heard = [(refused.worker.rank, refused.ended.reason) for refused in made.outputs(RefuseForGood)]
    assert made.outputs(Grant) == made.outputs(Refuse) == []
    return heard


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0), (1, 0, 2)], ids=str)
@pytest.mark.parametrize(
    ("said", "text"),
    [
        (ended(), "ended the job: NaN"),
        (ended(reason=""), "ended the job: it gave no reason"),
        (ended(join.JobEnded.WORKER_LEFT, "no service believes this"), "has left the job, and no collective"),
    ],
    ids=["aborts", "gives no reason", "leaves"],
)
def test_all_hear_that_one_of_them_has_ended_the_job_also_those_who_ask_later(  # R7.32
    order: tuple[int, ...], said: join.Resumed, text: str
) -> None:
    made = JobsHarness(SIZES)
    for rank in order:
        made.wait(3)
        made.ask(**asking(rank, said if rank == 0 else resumed(), 3))
    heard = ends_heard(made)
    assert sorted(rank for rank, _ in heard) == [0, 1, 2]
    assert {reason for _, reason in heard} == {heard[0][1]}
    assert heard[0][1].startswith("rank 0 (") and text in heard[0][1]
    made.wait(1)
    assert (made.jobs.all(), made.slots_free) == ([], 512)
    (record,) = made.jobs.history.page(None).jobs
    assert text in record.reason


def test_one_that_waits_and_then_ends_the_job_asks_again_with_that() -> None:
    made = JobsHarness(SIZES)
    made.ask(**asking(0, resumed(), attempt="x"))
    made.ask(**asking(0, ended(), attempt="x"))
    made.ask(**asking(1, resumed()))
    assert [rank for rank, _ in ends_heard(made)] == [0, 1]


@pytest.mark.parametrize("admitted", [False, True])
def test_one_whose_grant_is_on_its_way_ends_the_job_for_all(admitted: bool) -> None:
    made = JobsHarness(SIZES)
    made.switch_answers = admitted
    first, _ = go_on(made, [resumed()] * 2, attempt="x")
    made.done.clear()
    made.switch_answers = True
    made.ask(**asking(1, ended(), attempt="x"))
    assert sorted(rank for rank, _ in ends_heard(made)) == [0, 1]
    if admitted:  # it may have its grant already
        made.jobs.attend(member(first), made.now)
        made.settle()
        assert "NaN" in end_of(made).reason
    made.wait(6)
    assert (made.jobs.all(), made.slots_free) == ([], 512)


@pytest.mark.parametrize("next_job", ["none", "begins", "goes on"])
def test_it_is_kept_for_so_long_as_workers_look_for_a_lease_while_the_name_is_free(next_job: str) -> None:
    made = JobsHarness(SIZES)
    made.ask(**asking(0, ended(), 3))
    if next_job != "none":
        made.ask(**asking(0, None if next_job == "begins" else resumed(job_id=SECOND), timeout_ms=60_000))
    made.wait(29)
    made.ask(**asking(1, resumed(), 3))
    assert [rank for rank, _ in ends_heard(made)] == [0, 1], "and nobody else"
    made.wait(2)
    if next_job == "none":
        made.ask(**asking(2, resumed(), 3))
    else:
        assert made.refusal_of(lambda: made.ask(**asking(2, resumed(), 3)))[0] == "FAILED_PRECONDITION"
    assert [rank for rank, _ in ends_heard(made)] == [0, 1]


@pytest.mark.parametrize("waits", [False, True], ids=["forms", "waits for slots"])
@pytest.mark.parametrize("goes_on", [False, True], ids=["begins", "goes on"])
def test_an_order_of_a_job_before_does_not_end_the_next_one_of_its_name(waits: bool, goes_on: bool) -> None:  # R7.32
    made = JobsHarness(SwitchSizes(slots=16, lanes_max=360, jobs_max=8))
    if waits:
        holder = made.running(1, job_name="holder", slots=16)[0]
        made.jobs.beat(holder, 2, made.now)
    said = resumed(job_id=SECOND) if goes_on else None
    second = [made.ask(**asking(rank, said)) for rank in range(1 + waits)]
    made.ask(**asking(0, ended()))
    made.ask(**asking(1, ended(reason="another")))
    assert ends_heard(made) == [(0, text := made.outputs(RefuseForGood)[0].ended.reason), (1, text)]
    if waits:
        made.leave(holder)
    else:
        second.append(made.ask(**asking(1, said)))
    assert [grant.worker for grant in made.outputs(Grant)] == second


def test_workers_of_two_jobs_of_one_name_and_shape_do_not_go_on_together() -> None:  # R7.30
    made = JobsHarness(SIZES)
    made.ask(**asking(0, resumed()))
    code, text = made.refusal_of(lambda: made.ask(**asking(1, resumed(job_id=SECOND))))
    assert code == "FAILED_PRECONDITION"
    assert "rank 1 goes on with another job than rank 0 (127.0.0.1, " in text
    assert "these are two jobs named 'a-job'" in text


# Told as a member, while the job ends.


@pytest.mark.parametrize("order", ["abort", "leave"])
def test_an_order_for_a_job_that_has_lost_its_switch_is_not_taken_but_heard_when_its_workers_would_go_on(  # R7.33
    monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    monkeypatch.setattr(moving, "POSITIONS_MAX", 0)  # it cannot move
    made = JobsHarness(SIZES)
    first, _ = made.running(2)
    made.reloaded = True
    made.change("leaf", "it was killed")
    made.change("leaf", "")
    assert (first.job.state, end_of(made).cause) == (State.ENDING, join.JobEnded.SWITCH_LOST)
    give = (lambda: made.abort(first, "NaN")) if order == "abort" else (lambda: made.leave(first))
    assert made.refusal_of(give)[0] == "NOT_FOUND"
    made.done.clear()
    made.ask(**asking(0, ended(), attempt="x"))
    made.ask(**asking(1, resumed(), attempt="y"))
    assert [rank for rank, _ in ends_heard(made)] == [0, 1]


def test_workers_that_would_go_on_with_a_job_that_an_operator_has_ended_hear_so() -> None:
    made = JobsHarness(SIZES)
    made.ask(**asking(0, resumed()))
    made.jobs.end("a-job", "maintenance", made.now)
    made.settle()
    made.ask(**asking(1, resumed()))
    assert [(rank, reason) for rank, reason in ends_heard(made)] == [
        (0, "an operator ended it: maintenance"), (1, "an operator ended it: maintenance"),
    ]  # fmt: skip


# Halted by itself.


def test_a_worker_that_has_halted_by_itself_has_its_job_moved() -> None:  # R7.26
    made = JobsHarness(SIZES)
    workers = running(made)
    key = workers[0].job.lease.key
    made.halt_by_itself(workers[1])
    made.wait(1, beating=workers)
    job = workers[0].job
    assert (job.state, job.move, job.members.going_on, made.halted) == (State.RUNNING, None, None, set())
    assert job.lease.key != key
    assert sorted(halts(made)) == [(0, 1), (1, 1), (2, 1)]
    assert made.jobs.moving.count[Cause.INTERRUPTED] == 1
    made.halt_by_itself(workers[2])
    made.wait(1, beating=workers)
    assert (job.move_number, job.state, made.halted) == (2, State.RUNNING, set())


def test_one_that_has_yet_to_hear_that_its_job_moves_hears_it() -> None:
    made, workers = halting(deaf=1)
    made.halt_by_itself(workers[1])
    assert workers[1].job.state is State.MOVING
    assert moves(made) == []
    made.deaf.clear()
    made.jobs.attend(member(workers[1]), made.now)
    made.wait(1, beating=workers)
    assert (workers[0].job.state, made.halted) == (State.RUNNING, set())


def test_a_job_that_cannot_move_ends_when_a_worker_has_halted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "POSITIONS_MAX", 0)
    made = JobsHarness(SIZES)
    workers = made.running(2)
    made.halt_by_itself(workers[1])
    assert "had halted since it lost the service, and the job cannot move" in end_of(made).reason


# Memory.

JOB_BYTES = 32 * 16 * 5
"""Of a job of 32 workers with 16 slots: positions, and roles."""
ROOM_FOR_TWO = Limits(
    positions_tenant_bytes_max=2 * JOB_BYTES, positions_bytes_max=3 * JOB_BYTES, waiting_per_host_max=9
)


def held(made: JobsHarness, seen: set[Job]) -> int:
    """In all jobs that there are, and in those that were `seen`, which are remembered for a while."""
    seen |= {*made.jobs.all(), *made.jobs.roster.tokens._gone_jobs}
    return sum(len(worker.positions) + len(worker.roles) for job in seen for worker in job.members.workers.values())


def some_of(made: JobsHarness, name: str, tenant: str = "", count: int = 31) -> list[Worker]:
    """Of the 32 workers of a job, which waits for the others."""
    return [
        made.ask(**asking(rank, resumed(*[7] * 16), 32, job_name=name, tenant=tenant, attempt=f"{name}-{rank}"))
        for rank in range(count)
    ]


def test_what_jobs_say_that_wait_to_go_on_is_bounded_for_each_tenant_and_in_all() -> None:
    made, seen = JobsHarness(SIZES, ROOM_FOR_TWO), set[Job]()
    greedy = [some_of(made, name, "greedy") for name in ("first", "second")]
    with pytest.raises(Refusal) as caught:
        some_of(made, "third", "greedy")
    assert (caught.value.code, caught.value.retry_s) == ("RESOURCE_EXHAUSTED", 1.0)
    assert caught.value.text == (
        "job 'third' needs room for 2 KiB until it goes on, and jobs of tenant 'greedy' that wait have 5 of 5 KiB: its "
        "workers ask again until some of those go on"
    )
    assert 0 < held(made, seen) <= 2 * JOB_BYTES
    honest = some_of(made, "honest", "honest")
    with pytest.raises(Refusal, match=r"and jobs that wait have 7 of 7 KiB"):
        some_of(made, "one-more", "another")
    assert held(made, seen) <= 3 * JOB_BYTES
    assert made.ask(job_name="new", tenant="another").job.state is State.RUNNING, "one that begins needs no such room"
    for worker in (*greedy[0], *greedy[1], *honest):
        made.jobs.hung_up(worker, worker.call, made.now)
    assert held(made, seen) == 0, "as soon as they hang up"
    made.wait(11)
    assert some_of(made, "third", "greedy")


def test_a_worker_that_hung_up_says_its_positions_again() -> None:
    made, seen = JobsHarness(SIZES), set[Job]()
    first, second = (made.ask(**asking(rank, resumed(7, 8 - rank), 3, attempt=f"of {rank}")) for rank in (0, 1))
    made.jobs.hung_up(first, first.call, made.now)
    assert (first.positions, len(second.positions)) == (b"", 64)
    assert made.ask(**asking(0, resumed(7, 8), 3, attempt="of 0")) is first
    third = made.ask(**asking(2, resumed(7, 8), 3))
    assert [list(worker.roles[:2]) for worker in (first, second, third)] == [[0, 2], [0, 1], [0, 3]]
    for worker in (first, second, third):
        made.jobs.attend(member(worker), made.now)
    assert (third.job.state, held(made, seen)) == (State.RUNNING, 0)


def test_only_a_worker_of_a_job_that_goes_on_can_leave_positions_there() -> None:
    made, seen = JobsHarness(SIZES), set[Job]()
    begins = made.ask(**asking(0, None, attempt="mine"))
    made.jobs.hung_up(begins, begins.call, made.now)
    assert made.ask(**asking(0, resumed(*[7] * 16), attempt="mine")) is begins
    goes_on = made.ask(**asking(0, resumed(*[7] * 16), job_name="other", attempt="mine"))
    made.jobs.hung_up(goes_on, goes_on.call, made.now)
    longer = resumed(positions=bytes(4 * 512), slots=512)
    assert made.ask(**asking(0, longer, job_name="other", attempt="mine")) is goes_on
    assert held(made, seen) == 0


def test_a_job_that_is_over_holds_no_positions_of_workers_that_did_not_attend() -> None:
    made, seen = JobsHarness(SIZES), set[Job]()
    (worker, _) = go_on(made, [resumed(*[7] * 16)] * 2)
    made.ask(**asking(0, resumed(*[7] * 16), job_name="given-up", timeout_ms=1000))
    assert held(made, seen) == 2 * 16 * 5 + 16 * 4
    made.change("leaf", "it is gone")
    made.jobs.end("a-job", "", made.now)
    made.wait(20)
    assert worker.job.state is State.ENDING, "until the switch is back"
    assert held(made, seen) == 0
    made.change("leaf", "")
    made.wait(20)
    assert (made.jobs.all(), held(made, seen)) == ([], 0)


def test_a_worker_that_says_that_its_job_is_over_leaves_no_positions() -> None:
    made = JobsHarness(SIZES)
    ended = join.JobEnded(cause=join.JobEnded.ABORTED_BY_WORKER, reason="enough")
    assert made.ask(**asking(0, resumed(*[7] * 16, ended=ended))).positions == b""


# How often workers may ask for a move.

LIMITS = Limits(moves_asked_least=1, moves_asked_per_job=1)


def asked_moves(made: JobsHarness) -> int:
    return made.jobs.moving.count[Cause.INTERRUPTED]


def numbers(workers: Sequence[Worker]) -> int:
    return workers[0].job.move_number


def test_all_jobs_of_a_tenant_may_move_at_once_when_they_lose_the_service() -> None:
    made = JobsHarness()
    jobs = [running(made, f"job-{n}", 2, tenant="vision", slots=16) for n in range(24)]
    for workers in jobs:
        made.halt_by_itself(workers[0])
    made.wait(1, beating=[worker for workers in jobs for worker in workers])
    assert [numbers(workers) for workers in jobs] == [1] * 24
    assert made.halted == set()


def test_a_job_whose_workers_ask_for_moves_too_often_waits_and_others_do_not() -> None:  # R7.26
    made = JobsHarness(SIZES, LIMITS)
    workers = running(made, "greedy", 2, tenant="greedy", slots=16)
    honest = running(made, "honest", 2, tenant="honest", slots=16)
    for _ in range(5):
        made.halt_by_itself(workers[0])
    made.wait(1, beating=[*workers, *honest])
    assert numbers(workers) == 2, "one for the tenant, and one for its job"
    assert "it waits to move, for 1 s: workers of its tenant's jobs have asked for moves too often" in said_by(made)
    made.halt_by_itself(honest[0])
    made.wait(9.5, beating=[*workers, *honest])
    assert (numbers(workers), numbers(honest)) == (3, 1), "it has moved when its budget allowed that"
    assert (made.halted, said_by(made)) == (set(), {""})


def test_a_job_that_waits_to_move_moves_at_once_when_its_switch_is_lost() -> None:
    made = JobsHarness(switches=two(), limits=Limits(moves_asked_least=0, moves_asked_per_job=0))
    workers = running(made, slots=16)
    made.halt_by_itself(workers[0])
    made.wait(1, beating=workers)
    assert numbers(workers) == 0
    made.change(workers[0].job.lease.switch_name, "it is gone")
    made.wait(2, beating=workers)
    assert (numbers(workers), made.halted, ends(made)) == (1, set(), set())


def test_a_worker_that_halts_since_its_switch_is_lost_needs_no_budget() -> None:
    """There is no other place yet, so the job would not have moved by itself."""
    made = JobsHarness(SIZES, Limits(moves_asked_least=0, moves_asked_per_job=0))
    workers = running(made, slots=16)
    made.change("leaf", "it is gone")
    made.wait(1.5, beating=workers)
    made.halt_by_itself(workers[0])
    assert (workers[0].job.state, numbers(workers)) == (State.MOVING, 1)


def test_a_job_that_waits_too_long_to_move_ends_with_an_error_that_says_so() -> None:
    made = JobsHarness(SIZES, Limits(moves_asked_least=0, moves_asked_per_job=0, moves_asked_ms=3_600_000))
    workers = running(made, slots=16)
    made.halt_by_itself(workers[1])
    made.wait(29, beating=workers)
    assert ends(made) == set()
    made.wait(2, beating=workers)
    assert end_of(made).worker.rank == 1
    assert "could not move, since workers of its tenant's jobs have asked for moves too often" in end_of(made).reason


def said_by(made: JobsHarness) -> set[str]:
    return {job.waiting for job in report.report(made.jobs, {}, made.now).jobs}


def test_the_positions_of_a_job_are_compared_once_and_only_when_it_has_its_slots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[int] = []

    def counted(said: Sequence[bytes]) -> list[bytes]:
        compared.append(len(said))
        return roles_of(said)

    monkeypatch.setattr(asking_module, "roles_of", counted)
    made = JobsHarness(SIZES)
    (holder,) = made.running(1, job_name="holder", slots=512)
    workers = go_on(made, [resumed(), resumed()], attempt="mine")
    for rank in (0, 1) * 5:
        made.ask(**asking(rank, resumed(), attempt="mine"))
    made.wait(1)
    assert (workers[0].job.state, compared) == (State.QUEUED, [])
    made.leave(holder)
    assert (workers[0].job.state, compared) == (State.RUNNING, [2])
    for rank in (0, 1) * 5:
        made.ask(**asking(rank, resumed(), attempt="mine"))
    assert len(made.outputs(Grant)) == 12
    assert compared == [2]
    too_many = resumed(slots=1024, positions=bytes(4096))
    code, _ = made.refused(go_on(made, [too_many, too_many], job_name="never")[0])
    assert (code, compared) == ("RESOURCE_EXHAUSTED", [2])
