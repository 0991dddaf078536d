"""Natural compression, and sign majority."""

from __future__ import annotations

import numpy as np
import pytest

from wiresum.compress import InProcess, Natural, SignMajority

from .rig import exchange, vectors


def test_natural_compression_has_an_omega_of_an_eighth() -> None:
    assert Natural().omega(60, 3) == 1 / 8


def test_the_worst_case_of_natural_compression_reaches_its_omega() -> None:
    """Between 1 and 2 the relative variance (2 - x)(x - 1)/x^2 is largest at x = 4/3: an eighth."""
    value = np.full(1000, 4 / 3)
    square = np.mean([(exchange(Natural(), [value], step=step).own[0][0] - value) ** 2 for step in range(40)])
    assert square == pytest.approx((4 / 3) ** 2 / 8, rel=0.02)


def test_natural_compression_sends_powers_of_two_in_nine_bits() -> None:
    aggregator = InProcess(1)
    sent = exchange(Natural(), [vectors(1, (64,))[0]], aggregator=aggregator).own[0][0]
    assert (np.log2(np.abs(sent)) % 1 == 0).all()
    assert aggregator.traffic.sent_bytes == 64 * 9 / 8 + 1


@pytest.mark.parametrize("value", [0.0, 1.0, -2.0, 0.25, -(2.0**-126), 2.0**127])
def test_powers_of_two_and_zero_pass_unchanged(value: float) -> None:
    assert exchange(Natural(), [np.full(9, value)]).own[0][0].tolist() == [value] * 9


def test_values_below_the_smallest_exponent_are_rounded_without_bias() -> None:
    sent = exchange(Natural(), [np.full(8000, 2.0**-128)]).own[0][0]
    assert set(sent.tolist()) == {0.0, 2.0**-126}
    assert np.mean(sent > 0) == pytest.approx(0.25, abs=0.03)


def test_the_majority_decides_the_sign() -> None:
    values = [np.array([1.0, -2.0, 3.0, 0.0]), np.array([0.1, 5.0, -1.0, 0.0]), np.array([9.0, -1.0, -1.0, 0.0])]
    outcome = exchange(SignMajority(), values)
    assert outcome.means[0].tolist() == [1, -1, -1, 0]
    assert outcome.own[1][0].tolist() == [1, 1, -1, 0]


def test_a_majority_over_more_workers_than_the_bits_can_count_is_refused() -> None:
    with pytest.raises(ValueError, match="128 workers"):
        exchange(SignMajority(bits=8), vectors(128))
