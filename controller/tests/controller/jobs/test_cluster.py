"""Switches that become unreachable, come back, or are restarted."""

from __future__ import annotations

import pytest

from wiresum import join
from wiresum.controller.driver import DriverError, JobCounters, OutdatedError, SwitchSizes
from wiresum.controller.jobs.cluster import BEING_MADE_READY
from wiresum.controller.jobs.job import State
from wiresum.controller.jobs.outputs import Reconcile, Tell
from wiresum.controller.jobs.report import report
from wiresum_lab.doubles.controller import JobsHarness, switch


def test_a_job_runs_on_at_an_unreachable_switch_while_its_rounds_advance() -> None:  # R7.14
    harness = JobsHarness()
    workers = harness.running()
    harness.change("leaf", "no answer")
    for rounds in range(2, 8):
        harness.wait(10, beating=workers, round_newest=rounds)
    assert harness.outputs(Tell) == []
    harness.wait(19, beating=workers, round_newest=7)
    assert harness.outputs(Tell) == []
    harness.wait(2, beating=workers, round_newest=7)
    told = harness.outputs(Tell)
    assert {tell.ended.cause for tell in told} == {join.JobEnded.SWITCH_LOST}
    assert "leaf is lost: no answer, and for 30 s the job has made no progress" in told[0].ended.reason


def test_a_silent_worker_is_named_even_if_its_switch_is_unreachable() -> None:
    harness = JobsHarness()
    workers = harness.running()
    harness.change("leaf", "no answer")
    harness.wait(31, beating=workers[:1], round_newest=1)
    (told, *_) = harness.outputs(Tell)
    assert told.ended.cause == join.JobEnded.SWITCH_LOST
    assert "no progress; of rank 1 (" in told.ended.reason and "nothing has been heard either" in told.ended.reason
    assert "rank 0" not in told.ended.reason


def test_a_switch_that_comes_back_is_reconciled_with_the_running_jobs() -> None:
    harness = JobsHarness()
    running, ended = harness.running(job_name="running"), harness.running(job_name="ended")
    harness.switch_answers = False
    harness.change("leaf", "no answer")
    harness.abort(ended[0], "done")
    for worker in ended:
        harness.jobs.told(worker, harness.now)
    harness.jobs.evict_failed("leaf", ended[0].job.lease.number, harness.now)
    harness.switch_answers = True
    harness.change("leaf", "")
    (reconcile,) = harness.outputs(Reconcile)
    assert reconcile.entries == (running[0].job.lease.root.entry,)
    assert [job.name for job in harness.jobs.all()] == ["running"], "the reconciliation has removed the other one"


def test_a_failed_reconciliation_is_tried_again() -> None:
    harness = JobsHarness()
    harness.switch_answers = False
    harness.change("leaf", "")
    harness.jobs.reconcile_failed("leaf", DriverError("no room"), harness.now)
    waiting = harness.ask()
    harness.wait(0.8)
    assert len(harness.outputs(Reconcile)) == 1 + 1
    harness.switch_answers = True
    harness.wait(0.4)
    assert waiting.job.state is State.RUNNING


@pytest.mark.parametrize(("failure", "state"), [(DriverError, "unreachable"), (OutdatedError, "outdated")])
def test_why_a_switch_is_not_ready_is_said_until_it_is(failure: type[DriverError], state: str) -> None:
    harness = JobsHarness()
    harness.switch_answers = False
    harness.change("leaf", "")
    (found,) = report(harness.jobs, {}, harness.now).switches
    assert (found.state, found.trouble) == ("unreachable", BEING_MADE_READY)
    harness.jobs.reconcile_failed("leaf", failure("it has another program"), harness.now)
    waiting = harness.ask()
    (job,) = report(harness.jobs, {}, harness.now).jobs
    assert "leaf cannot be used now (it has another program)" in job.waiting
    harness.wait(1.1)
    (found,) = report(harness.jobs, {}, harness.now).switches
    assert (found.state, found.trouble) == (state, "it has another program"), "while it is tried again, too"
    harness.switch_answers = True
    harness.change("leaf", "")
    (found,) = report(harness.jobs, {"leaf": (JobCounters(), {})}, harness.now).switches
    assert (found.state, found.trouble) == ("ready", "")
    assert waiting.job.state is State.RUNNING


def test_the_name_of_a_job_at_a_switch_of_another_release_is_free_once_its_workers_know() -> None:
    """Nobody can remove the job there until that switch is started again."""
    harness = JobsHarness(switches=[switch("left", SwitchSizes(64, 360, 8)), switch("right", SwitchSizes(64, 360, 8))])
    workers = harness.running(slots=64)
    harness.switch_answers = False
    harness.change("left", "")
    harness.jobs.reconcile_failed("left", OutdatedError("it has another program"), harness.now)
    for worker in workers:
        harness.leave(worker)
    harness.jobs.evict_failed("left", workers[0].job.lease.number, harness.now)
    harness.wait(0.3)
    harness.switch_answers = True
    again = harness.ask(world_size=1, slots=64)
    assert (again.job.state, again.job.lease.switch_name) == (State.RUNNING, "right")


def test_joins_fail_as_unavailable_if_the_switch_is_lost_during_admission() -> None:
    harness = JobsHarness()
    harness.switch_answers = False
    worker = harness.ask()
    harness.change("leaf", "no answer")
    harness.jobs.refused("leaf", worker.job.lease.number, "broken pipe", harness.now)
    harness.settle()
    code, text = harness.refused(worker)
    assert code == "UNAVAILABLE"
    assert "leaf was lost when it was given job 'a-job': no answer" in text
