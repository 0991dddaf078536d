"""What follows from a switch that holds less of the jobs than it was believed to."""

from __future__ import annotations

from wiresum.controller.driver import Reconciled
from wiresum.controller.jobs.job import State
from wiresum.controller.jobs.outputs import Reconcile
from wiresum_lab.doubles.controller import JobsBench as Bench


def test_a_job_that_was_being_admitted_when_another_controller_used_keys_there_is_asked_for_again() -> None:
    bench = Bench()
    bench.switch_answers = False
    worker = bench.ask()
    bench.change("leaf", "it was away")
    bench.change("leaf", "")
    asked = bench.outputs(Reconcile)[-1]
    (entry,) = asked.entries
    found = Reconciled(added=frozenset({entry.job}), keys_reserved=entry.keys_reserved)
    bench.switch_answers = True
    bench.jobs.reconciled(asked, found, bench.now)
    bench.settle()
    code, text = bench.refused(worker)
    assert code == "UNAVAILABLE", "it is asked for again"
    assert "another controller has programmed leaf meanwhile, and may have used its key" in text
    (again,) = bench.ask_all(1)
    assert again.job.state is State.RUNNING
    assert again.job.keys_reserved > entry.keys_reserved


def test_an_entry_that_somebody_removed_is_put_back_and_the_job_goes_on() -> None:
    bench = Bench()
    (worker,) = bench.running(1)
    bench.change("leaf", "")
    asked = bench.outputs(Reconcile)[-1]
    bench.jobs.reconciled(asked, Reconciled(added=frozenset({worker.job.number})), bench.now)
    assert worker.job.state is State.RUNNING
