"""A small sweep of the study of scale (docs/scale.md): rates and trees. What a loss costs is in test_recovery.py. The
bounds are in virtual time, so no machine's load decides."""

from __future__ import annotations

import pytest

from wiresum_lab.benchmarks.scale.case import Case, Outcome, simulate

TREES = {8: (), 128: (16,)}


def sweep(*, workers: int, gbit: float) -> Outcome:
    """Of a tensor that is large enough for its rate: a sixteenth of its packets are in flight at most."""
    return simulate(Case(workers=workers, racks=TREES[workers], gbit=gbit, megabytes=max(2.0, gbit / 50), seed=1))


@pytest.mark.parametrize("gbit", [1, 10, 100, 400, 800])
def test_without_loss_a_sum_is_near_the_bound_at_any_rate(gbit: float) -> None:
    outcome = sweep(workers=8, gbit=gbit)
    assert outcome.retransmissions == outcome.questions == outcome.overflow == 0
    assert outcome.of_bound >= (0.95 if gbit <= 100 else 0.85)


def test_workers_in_racks_take_little_longer_than_eight_at_a_switch() -> None:
    few, many = (sweep(workers=workers, gbit=100) for workers in TREES)
    assert many.seconds <= 1.1 * few.seconds


def test_a_loss_below_a_switch_does_not_fill_its_link_to_the_parent() -> None:
    """Of 16 workers that wait for the same RESULT one asks for all."""
    seeds = (*range(20), 274)  # the last is the slowest of 300
    sums = [Case(workers=128, racks=TREES[128], gbit=100, loss=1e-3, megabytes=0.256, seed=seed) for seed in seeds]
    lossless = simulate(Case(workers=128, racks=TREES[128], gbit=100, loss=0, megabytes=0.256, seed=0))
    assert max(simulate(case).seconds for case in sums) <= 3 * lossless.seconds
