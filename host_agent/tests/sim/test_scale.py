"""A small sweep of the study of scale (docs/scale.md): rates, losses, trees and seeds. Its bounds are in virtual time,
so no machine's load decides."""

from __future__ import annotations

import statistics

import pytest

from wiresum_lab.benchmarks.scale.case import Case, Outcome, simulate

TREES = {8: (), 128: (16,)}


def sweep(*, workers: int, gbit: float, loss: float, seed: int) -> Outcome:
    """Of a tensor that is large enough for its rate: a sixteenth of its packets are in flight at most."""
    megabytes = max(2.0, gbit / 50)
    return simulate(Case(workers=workers, racks=TREES[workers], gbit=gbit, loss=loss, megabytes=megabytes, seed=seed))


@pytest.mark.parametrize("gbit", [1, 10, 100, 400, 800])
def test_without_loss_a_sum_is_near_the_bound_at_any_rate(gbit: float) -> None:
    outcome = sweep(workers=8, gbit=gbit, loss=0, seed=1)
    assert outcome.retransmissions == outcome.questions == outcome.overflow == 0
    assert outcome.of_bound >= (0.95 if gbit <= 100 else 0.85)


def test_workers_in_racks_take_little_longer_than_eight_at_a_switch() -> None:
    few, many = (sweep(workers=workers, gbit=100, loss=0, seed=1) for workers in TREES)
    assert many.seconds <= 1.1 * few.seconds


@pytest.mark.parametrize(("loss", "share"), [(1e-4, 0.95), (1e-3, 0.93), (1e-2, 0.8)])
@pytest.mark.parametrize("gbit", [10, 100])
def test_loss_costs_little_at_any_rate(gbit: float, loss: float, share: float) -> None:
    """In the median of five seeds: one of them may lose nothing, or the last packet again and again."""
    outcomes = [sweep(workers=8, gbit=gbit, loss=loss, seed=seed) for seed in range(5)]
    assert sum(outcome.lost for outcome in outcomes) > 0
    assert statistics.median(outcome.of_bound for outcome in outcomes) >= share


def test_a_loss_below_a_switch_does_not_fill_its_link_to_the_parent() -> None:
    """Of 16 workers that wait for the same RESULT one asks for all."""
    seeds = (*range(20), 274)  # the last is the slowest of 300
    sums = [Case(workers=128, racks=TREES[128], gbit=100, loss=1e-3, megabytes=0.256, seed=seed) for seed in seeds]
    lossless = simulate(Case(workers=128, racks=TREES[128], gbit=100, loss=0, megabytes=0.256, seed=0))
    assert max(simulate(case).seconds for case in sums) <= 3 * lossless.seconds
