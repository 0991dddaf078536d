"""THC: its rotation, its table and its grid."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from wiresum.compress import THC
from wiresum.compress.thc import hadamard, half_width, table_for

from .rig import exchange, vectors


def test_the_rotation_is_orthonormal_and_its_own_inverse() -> None:
    rows = np.random.default_rng(1).normal(size=(3, 64))
    rotated = hadamard(rows)
    assert np.sum(rotated**2, axis=1) == pytest.approx(np.sum(rows**2, axis=1))
    assert hadamard(rotated) == pytest.approx(rows)
    assert hadamard(np.eye(4)) * 2 == pytest.approx(
        np.array([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]])
    )


def test_the_table_is_the_best_of_all_tables() -> None:
    """Every other table of 4 points on a grid of 8 has a larger error on a fine sample of a truncated normal
    distribution."""
    x = np.linspace(0, 8, 20001)
    density = np.exp(-0.5 * ((x / 4 - 1) * half_width(1 / 32)) ** 2)

    def error(table: tuple[int, ...]) -> float:
        points = np.array(table)
        above = np.clip(np.searchsorted(points, x, side="right"), 1, len(points) - 1)
        return float(np.sum(density * (points[above] - x) * (x - points[above - 1])))

    best = min(((0, a, b, 8) for a, b in itertools.combinations(range(1, 8), 2)), key=error)
    assert error(tuple(table_for(2, 8, 1 / 32).tolist())) == pytest.approx(error(best), rel=1e-6)


@pytest.mark.parametrize("size", [64, 100, 5, 1])
def test_the_error_is_that_of_rounding_and_clamping(size: int) -> None:
    """Rounding costs at most a quarter of the widest gap squared for each value; clamping costs less than that here."""
    value = np.random.default_rng(size).normal(size=size)
    widest = np.diff(table_for(4, 30, 1 / 32)).max() * 2 * half_width(1 / 32) / 30
    for step in range(20):
        own = exchange(THC(), [value], step=step).own[0][0]
        assert np.sum((own - value) ** 2) <= (widest**2 / 4 + 1 / 32) * 2 * np.sum(value**2)


def test_it_is_nearly_unbiased_for_values_of_all_sizes() -> None:
    """Clamping biases the result by less than a percent of the vector; rounding does not bias it."""
    values = vectors(3, (256,))
    means = np.mean([exchange(THC(cut=1e-3), values, step=step).means[0] for step in range(300)], axis=0)
    true = np.mean(values, axis=0)
    single = exchange(THC(cut=1e-3), values).means[0]
    assert np.linalg.norm(means - true) < 0.2 * np.linalg.norm(single - true)


def test_values_between_grid_points_are_rounded_at_random() -> None:
    """Workers with one vector have one rotation, and each its own rounding, whose mean is the vector."""
    value = np.random.default_rng(3).normal(size=64)
    drawn = np.array([one[0] for one in exchange(THC(cut=1e-6, bits=16), [value] * 400).own])
    deviation = drawn.std(axis=0)
    assert (deviation > 0).all()
    assert (np.abs(drawn.mean(axis=0) - value) <= 6 * deviation / 20).all()


def test_eight_workers_fit_in_8_bits_and_nine_do_not() -> None:
    """15 steps on each side of zero: 8 * 15 = 120 fits."""
    exchange(THC(bits=8), vectors(8))
    with pytest.raises(ValueError, match="room for 14: use more bits"):
        exchange(THC(bits=8), vectors(9))
    exchange(THC(bits=16), vectors(9))


def test_zeros_stay_zeros() -> None:
    assert (exchange(THC(), [np.zeros(30)] * 2).means[0] == 0).all()


def test_half_the_width_is_the_normal_quantile() -> None:
    assert math.erfc(half_width(1 / 32) / math.sqrt(2)) == pytest.approx(1 / 32)
