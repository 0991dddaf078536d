"""Tensors with scattered nonzero elements: all workers refine the union to the same small blocks, and the sums equal
the dense integer reference bit for bit.

pytest host_agent/tests/sim/test_scattered.py --seed 1234         repeats a seed
"""

from __future__ import annotations

import pytest

from wiresum.join.constants import HEADER_BYTES

from .reference import sum_region
from .sparse_scenarios import make_scattered_scenario
from .test_sparse import large_scenario, run_and_check


def test_every_scattered_collective_equals_the_dense_reference(scattered_seed: int) -> None:  # R6.7
    run_and_check(make_scattered_scenario(scattered_seed), scattered_seed)


@pytest.mark.parametrize("loss", [0.0, 0.01])
@pytest.mark.parametrize(
    ("placement", "density", "fraction_max"),
    # Counts have 3 bits on a few levels; the union of 4 workers' independent elements is four times as large.
    [("aligned", 0.001, 0.02), ("aligned", 0.01, 0.06), ("independent", 0.001, 0.04), ("independent", 0.01, 0.16)],
)
def test_scattered_elements_cost_little_more_than_their_counts_and_values(
    placement: str, density: float, fraction_max: float, loss: float
) -> None:
    report = run_and_check(large_scenario(placement, density, grain=1, loss=loss), 0)
    whole = 4 * 1500 * (HEADER_BYTES + 4 * 64)
    assert {stats.refined for stats in report.sparse} == {1}
    assert report.bytes_sent < fraction_max * whole * (1.1 if loss else 1.0)


def test_the_saved_bytes_in_the_statistics_were_not_sent() -> None:
    report = run_and_check(large_scenario("independent", 0.01, grain=1), 0)
    whole = 4 * 1500 * (HEADER_BYTES + 4 * 64)
    exponents = 4 * 64 * HEADER_BYTES  # a header for the exponent of each slot in use
    assert 0 <= report.bytes_sent - (whole - sum(stats.bytes_saved for stats in report.sparse)) <= exponents


def test_a_dense_tensor_is_not_examined_in_finer_blocks() -> None:
    report = run_and_check(large_scenario("all_dense", 1.0, calls=4), 0)
    assert {(stats.prologues, stats.refinements) for stats in report.sparse} == {(1, 0)}


def test_votes_detect_that_a_dense_tensor_has_become_scattered() -> None:
    scenario = large_scenario("all_dense", 1.0, calls=3)
    scattered = large_scenario("aligned", 0.01, calls=8, grain=1)
    for call in scattered.calls:
        call.submit_at = [at + 30_000_000_000 for at in call.submit_at]
    scenario.config.vote_lag_chunks = 1500
    scenario.calls += scattered.calls
    report = run_and_check(scenario, 0)
    # One collective asked in vain; then two dense ones, and two scattered ones until the votes counted.
    assert {(stats.prologues, stats.refined, stats.whole) for stats in report.sparse} == {(7, 6, 4)}


def test_a_misleading_sample_costs_one_round_trip_and_no_wrong_sum() -> None:
    """Elements are sparse in the first collective's sample, and dense everywhere else."""
    scenario = large_scenario("all_dense", 1.0, calls=6)
    stride = 1500 // 32
    for call in scenario.calls:
        buffers = call.regions[0]
        contributions = []
        for source in buffers.sources:
            assert source is not None
            for chunk in range(0, 1500, stride):
                source.array[chunk * 64 + 1 : (chunk + 1) * 64] = 0
            contributions.append(source.array.copy())
        call.originals = [(source, source.array.copy()) for source, _ in call.originals]
        divisor = 4.0 if call.average else 1.0
        buffers.expected = sum_region(call.format, contributions, buffers.elements, 64, 4, divisor)
    report = run_and_check(scenario, 0)
    assert {(stats.prologues, stats.refinements, stats.refined) for stats in report.sparse} == {(1, 1, 0)}
