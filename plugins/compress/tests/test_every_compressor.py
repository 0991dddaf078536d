"""Guarantees of every compressor: no bias, the declared variance, exact sums, NaN for all workers, checked options."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import wiresum.compress as wc

from .rig import Unpacked, assert_unbiased, assert_variance_within_omega, exchange, vectors

UNBIASED = [
    wc.RandK(0.2),
    wc.RandKSameSeed(0.2),
    wc.RandKSameSeed(0.2, values=wc.Quantiser(bits=8)),
    wc.RandKPartition(),
    wc.RandKPartition(0.1),
    wc.QuantisedRandK(0.3),
    wc.QuantisedRandK(0.3, wc.DIANA(norm="inf")),
    wc.DIANA(),
    wc.DIANA(norm="1"),
    wc.DIANA(norm="inf"),
    wc.DIANA(block=16),
    wc.DIANA(norm="inf", block=16),
    wc.QSGD(7, block=16),
    wc.QSGD(block=None),
    wc.TernGrad(),
    wc.Quantiser(bits=8),
    wc.OwnScale(wc.DIANA(block=16)),
    wc.OwnScale(wc.QSGD(3)),
    wc.IntSGD(8),
    wc.Natural(),
]
SUMMED = [
    wc.RandKSameSeed(0.5),
    wc.DIANA(block=16),
    wc.QSGD(7, block=16),
    wc.TernGrad(),
    wc.Quantiser(bits=8),
    wc.IntSGD(8),
    *(wc.IntSGD(bits, scale="estimate") for bits in (8, 16, 32)),
    wc.SignMajority(),
    wc.PowerSGD(2),
]
POISONED = [
    wc.RandK(0.1),
    wc.TopK(0.1),
    wc.Threshold(1e9),
    wc.AdaptiveThreshold(),
    wc.RandKPartition(),
    wc.RandKSameSeed(0.1),
    wc.QuantisedRandK(0.1),
    wc.QSGD(),
    wc.OwnScale(wc.QSGD()),
    wc.Natural(),
    wc.SignMajority(),
    wc.Identity(),
    wc.GTopK(0.1),
    wc.GTopK(0.1, mode="tree"),
    wc.DIANA(),
    wc.TernGrad(),
    wc.IntSGD(8),
    wc.IntDIANA(8),
    wc.PowerSGD(2),
    wc.Quantiser(bits=8),
    wc.BlockTopK(0.1),
    wc.BlockTopKRatio(0.1),
    wc.BlockThreshold(0.01),
    wc.BlockRandomK(0.1),
]
"""One of each class at least: a test compares."""


def test_every_compressor_is_tested() -> None:
    everything = {
        kind
        for kind in vars(wc).values()
        if inspect.isclass(kind) and issubclass(kind, wc.Compressor) and not inspect.isabstract(kind)
    }
    assert everything == {type(compressor) for compressor in POISONED}, (
        "add a new compressor to POISONED, to UNBIASED if its estimate is unbiased, to SUMMED if the switch adds it, "
        "and to METHODS in methods.py and in wiresum.experiments.adaptive_optimizers; docs/compress.md, Add a "
        "compressor, says what else"
    )


@pytest.mark.slow
@pytest.mark.parametrize("compressor", UNBIASED, ids=repr)
def test_it_is_unbiased(compressor: wc.Compressor) -> None:
    assert_unbiased(compressor, vectors(3))


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("compressor", UNBIASED, ids=repr)
def test_its_variance_is_within_the_declared_omega(compressor: wc.Compressor, workers: int) -> None:
    assert_variance_within_omega(compressor, vectors(workers))


@pytest.mark.parametrize("compressor", [*UNBIASED, wc.TopK(0.1)], ids=repr)
def test_the_result_is_the_mean_of_what_each_worker_believes_it_sent(compressor: wc.Compressor) -> None:
    outcome = exchange(compressor, vectors(4))
    np.testing.assert_allclose(outcome.means[0], np.mean([row[0] for row in outcome.own], axis=0), atol=1e-12)


@pytest.mark.parametrize("compressor", SUMMED, ids=repr)
def test_the_mean_has_the_bits_of_a_reference_that_adds_in_64_bits(compressor: wc.Compressor) -> None:
    values, length = vectors(5, (77,), dtype=np.float32), 0.7 if compressor.uses_length else None
    ours, reference = (
        exchange(compressor, values, step=2, length=length, aggregator=aggregator)
        for aggregator in (wc.InProcess(5), Unpacked(5))
    )
    assert ours.means[0].tobytes() == reference.means[0].tobytes()
    assert ours.means[0].dtype == np.float32


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("compressor", POISONED, ids=repr)
def test_one_workers_nan_or_inf_becomes_nan_at_all_workers(compressor: wc.Compressor, poison: float) -> None:
    assert np.isfinite(exchange(compressor, vectors(4)).means[0]).all()
    for worker in range(4):
        values: list[Any] = vectors(4)
        values[worker][5] = poison
        assert np.isnan(exchange(compressor, values).means[0]).all()


RATIOS = (wc.TopK, wc.GTopK, wc.RandK, wc.RandKSameSeed, wc.RandKPartition, wc.BlockTopK, wc.BlockTopKRatio,
          wc.BlockRandomK, lambda ratio: wc.WarmUp(ratio, 5), lambda ratio: wc.WarmUp(0.1, 5, (ratio,)))  # fmt: skip


@pytest.mark.parametrize(
    ("make", "text"),
    [
        *(
            (lambda kind=kind, ratio=ratio: kind(ratio), f"in (0, 1], not {ratio}")
            for kind in RATIOS
            for ratio in (0, -1, 1.5, math.nan)
        ),
        (lambda: wc.QuantisedRandK(0), "in (0, 1], not 0"),
        (lambda: wc.WarmUp(0.1, 0), "at least 1 step, not 0"),
        (lambda: wc.Threshold(-1), "finite and not negative, not -1"),
        (lambda: wc.Threshold(math.nan), "finite and not negative, not nan"),
        (lambda: wc.AdaptiveThreshold(0), "in (0, 1], not 0"),
        (lambda: wc.AdaptiveThreshold(2), "in (0, 1], not 2"),
        (lambda: wc.BlockThreshold(-1.0), "the norm is a threshold"),
        (lambda: wc.BlockThreshold(math.nan), "the norm is a threshold"),
        (lambda: wc.BlockThreshold(math.inf), "the norm is a threshold"),
        (lambda: wc.BlockTopK(0.1, block=0), "a block has at least 1 value"),
        (lambda: wc.BlockThreshold(1.0, block=-1), "a block has at least 1 value"),
        (lambda: wc.GTopK(0.1, mode="forest"), "'forest'"),
        (lambda: wc.GTopK(0.1, bits=8), "16 or 32 bits, not 8"),
        (lambda: wc.GTopK(0.1, mode="tree", bits=16), "sends values unchanged"),
        (lambda: wc.PowerSGD(0), "at least 1 column, not 0"),
        (lambda: wc.SignMajority(bits=4), "bits, not 4"),
        (lambda: wc.Quantiser(norm="banana"), "the norm is '1', '2', 'inf', not 'banana'"),
        (lambda: wc.Quantiser(norm=math.inf), "the norm is '1', '2', 'inf', not inf"),
        (lambda: wc.QSGD(-3), "as many as the bits hold, not -3"),
        (lambda: wc.QSGD(0), "at least 1 level, or None for as many as the bits hold, not 0"),
        (lambda: wc.QSGD(block=0), "at least 1 value, or is None for the whole tensor, not 0"),
        (lambda: wc.DIANA(bits=12), "bits, not 12"),
        (lambda: wc.TernGrad(clip=-1), "positive number of deviations"),
        (lambda: wc.IntSGD(12), "bits, not 12"),
        (lambda: wc.IntSGD(scale="mean"), "'mean'"),
        (lambda: wc.IntSGD(epsilon=-1.0), "epsilon is finite and not negative"),
        *(
            (lambda kind=kind, clip=clip: kind(clip=clip), f"clipped to a positive norm, or not (None), not to {clip}")
            for kind in (wc.ErrorFeedback, wc.MomentumCorrection)
            for clip in (0.0, -1.0, math.inf, math.nan)
        ),
        *(
            (lambda momentum=momentum: wc.MomentumCorrection(momentum), f"in [0, 1), not {momentum}")
            for momentum in (-0.1, 1.0, math.nan)
        ),
        *((lambda alpha=alpha: wc.Shift(alpha), "alpha is in [0, 1]") for alpha in (-2, 1.5, math.nan)),
    ],
)
def test_options_that_make_no_sense_are_refused(make: Callable[[], object], text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        make()
