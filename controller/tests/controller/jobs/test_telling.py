"""A switch that turns out to hold fewer jobs than the controller believed."""

from __future__ import annotations

from wiresum.controller.driver import Reconciled
from wiresum.controller.jobs.job import State
from wiresum.controller.jobs.outputs import Reconcile
from wiresum_lab.doubles.controller import JobsHarness


def test_joins_fail_as_unavailable_if_another_controller_used_keys_at_the_switch() -> None:
    harness = JobsHarness()
    harness.switch_answers = False
    worker = harness.ask()
    harness.change("leaf", "it was away")
    harness.change("leaf", "")
    asked = harness.outputs(Reconcile)[-1]
    (entry,) = asked.entries
    found = Reconciled(added=frozenset({entry.job}), keys_reserved=entry.keys_reserved)
    harness.switch_answers = True
    harness.jobs.reconciled(asked, found, harness.now)
    harness.settle()
    code, text = harness.refused(worker)
    assert code == "UNAVAILABLE", "it is asked for again"
    assert "another controller has programmed leaf meanwhile, and may have used its key" in text
    (again,) = harness.ask_all(1)
    assert again.job.state is State.RUNNING
    assert again.job.lease.keys_reserved > entry.keys_reserved


def test_an_entry_that_somebody_removed_is_restored_and_the_job_runs_on() -> None:
    harness = JobsHarness()
    (worker,) = harness.running(1)
    harness.change("leaf", "")
    asked = harness.outputs(Reconcile)[-1]
    harness.jobs.reconciled(asked, Reconciled(added=frozenset({worker.job.lease.number})), harness.now)
    assert worker.job.state is State.RUNNING
