"""The budget of moves that workers ask for."""

from __future__ import annotations

import pytest

from wiresum import join
from wiresum.controller.jobs.asked_moves import AskedMoves
from wiresum.controller.jobs.cluster import Cluster
from wiresum.controller.jobs.limits import Limits
from wiresum_lab.doubles.controller import JobsHarness
from wiresum_lab.doubles.moving import running

LIMITS = Limits(moves_asked_least=2, moves_asked_per_job=3, moves_asked_ms=1000)


def taken(asked: AskedMoves, tenant: str, jobs: int, now: float) -> int:
    count = 0
    while asked.take(tenant, jobs, now):
        count += 1
    return count


@pytest.mark.parametrize(("jobs", "moves"), [(0, 2), (1, 5), (10, 32)])
def test_a_budget_grows_with_the_jobs_of_the_tenant(jobs: int, moves: int) -> None:
    assert taken(AskedMoves(LIMITS), "vision", jobs, 0.0) == moves


def test_one_more_comes_back_at_a_time_and_no_more_than_was_spent() -> None:
    asked = AskedMoves(LIMITS)
    assert taken(asked, "vision", 1, 0.0) == 5
    assert [taken(asked, "vision", 1, now) for now in (0.9, 1.0, 3.0, 3.5, 1000.0)] == [0, 1, 2, 0, 5]


def test_tenants_have_budgets_of_their_own_and_only_spenders_are_remembered() -> None:
    asked = AskedMoves(LIMITS)
    for n in range(1000):
        assert taken(asked, f"tenant-{n}", 0, 10.0 * n) == 2
    assert len(asked) == 1


def test_a_job_that_waits_for_the_budget_costs_no_look_at_other_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its workers, thousands perhaps, say so with each heartbeat."""
    made = JobsHarness(limits=Limits(moves_asked_least=0, moves_asked_per_job=0))
    (worker,) = running(made, "a-job", 1)
    monkeypatch.setattr(Cluster, "holders", lambda _: pytest.fail("it looks at all jobs"))
    made.jobs.beat(worker, 1, made.now, join.Halted(unasked=True))
    assert made.jobs.moving.describe(worker.job, made.now).startswith("it waits to move")
