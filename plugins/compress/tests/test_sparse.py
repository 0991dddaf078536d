"""Sparsifiers: what they choose, what travels, and what the mean over workers is worth."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wiresum.compress import (
    DIANA,
    THC,
    AdaptiveThreshold,
    Compressor,
    GTopK,
    InProcess,
    PowerSGD,
    QuantisedRandK,
    Quantiser,
    RandK,
    RandKPartition,
    RandKSameSeed,
    SignMajority,
    Threshold,
    TopK,
)
from wiresum.compress.native import index_code_bytes, largest
from wiresum.compress.ratio import count_of

from .rig import SIGMAS, Unpacked, assert_unbiased, assert_variance_within_omega, exchange, vectors

UNBIASED: dict[str, Compressor] = {
    "independent": RandK(0.2),
    "same seed": RandKSameSeed(0.2),
    "same seed, 8 bits": RandKSameSeed(0.2, values=Quantiser(bits=8)),
    "partition": RandKPartition(),
    "partition, a part": RandKPartition(0.1),
    "quantised": QuantisedRandK(0.3),
    "quantised, inf": QuantisedRandK(0.3, DIANA(norm="inf")),
}


@pytest.mark.parametrize("name", UNBIASED)
def test_it_is_unbiased(name: str) -> None:
    assert_unbiased(UNBIASED[name], vectors(3))


@pytest.mark.parametrize("name", UNBIASED)
def test_its_variance_is_within_the_declared_omega(name: str) -> None:
    assert_variance_within_omega(UNBIASED[name], vectors(4))


@pytest.mark.parametrize(
    "compressor", [RandK(0.2), RandKSameSeed(0.2), RandKPartition()], ids=lambda c: type(c).__name__
)
def test_the_variance_of_randk_is_the_declared_omega_exactly(compressor: Compressor) -> None:
    values = [np.ones(60)] * 4
    squares = [
        np.mean([np.sum((row[0] - values[0]) ** 2) for row in exchange(compressor, values, step=step).own])
        for step in range(5)
    ]
    assert np.mean(squares) == pytest.approx(compressor.omega(60, 4) * 60)


@pytest.mark.parametrize("name", UNBIASED)
def test_the_mean_is_the_mean_of_what_each_worker_takes_for_sent(name: str) -> None:
    outcome = exchange(UNBIASED[name], vectors(4))
    np.testing.assert_allclose(outcome.means[0], np.mean([row[0] for row in outcome.own], axis=0), atol=1e-12)


def test_independent_masks_average_out_and_the_same_mask_does_not() -> None:
    values = [np.ones(60)] * 10

    def variance(compressor: Compressor) -> float:
        return float(np.mean([np.sum((exchange(compressor, values, step=s).means[0] - 1) ** 2) for s in range(100)]))

    omega = 60 / 6 - 1
    assert variance(RandKSameSeed(0.1)) == pytest.approx(omega * 60, rel=1e-6)
    assert variance(RandK(0.1)) < 1.3 * omega * 60 / 10
    assert variance(RandKPartition()) < 1e-20, "workers that agree lose nothing"


@pytest.mark.parametrize("size", [60, 61, 7, 2])
def test_a_partition_gives_each_coordinate_one_owner(size: int) -> None:
    owners = sum((row[0] != 0).astype(int) for row in exchange(RandKPartition(), vectors(4, (size,))).own)
    assert (owners == 1).all()


@pytest.mark.parametrize(("size", "workers", "ratio"), [(123, 100, 0.01), (60, 4, 0.1), (61, 4, 0.25), (7, 4, 0.5)])
def test_a_partition_sends_the_part_that_is_asked_for(size: int, workers: int, ratio: float) -> None:
    """At each worker, where that many coordinates are there; and no coordinate twice."""
    method = RandKPartition(ratio)
    outcome = exchange(method, [np.ones(size)] * workers)
    owners = sum((row[0] != 0).astype(int) for row in outcome.own)
    asked = min(count_of(ratio, size) * workers, size)
    assert owners.sum() == asked
    assert owners.max() == 1
    assert_variance_within_omega(method, [np.ones(size)] * workers, steps=20)
    assert outcome.means[0].sum() == pytest.approx(size), "unbiased, and all values are alike"


@pytest.mark.parametrize("size", [60, 61])
def test_a_partition_has_the_variance_of_one_owner_for_each_coordinate(size: int) -> None:
    """E|mean - v|^2 = mean |v_i|^2 - |v|^2 (arXiv 2110.03300): draws that are independent have more, or less."""
    values = vectors(4, (size,))
    mean = np.mean(values, axis=0)
    # A coordinate's owner is any worker alike, also where slots beyond the tensor are dealt.
    expected = np.mean([np.sum(value**2) for value in values]) - np.sum(mean**2)
    errors = [np.sum((exchange(RandKPartition(), values, step=s).means[0] - mean) ** 2) for s in range(600)]
    assert abs(np.mean(errors) - expected) < SIGMAS * np.std(errors) / np.sqrt(600)


def test_a_partition_sends_no_index() -> None:
    aggregator = InProcess(4)
    exchange(RandKPartition(), vectors(4), aggregator=aggregator)
    assert aggregator.traffic.sent_bytes == 2 + 60 / 4 * 4, "an exponent, and a quarter of the values"


def test_same_seed_has_the_bits_of_a_reference_that_adds_in_64_bits() -> None:
    ours, reference = (exchange(RandKSameSeed(0.5), vectors(5), aggregator=a) for a in (InProcess(5), Unpacked(5)))
    assert ours.means[0].tobytes() == reference.means[0].tobytes()


@settings(deadline=None)
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=30), st.integers(1, 40))
def test_the_largest_magnitudes_are_chosen_and_ties_go_to_the_lower_index(numbers: list[int], count: int) -> None:
    values = np.array(numbers, float)
    expected = sorted(sorted(range(len(values)), key=lambda at: (-abs(values[at]), at))[:count])
    assert largest(values, count).tolist() == expected


def test_topk_contracts_as_declared() -> None:
    compressor = TopK(0.1)
    assert compressor.contraction(60) == 0.1
    for seed in range(20):
        value = vectors(1, seed=seed)[0]
        kept = exchange(compressor, [value]).own[0][0]
        assert np.count_nonzero(kept) == 6
        assert np.sum((kept - value) ** 2) <= 0.9 * np.sum(value**2)
    flat = np.ones(60)
    assert np.sum((exchange(compressor, [flat]).own[0][0] - flat) ** 2) == pytest.approx(0.9 * 60), "the bound is tight"


def test_topk_sends_k_indices_as_a_code_and_the_values_of_the_union() -> None:
    aggregator = InProcess(4)
    outcome = exchange(TopK(0.1), vectors(4, dtype=np.float32), aggregator=aggregator)
    union = np.count_nonzero(np.any([row[0] for row in outcome.own], axis=0))
    indices = 2 + index_code_bytes(6, 60)
    assert 6 < union < 24, "otherwise it would be no test"
    assert aggregator.traffic.sent_bytes == indices + 4 * union
    assert aggregator.traffic.received_bytes == 4 * indices + 4 * union


def test_the_sum_of_sparse_vectors_is_that_of_dense_ones() -> None:
    values = vectors(4)
    outcome = exchange(TopK(0.1), values)
    assert outcome.means[0] == pytest.approx(np.mean([row[0] for row in outcome.own], axis=0))


def test_a_threshold_sends_what_reaches_it() -> None:
    values = [np.array([0.1, -0.5, 0.4, 0.5]), np.array([0.1, 0.2, 0.3, 0.4])]
    outcome = exchange(Threshold(0.5), values)
    assert outcome.own[0][0].tolist() == [0, -0.5, 0, 0.5]
    assert outcome.own[1][0].tolist() == [0, 0, 0, 0]
    assert outcome.means[0].tolist() == [0, -0.25, 0, 0.25]


def test_an_adaptive_threshold_sends_what_reaches_a_part_of_the_largest() -> None:
    values = [np.array([0.1, -0.5, 0.4, 1.0]), np.array([-0.1, 0.05, 0.02, 0.0]), np.zeros(4)]
    own = np.stack([row[0] for row in exchange(AdaptiveThreshold(), values).own])
    assert own == pytest.approx(np.array([[0, -0.5, 0, 1.0], [-0.1, 0.05, 0, 0], [0, 0, 0, 0]]))
    assert np.flatnonzero(exchange(AdaptiveThreshold(0.4), values[:1]).own[0][0]).tolist() == [1, 2, 3]


def test_an_adaptive_threshold_sends_at_least_the_largest_and_nothing_of_nothing() -> None:
    for value in vectors(5):
        outcome = exchange(AdaptiveThreshold(1.0), [value])
        assert np.flatnonzero(outcome.means[0]).tolist() == [np.abs(value).argmax()]
        contraction = AdaptiveThreshold().contraction(60)
        assert contraction == 1 / 60
        assert np.sum((outcome.means[0] - value) ** 2) <= (1 - contraction) * np.sum(value**2)
    aggregator = InProcess(1)
    exchange(AdaptiveThreshold(), [np.zeros(60)], aggregator=aggregator)
    assert aggregator.traffic.sent_bytes == 8 + 2 + 4, "the code's length, an exponent and a count"


def test_composition_multiplies_the_constants() -> None:
    inner = DIANA().omega(18, 1)
    assert inner is not None
    assert QuantisedRandK(0.3, DIANA()).omega(60, 5) == pytest.approx((inner + 1) * (60 / 18) - 1)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
@pytest.mark.parametrize(
    "compressor",
    [
        RandK(0.1),
        TopK(0.1),
        Threshold(1e9),
        AdaptiveThreshold(),
        RandKPartition(),
        RandKSameSeed(0.1),
        QuantisedRandK(0.1),
    ],
    ids=lambda c: type(c).__name__,
)
def test_one_workers_nan_or_inf_is_everybodys_nan(compressor: Compressor, poison: float) -> None:
    values: list[Any] = vectors(3)
    values[2][0] = poison
    assert np.isnan(exchange(compressor, values).means[0]).all()


@pytest.mark.parametrize("ratio", [0, -1, 1.5])
def test_a_ratio_that_makes_no_sense_is_refused(ratio: float) -> None:
    with pytest.raises(ValueError, match=r"in \(0, 1\]"):
        exchange(TopK(ratio), vectors(2))


def test_every_coordinate_is_drawn_as_often() -> None:
    counts = sum((exchange(RandK(0.1), [np.ones(20)], step=step).own[0][0] != 0).astype(int) for step in range(1000))
    assert np.abs(counts - 100).max() < SIGMAS * np.sqrt(100)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        *(
            (lambda kind=kind: kind(10), "in (0, 1], not 10")
            for kind in (TopK, GTopK, RandK, RandKSameSeed, RandKPartition)
        ),
        (lambda: QuantisedRandK(0), "in (0, 1], not 0"),
        (lambda: TopK(math.nan), "in (0, 1], not nan"),
        (lambda: Threshold(-1), "finite and not negative, not -1"),
        (lambda: Threshold(math.nan), "finite and not negative, not nan"),
        (lambda: AdaptiveThreshold(0), "in (0, 1], not 0"),
        (lambda: AdaptiveThreshold(2), "in (0, 1], not 2"),
        (lambda: GTopK(0.1, mode="forest"), "'forest'"),
        (lambda: PowerSGD(0), "at least 1 column, not 0"),
        (lambda: THC(0), "at least 1 bit, not 0"),
        (lambda: THC(cut=1.5), "in (0, 1), not 1.5"),
        (lambda: SignMajority(bits=4), "bits, not 4"),
    ],
)
def test_what_makes_no_sense_is_refused_when_it_is_made(make: Callable[[], Compressor], text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        make()
