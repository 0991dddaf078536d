"""What fails while a job moves: workers that die, leave, lie or do not answer, and switches that do not take it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from wiresum import join
from wiresum.controller.driver import Reconciled
from wiresum.controller.jobs.job import State
from wiresum.controller.jobs.keys import Keys, KeySequence
from wiresum.controller.jobs.limits import Limits
from wiresum.controller.jobs.outputs import Admit, GoOn, Grant
from wiresum_lab.doubles.controller import JobsHarness, member
from wiresum_lab.doubles.moving import (
    SIZES,
    being_admitted,
    end_of,
    ends,
    halting,
    halts,
    moves,
    positions,
    restart,
    running,
    said_of,
    two,
)


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
def test_positions_that_cannot_be_end_the_job_and_name_the_worker(said: Sequence[bytes], why: str) -> None:  # R7.23
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


def test_what_a_worker_said_before_it_heard_of_a_second_halt_does_not_count() -> None:  # R7.22
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
    made, workers = halting(deaf=1)
    made.wait(29, beating=workers)
    assert ends(made) == set()
    assert "waits for rank 1 (127.0.0.1, process 1001 on 'host-1') to halt" in said_of(made)
    made.wait(2, beating=workers)
    assert end_of(made).worker.rank == 1
    assert "it has not halted for 30 s, so the job cannot move (leaf was started anew" in end_of(made).reason


def test_a_worker_whose_heartbeats_are_late_is_given_longer_to_halt() -> None:
    """Something holds its interpreter's lock, and its connection stands."""
    made, workers = halting(deaf=1)
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
    made, workers = halting(deaf=1)
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


def test_a_job_that_a_worker_has_left_ends_for_that_also_when_its_switch_is_lost() -> None:
    made = JobsHarness(SIZES)
    workers = running(made)
    made.leave(workers[1])
    restart(made, "leaf")
    assert (end_of(made).cause, end_of(made).worker.rank) == (join.JobEnded.WORKER_LEFT, 1)


def test_a_job_that_a_worker_leaves_before_another_switch_has_it_stays() -> None:
    made, workers, admit = being_admitted()
    made.switch_answers = True
    made.leave(workers[1])
    made.jobs.admitted("second", admit.entry.job, made.now)
    made.settle()
    made.wait(2, beating=[workers[0], workers[2]])
    assert (workers[0].job.state, halts(made), ends(made)) == (State.RUNNING, [], set())
    assert made.switches[1].pool.slots_free == 512


def test_a_service_that_stood_still_gives_its_workers_time_to_halt_and_to_go_on() -> None:
    made, workers = halting(deaf=1)
    made.wait(20, beating=workers)
    made.now += 100
    made.wait(9, beating=workers)
    assert ends(made) == set()
    made.obey(workers[1], join.JobEvent(halt=join.Halt(move_number=1)))
    made.settle()
    made.wait(20, beating=workers)
    made.now += 100
    made.wait(9, beating=workers)
    assert ends(made) == set()
    made.wait(2, beating=workers)
    assert "it has not gone on after the job has moved" in end_of(made).reason


def test_a_job_does_not_move_when_the_keys_are_needed_for_new_jobs() -> None:
    keys = Keys(KeySequence(bytes(16), bits=16))
    made = JobsHarness(switches=two(), keys=keys)
    workers = running(made)
    keys.skip(2**16 - 1 - Limits().waiting_max)
    restart(made, "first")
    made.wait(31, beating=workers)
    assert "all keys have been used" in end_of(made).reason


def test_a_job_whose_workers_all_leave_in_the_middle_has_completed() -> None:
    made, workers = halting(deaf=1)
    for worker in workers:
        made.leave(worker)
    assert [ended.outcome for ended in made.jobs.history.page(None).jobs] == ["completed"]
    assert (made.jobs.all(), made.slots_free) == ([], 512)


def test_a_worker_that_was_cut_off_hears_of_the_move_when_it_comes_back() -> None:  # R7.22
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
    assert [output.worker.rank for output in made.outputs(GoOn)] == [0, 1, 2]
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
    assert len(made.outputs(GoOn)) == 6, "once on each stream"
    assert "it has moved, and waits for rank 1" in said_of(made)
    made.deaf.clear()
    made.jobs.broken(workers[1], workers[1].stream, made.now)
    made.jobs.attend(before, made.now)
    made.beat(workers[1])
    made.settle()
    assert [output.worker.rank for output in made.outputs(GoOn)][6:] == [1]
    made.wait(60, beating=workers)
    assert (ends(made), workers[1].job.members.going_on) == (set(), None)


def test_a_worker_that_has_gone_on_is_not_told_again() -> None:
    made, workers = halting(deaf=1)
    made.obey(workers[1], join.JobEvent(halt=join.Halt(move_number=1)))
    made.settle()
    made.jobs.attend(member(workers[0]), made.now)
    made.jobs.beat(workers[0], 1, made.now, join.Halted(move_number=1, positions=bytes(4 * 256)))
    made.settle()
    assert [output.worker.rank for output in made.outputs(GoOn)] == [0, 1, 2]


def test_a_switch_that_does_not_take_the_job_is_asked_again_and_the_job_runs_on() -> None:
    made, workers, admit = being_admitted()
    made.switch_answers = True
    made.jobs.refused("second", admit.entry.job, "table admit is full", made.now)
    made.settle()
    assert "second did not take it: table admit is full" in said_of(made)
    assert (halts(made), workers[0].job.lease.switch_name) == ([], "first")
    made.wait(0.8, beating=workers)
    assert len(made.outputs(Admit)) == 1, "not at once"
    made.wait(0.5, beating=workers)
    assert workers[0].job.lease.switch_name == "second"
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
    assert (workers[0].job.state, workers[0].job.lease.switch_name, ends(made)) == (State.RUNNING, "second", set())
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
    first, second = (made.ask(rank=rank, world_size=2, attempt="mine") for rank in range(2))
    made.jobs.attend(member(first), made.now)
    made.jobs.hung_up(second, second.call, made.now)
    restart(made, "leaf")
    assert (first.job.state, halts(made)) == (State.MOVING, [(0, 1)])
    made.ask(rank=1, world_size=2, attempt="mine")
    assert len([grant for grant in made.outputs(Grant) if grant.worker is second]) == 2
    made.jobs.attend(member(second), made.now)
    made.settle()
    assert (first.job.state, halts(made)) == (State.RUNNING, [(0, 1), (1, 1)])
