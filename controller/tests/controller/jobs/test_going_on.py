"""Jobs whose workers had another lease, which was lost, and go on here; and workers that have halted by themselves."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from wiresum import join
from wiresum.controller.driver import SwitchSizes
from wiresum.controller.jobs.job import Cause, State, Worker
from wiresum.controller.jobs.limits import Quota
from wiresum.controller.jobs.outputs import Grant, Refuse, RefuseForGood
from wiresum.controller.jobs.over import OVER_MAX
from wiresum.controller.jobs.positions import POSITIONS_MAX
from wiresum.join.constants import REASON_CHARACTERS_MAX
from wiresum_lab.doubles.controller import JobsHarness, member
from wiresum_lab.doubles.moving import SIZES, end_of, halting, halts, moves, positions, running

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
        "can_move": True,
        "threads_max": 2,
        "lanes_max": 90,
    }
    return usual | ({"resumed": said} if said is not None else {}) | fields


def go_on(made: JobsHarness, said: Sequence[join.Resumed], **fields: object) -> list[Worker]:
    return [made.ask(**asking(rank, each, len(said), **fields)) for rank, each in enumerate(said)]


def test_a_job_goes_on_with_the_lease_that_it_had_and_each_worker_hears_its_roles() -> None:
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


def test_a_worker_whose_grant_was_lost_hears_its_roles_again() -> None:
    made = JobsHarness(SIZES)
    go_on(made, [resumed(8), resumed(7)], attempt="x")
    first = made.outputs(Grant)[0].reply
    made.done.clear()
    made.ask(**asking(0, resumed(8), attempt="x"))
    (again,) = made.outputs(Grant)
    assert (again.reply, again.reply.roles[0]) == (first, 3)


@pytest.mark.parametrize("goes_on_first", [False, True])
def test_all_workers_of_a_job_go_on_or_none(goes_on_first: bool) -> None:
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
        (resumed(), {"can_move": False}, "resumed needs a worker that can move"),
        (resumed(slots=0, positions=b""), {}, "resumed.slots is 0"),
        (resumed(slots=1 << 31), {}, "resumed.slots is 2147483648"),
        (resumed(slots=POSITIONS_MAX // 256 + 1), {"world_size": 256}, "resumed.slots is 4097: it must be 1 to 4096"),
        (resumed(threads=3), {}, "resumed.threads is 3"),
        (resumed(threads=0), {}, "resumed.threads is 0"),
        (resumed(lanes=91), {}, "resumed.lanes is 91"),
        (resumed(positions=bytes(63)), {}, "resumed.positions has 63 bytes for 16 slots"),
        (resumed(positions=bytes(65)), {}, "resumed.positions has 65 bytes for 16 slots"),
        (resumed(reason="\n"), {}, "resumed.reason must be printable"),
        (resumed(reason="x" * (REASON_CHARACTERS_MAX + 1)), {}, "resumed.reason must be printable"),
        (resumed(ended=join.JobEnded(cause=join.JobEnded.SWITCH_LOST)), {}, "resumed.ended.cause is none"),
        (resumed(job_id=bytes(15)), {}, "resumed.job_id has 15 bytes: it must have 16"),
        (
            resumed(job_id=b"", ended=join.JobEnded(cause=join.JobEnded.WORKER_LEFT)),
            {},
            "resumed.job_id is empty: it says which job has ended",
        ),
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
    begins = made.ask(job_name="begins", slots=16, priority=5)
    goes_on = go_on(made, [resumed(slots=32, positions=bytes(128))] * 2)
    later = made.ask(job_name="later", slots=16)
    assert {each.job.state for each in (begins, later, *goes_on)} == {State.QUEUED}
    made.leave(holder)
    assert [each.job.state for each in (begins, goes_on[0], later)] == [State.RUNNING, State.QUEUED, State.RUNNING]
    made.leave(begins)
    made.leave(later)
    assert goes_on[0].job.state is State.RUNNING


def test_it_counts_among_its_tenants_jobs() -> None:
    made = JobsHarness(SIZES, quotas=[Quota("poor", jobs=1)])
    made.running(1, job_name="other", tenant="poor")
    (worker, _) = go_on(made, [resumed()] * 2, tenant="poor")
    assert worker.job.state is State.QUEUED
    assert "quota" in made.jobs.waiting.why(worker.job)


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
def test_all_hear_that_one_of_them_has_ended_the_job_also_those_who_ask_later(
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
    (record,) = made.jobs.history.find(None, "", 0)
    assert text in record.reason


def test_the_first_order_is_the_cause() -> None:
    made = JobsHarness(SIZES)
    made.ask(**asking(1, ended(reason="first")))
    made.ask(**asking(0, ended(reason="second")))
    assert all("rank 1 (" in reason and "first" in reason for _, reason in ends_heard(made))


def test_one_that_waits_and_then_ends_the_job_asks_again_with_that() -> None:
    made = JobsHarness(SIZES)
    made.ask(**asking(0, resumed(), attempt="x"))
    made.ask(**asking(0, ended(), attempt="x"))
    made.ask(**asking(1, resumed()))
    assert [rank for rank, _ in ends_heard(made)] == [0, 1]


def test_a_job_that_waits_for_slots_is_over_at_once() -> None:
    made = JobsHarness(SwitchSizes(slots=16, lanes_max=360, jobs_max=8))
    made.running(1, job_name="holder", slots=16)
    go_on(made, [resumed()] * 2, attempt="x")
    made.ask(**asking(1, ended(), attempt="x"))
    assert sorted(rank for rank, _ in ends_heard(made)) == [0, 1]
    made.wait(0.2)
    assert [job.name for job in made.jobs.all()] == ["holder"]


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


def test_one_that_did_not_hear_its_answer_hears_it_again() -> None:
    made = JobsHarness(SIZES)
    made.ask(**asking(1, ended()))
    for _ in range(2):
        made.ask(**asking(0, resumed(), 2, attempt="x"))
    assert [rank for rank, _ in ends_heard(made)] == [1, 0, 0]


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
def test_an_order_of_a_job_before_does_not_end_the_next_one_of_its_name(waits: bool, goes_on: bool) -> None:
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


@pytest.mark.parametrize("older", [0, 1])
def test_workers_of_two_jobs_of_one_name_and_shape_do_not_go_on_together(older: int) -> None:
    """One that does not say which is of an earlier version, and so of another job."""
    made = JobsHarness(SIZES)
    first, other = [resumed(job_id=b""), resumed()][:: 1 if older == 0 else -1]
    made.ask(**asking(0, first))
    for said in (other, resumed(job_id=SECOND)):
        code, text = made.refusal_of(lambda: made.ask(**asking(1, said)))  # noqa: B023
        assert code == "FAILED_PRECONDITION"
        assert "rank 1 goes on with another job than rank 0 (127.0.0.1, " in text
        assert "these are two jobs named 'a-job'" in text


def test_an_order_is_heard_by_workers_that_hold_the_job_s_lease_also_from_one_that_asks_anew() -> None:
    """It has asked once, and gave that up."""
    made = JobsHarness(SIZES)
    first, second = go_on(made, [resumed()] * 2)
    for worker in (first, second):
        made.jobs.attend(member(worker), made.now)
    made.done.clear()
    made.ask(**asking(1, ended(), attempt="another"))
    assert first.job.state is State.ENDING
    assert "NaN" in end_of(made).reason
    made.done.clear()
    made.ask(**asking(0, resumed(), attempt="another"))
    assert "NaN" in ends_heard(made)[0][1]


def test_only_one_with_the_job_s_key_ends_it() -> None:
    made = JobsHarness(SIZES)
    waiting = made.ask(**asking(0, resumed(), key=7))
    assert made.refusal_of(lambda: made.ask(**asking(1, ended(), key=8)))[0] == "PERMISSION_DENIED"
    assert waiting.job.ended is None


def test_no_number_of_ends_fills_the_memory() -> None:
    made = JobsHarness(SIZES)
    for number in range(OVER_MAX + 1):
        made.ask(**asking(0, ended(job_id=number.to_bytes(16, "big"))))
    made.done.clear()
    for number in (0, 1, OVER_MAX):
        made.ask(**asking(1, resumed(job_id=number.to_bytes(16, "big"))))
    assert len(ends_heard(made)) == 2


# Told as a member, while the job ends.


@pytest.mark.parametrize("order", ["abort", "leave"])
def test_an_order_for_a_job_that_has_lost_its_switch_is_not_taken_but_heard_when_its_workers_would_go_on(
    order: str,
) -> None:
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


def halt_by_itself(made: JobsHarness, worker: Worker, number: int = 0) -> None:
    said = join.Halted(move_number=number, positions=positions(slots=worker.job.slots), unasked=True)
    made.halted[worker.token] = said
    made.beat(worker)
    made.settle()


def test_a_worker_that_has_halted_by_itself_has_its_job_moved() -> None:
    made = JobsHarness(SIZES)
    workers = running(made)
    key = workers[0].job.key
    halt_by_itself(made, workers[1])
    made.wait(1, beating=workers)
    job = workers[0].job
    assert (job.state, job.moving, job.moved, made.halted) == (State.RUNNING, None, None, {})
    assert job.key != key
    assert sorted(halts(made)) == [(0, 1), (1, 1), (2, 1)]
    assert made.jobs.moving.count[Cause.INTERRUPTED] == 1
    halt_by_itself(made, workers[2], number=1)
    made.wait(1, beating=workers)
    assert (job.move_number, job.state, made.halted) == (2, State.RUNNING, {})


def test_one_that_has_yet_to_hear_that_its_job_moves_hears_it() -> None:
    made, workers = halting(deaf=1)
    halt_by_itself(made, workers[1])
    assert workers[1].job.state is State.MOVING
    assert moves(made) == []
    made.deaf.clear()
    made.jobs.attend(member(workers[1]), made.now)
    made.wait(1, beating=workers)
    assert (workers[0].job.state, made.halted) == (State.RUNNING, {})


def test_a_job_that_cannot_move_ends_when_a_worker_has_halted() -> None:
    made = JobsHarness(SIZES)
    workers = made.running(2)
    halt_by_itself(made, workers[1])
    assert "had halted since it lost the service, and the job cannot move" in end_of(made).reason


@pytest.mark.parametrize("number", [1, 5])
def test_the_number_of_a_move_that_never_was_ends_the_job(number: int) -> None:
    made = JobsHarness(SIZES)
    workers = running(made)
    halt_by_itself(made, workers[1], number)
    assert "says that it has halted, which it was not told to" in end_of(made).reason
