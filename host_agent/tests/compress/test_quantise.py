"""Quantisers: unbiased, within the declared variance, and the same integers however they are added."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from rig import Unpacked, assert_unbiased, assert_variance_within_omega, exchange, vectors

from wiresum.compress import DIANA, QSGD, Compressor, OwnScale, Quantiser, TernGrad

UNBIASED: dict[str, Compressor] = {
    "DIANA 2": DIANA(),
    "DIANA inf": DIANA(norm="inf"),
    "DIANA 2, blocks": DIANA(block=16),
    "DIANA inf, blocks": DIANA(norm="inf", block=16),
    "QSGD": QSGD(7, block=16),
    "QSGD, whole": QSGD(block=None),
    "TernGrad": TernGrad(),
    "fixed point, 8 bits": Quantiser(lanes=8),
    "DIANA 2, own norms": OwnScale(DIANA(block=16)),
    "QSGD, own norms": OwnScale(QSGD(3)),
}


@pytest.mark.parametrize("name", UNBIASED)
def test_it_is_unbiased(name: str) -> None:
    assert_unbiased(UNBIASED[name], vectors(3))


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("name", UNBIASED)
def test_its_variance_is_within_the_declared_omega(name: str, workers: int) -> None:
    assert_variance_within_omega(UNBIASED[name], vectors(workers))


@pytest.mark.parametrize("norm", ["2", "inf"])
def test_the_declared_omega_is_reached_where_the_proof_is_tight(norm: Any) -> None:
    """All values equal: |v|_1 = sqrt(d) |v|. With the 2-norm the variance then is omega |v|^2 exactly."""
    value = np.ones(64)
    squares = [np.sum((exchange(DIANA(norm=norm), [value], step=s).own[0][0] - value) ** 2) for s in range(300)]
    if norm == "2":
        omega = DIANA().omega(64, 1)
        assert omega == 7
        assert abs(np.mean(squares) - omega * 64) < 6 * np.std(squares) / math.sqrt(300)
    else:
        assert np.max(squares) < 1e-20


@pytest.mark.parametrize("name", ["DIANA 2, blocks", "QSGD", "TernGrad", "fixed point, 8 bits"])
def test_the_mean_has_the_bits_of_a_reference_that_adds_in_64_bits(name: str) -> None:
    values = vectors(5, (77,), dtype=np.float32)
    packed = exchange(UNBIASED[name], values)
    reference = exchange(UNBIASED[name], values, aggregator=Unpacked(5))
    assert packed.means[0].tobytes() == reference.means[0].tobytes()
    assert packed.means[0].dtype == np.float32


@pytest.mark.parametrize("name", UNBIASED)
def test_the_mean_is_the_mean_of_what_each_worker_takes_for_sent(name: str) -> None:
    outcome = exchange(UNBIASED[name], vectors(4))
    np.testing.assert_allclose(outcome.means[0], np.mean([row[0] for row in outcome.own], axis=0), atol=1e-12)


def test_a_zero_block_stays_zero_and_does_not_disturb_others() -> None:
    value = np.concatenate([np.zeros(16), np.full(16, 2.0)])
    mean = exchange(DIANA(norm="inf", block=16), [value, value]).means[0]
    assert (mean == value).all()


def test_the_largest_value_is_never_clamped() -> None:
    value = np.full(37, 1 / 3, np.float32)
    assert exchange(Quantiser(lanes=8), [value] * 7).means[0] == pytest.approx(value, rel=1e-6)


def test_terngrad_clips_outliers_before_it_takes_the_maximum() -> None:
    value = np.append(np.tile([1.0, -1.0], 50), 100.0)
    own = exchange(TernGrad(clip=2.5), [value]).own[0][0]
    assert np.abs(own).max() == pytest.approx(2.5 * value.std())
    assert TernGrad(clip=2.5).omega(100, 2) is None


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("compressor", [QSGD(), OwnScale(QSGD())], ids=["integers", "gathered"])
def test_one_workers_nan_or_inf_is_everybodys_nan(compressor: Compressor, poison: float) -> None:
    values = vectors(3)
    values[1][5] = poison
    assert np.isnan(exchange(compressor, values).means[0]).all()
    assert np.isfinite(exchange(compressor, vectors(3)).means[0]).all()


def test_more_levels_than_a_lane_has_room_for_are_refused() -> None:
    with pytest.raises(ValueError, match=r"integers up to 100 from each of 4 workers .* room for 31: use wider lanes"):
        exchange(QSGD(100), vectors(4))
