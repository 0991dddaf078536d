"""Sparsifiers: which coordinates they choose, what is sent, and the variance of the mean over workers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wiresum.compress as wc
from wiresum.compress.native import index_code_bytes, largest
from wiresum.compress.ratio import count_of

from .rig import SIGMAS, assert_variance_within_omega, exchange, vectors


@pytest.mark.parametrize(
    "compressor", [wc.RandK(0.2), wc.RandKSameSeed(0.2), wc.RandKPartition()], ids=lambda c: type(c).__name__
)
def test_the_variance_of_randk_is_the_declared_omega_exactly(compressor: wc.Compressor) -> None:
    values = [np.ones(60)] * 4
    squares = [
        np.mean([np.sum((row[0] - values[0]) ** 2) for row in exchange(compressor, values, step=step).own])
        for step in range(5)
    ]
    assert np.mean(squares) == pytest.approx(compressor.omega(60, 4) * 60)


def test_variance_falls_with_workers_for_independent_masks_only() -> None:
    values = [np.ones(60)] * 10

    def variance(compressor: wc.Compressor) -> float:
        return float(np.mean([np.sum((exchange(compressor, values, step=s).means[0] - 1) ** 2) for s in range(100)]))

    omega = 60 / 6 - 1
    assert variance(wc.RandKSameSeed(0.1)) == pytest.approx(omega * 60, rel=1e-6)
    assert variance(wc.RandK(0.1)) < 1.3 * omega * 60 / 10
    assert variance(wc.RandKPartition()) < 1e-20, "workers that agree lose nothing"


@pytest.mark.parametrize("size", [60, 61, 7, 2])
def test_a_partition_gives_each_coordinate_one_owner(size: int) -> None:
    owners = sum((row[0] != 0).astype(int) for row in exchange(wc.RandKPartition(), vectors(4, (size,))).own)
    assert (owners == 1).all()


@pytest.mark.parametrize(("size", "workers", "ratio"), [(123, 100, 0.01), (60, 4, 0.1), (61, 4, 0.25), (7, 4, 0.5)])
def test_a_partition_sends_the_part_that_is_asked_for(size: int, workers: int, ratio: float) -> None:
    """Each worker sends that many coordinates, if there are enough, and no coordinate is sent twice."""
    method = wc.RandKPartition(ratio)
    outcome = exchange(method, [np.ones(size)] * workers)
    owners = sum((row[0] != 0).astype(int) for row in outcome.own)
    asked = min(count_of(ratio, size) * workers, size)
    assert owners.sum() == asked
    assert owners.max() == 1
    assert_variance_within_omega(method, [np.ones(size)] * workers, steps=20)
    assert outcome.means[0].sum() == pytest.approx(size), "unbiased, and all values are alike"


@pytest.mark.parametrize("size", [60, 61])
def test_a_partition_has_the_variance_of_one_owner_for_each_coordinate(size: int) -> None:
    """E|mean - v|^2 = mean |v_i|^2 - |v|^2 (arXiv 2110.03300), which independent draws would not give."""
    values = vectors(4, (size,))
    mean = np.mean(values, axis=0)
    # Every worker is equally likely to own a coordinate, even though the dealt slots extend beyond the tensor.
    expected = np.mean([np.sum(value**2) for value in values]) - np.sum(mean**2)
    errors = [np.sum((exchange(wc.RandKPartition(), values, step=s).means[0] - mean) ** 2) for s in range(600)]
    assert abs(np.mean(errors) - expected) < SIGMAS * np.std(errors) / np.sqrt(600)


def test_a_partition_sends_no_index() -> None:
    aggregator = wc.InProcess(4)
    exchange(wc.RandKPartition(), vectors(4), aggregator=aggregator)
    assert aggregator.traffic.sent_bytes == 2 + 60 / 4 * 4, "an exponent, and a quarter of the values"


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=30), st.integers(1, 40))
def test_the_largest_magnitudes_are_chosen_and_ties_go_to_the_lower_index(numbers: list[int], count: int) -> None:
    values = np.array(numbers, float)
    expected = sorted(sorted(range(len(values)), key=lambda at: (-abs(values[at]), at))[:count])
    assert largest(values, count).tolist() == expected


def test_topk_contracts_as_declared() -> None:
    compressor = wc.TopK(0.1)
    assert compressor.contraction(60) == 0.1
    for seed in range(20):
        value = vectors(1, seed=seed)[0]
        kept = exchange(compressor, [value]).own[0][0]
        assert np.count_nonzero(kept) == 6
        assert np.sum((kept - value) ** 2) <= 0.9 * np.sum(value**2)
    flat = np.ones(60)
    assert np.sum((exchange(compressor, [flat]).own[0][0] - flat) ** 2) == pytest.approx(0.9 * 60), "the bound is tight"


def test_topk_sends_k_indices_as_a_code_and_the_values_of_the_union() -> None:
    aggregator = wc.InProcess(4)
    outcome = exchange(wc.TopK(0.1), vectors(4, dtype=np.float32), aggregator=aggregator)
    union = np.count_nonzero(np.any([row[0] for row in outcome.own], axis=0))
    indices = 2 + index_code_bytes(6, 60)
    assert 6 < union < 24, "otherwise it would be no test"
    assert aggregator.traffic.sent_bytes == indices + 4 * union
    assert aggregator.traffic.received_bytes == 4 * indices + 4 * union


def test_a_threshold_sends_the_values_that_reach_it() -> None:
    values = [np.array([0.1, -0.5, 0.4, 0.5]), np.array([0.1, 0.2, 0.3, 0.4])]
    outcome = exchange(wc.Threshold(0.5), values)
    assert outcome.own[0][0].tolist() == [0, -0.5, 0, 0.5]
    assert outcome.own[1][0].tolist() == [0, 0, 0, 0]
    assert outcome.means[0].tolist() == [0, -0.25, 0, 0.25]


def test_an_adaptive_threshold_is_a_fraction_of_the_largest_value() -> None:
    values = [np.array([0.1, -0.5, 0.4, 1.0]), np.array([-0.1, 0.05, 0.02, 0.0]), np.zeros(4)]
    own = np.stack([row[0] for row in exchange(wc.AdaptiveThreshold(), values).own])
    assert own == pytest.approx(np.array([[0, -0.5, 0, 1.0], [-0.1, 0.05, 0, 0], [0, 0, 0, 0]]))
    assert np.flatnonzero(exchange(wc.AdaptiveThreshold(0.4), values[:1]).own[0][0]).tolist() == [1, 2, 3]


def test_an_adaptive_threshold_sends_at_least_the_largest_value_unless_all_are_zero() -> None:
    for value in vectors(5):
        outcome = exchange(wc.AdaptiveThreshold(1.0), [value])
        assert np.flatnonzero(outcome.means[0]).tolist() == [np.abs(value).argmax()]
        contraction = wc.AdaptiveThreshold().contraction(60)
        assert contraction == 1 / 60
        assert np.sum((outcome.means[0] - value) ** 2) <= (1 - contraction) * np.sum(value**2)
    aggregator = wc.InProcess(1)
    exchange(wc.AdaptiveThreshold(), [np.zeros(60)], aggregator=aggregator)
    assert aggregator.traffic.sent_bytes == 8 + 2 + 4, "the code's length, an exponent and a count"


def test_composition_multiplies_the_constants() -> None:
    inner = wc.DIANA().omega(18, 1)
    assert inner is not None
    assert wc.QuantisedRandK(0.3, wc.DIANA()).omega(60, 5) == pytest.approx((inner + 1) * (60 / 18) - 1)
