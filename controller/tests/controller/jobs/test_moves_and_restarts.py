"""A service that is killed while a job moves, and the next one that goes on."""

from __future__ import annotations

import pytest

from wiresum import join
from wiresum.controller.jobs import report
from wiresum.controller.jobs.moving import MOVE_NUMBER_MAX
from wiresum.controller.jobs.outputs import Admit, Evict, GoOn, Halt, Save
from wiresum.controller.store import Store
from wiresum_lab.doubles.controller import JobsHarness, member
from wiresum_lab.doubles.moving import (
    SIZES,
    end_of,
    ends,
    positions,
    restart,
    running,
)

NUMBERS_NOBODY_GAVE = (2, 9, MOVE_NUMBER_MAX - 1, MOVE_NUMBER_MAX)
"""To a job that has moved once."""


@pytest.mark.parametrize("unasked", [False, True])
@pytest.mark.parametrize("number", NUMBERS_NOBODY_GAVE)
@pytest.mark.parametrize("restarts", [0, 1, 2])
def test_a_number_that_no_service_gave_ends_the_job_also_after_a_restart(  # R7.23
    store: Store, restarts: int, number: int, *, unasked: bool
) -> None:
    made = JobsHarness(SIZES, store=store)
    workers = running(made, slots=16)
    restart(made, "leaf")
    made.wait(0.3, beating=workers)
    for _ in range(restarts):
        store.begin()
        made = JobsHarness(SIZES, store=store)
        workers = [made.jobs.attend(member(worker), made.now) for worker in workers]
    made.jobs.beat(workers[1], 1, made.now, join.Halted(move_number=number, positions=positions(), unasked=unasked))
    made.settle()
    assert f"says that it has halted, which it was not told to (move {number})" in end_of(made).reason
    assert end_of(made).worker.rank == 1
    assert {job.move_number for job in made.jobs.all()} <= {1}


def test_a_worker_that_has_gone_on_after_a_restart_cannot_say_that_it_had_halted(store: Store) -> None:
    before = JobsHarness(SIZES, store=store)
    workers = running(before, slots=16)
    restart(before, "leaf")
    before.wait(0.3, beating=workers)
    after = JobsHarness(SIZES, store=store)
    restored = [after.jobs.attend(member(worker), after.now) for worker in workers]
    for worker in restored:
        after.beat(worker)
    after.jobs.beat(restored[2], 1, after.now, join.Halted(move_number=1, positions=positions()))
    after.settle()
    assert "says that it has halted, which it was not told to" in end_of(after).reason


@pytest.mark.parametrize("restarted", [False, True])
def test_a_job_whose_move_numbers_are_used_up_does_not_move_any_more(store: Store, *, restarted: bool) -> None:
    made = JobsHarness(SIZES, store=store)
    workers = running(made, slots=16)
    workers[0].job.move_number = MOVE_NUMBER_MAX - 1
    made.deaf = {workers[1].token}
    restart(made, "leaf")
    assert workers[0].job.move_number == MOVE_NUMBER_MAX
    if restarted:
        store.begin()
        made = JobsHarness(SIZES, store=store)
        workers = [made.jobs.attend(member(worker), made.now) for worker in workers]
        made.settle()
    else:
        made.deaf = set()
        made.obey(workers[1], join.JobEvent(halt=join.Halt(move_number=MOVE_NUMBER_MAX)))
        made.wait(0.3, beating=workers)
        assert ends(made) == set()
        restart(made, "leaf")
    assert end_of(made).cause == join.JobEnded.SWITCH_LOST
    assert report.report(made.jobs, {}, made.now).jobs[0].moves == MOVE_NUMBER_MAX


def test_moves_are_written_down_before_anybody_hears_of_them(store: Store) -> None:  # R7.19, R7.21
    made = JobsHarness(SIZES, store=store)
    running(made)
    restart(made, "leaf")
    order = [output for output in made.done if isinstance(output, Save | Halt | GoOn | Evict | Admit)]
    kinds = [type(output) for output in order]
    assert kinds.index(Save) < kinds.index(Halt)
    states = [output.record.state for output in order if isinstance(output, Save)]  # type: ignore[union-attr]
    assert states[0] == "moving"
    last = max(n for n, output in enumerate(order) if isinstance(output, Save) and output.record.state == "running")  # type: ignore[union-attr]
    assert last < kinds.index(GoOn)
