"""Randomness is a function of seed, step, worker, tensor and index."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wiresum.compress import Turn

TURN = Turn(seed=3, step=7, worker=2, workers=4, tensor="layer.weight", shape=(10, 10), dtype=np.dtype(np.float64))


def test_a_repeated_turn_repeats_its_randomness() -> None:
    assert (TURN.uniform(1000) == replace(TURN).uniform(1000)).all()


@pytest.mark.parametrize(
    "other",
    [
        replace(TURN, seed=4),
        replace(TURN, step=8),
        replace(TURN, worker=3),
        replace(TURN, tensor="layer.bias"),
        TURN.common(),
    ],
    ids=["seed", "step", "worker", "tensor", "common"],
)
def test_a_turn_that_differs_in_one_field_draws_other_numbers(other: Turn) -> None:
    assert np.mean(TURN.uniform(1000) == other.uniform(1000)) < 0.01


def test_streams_differ() -> None:
    assert np.mean(TURN.uniform(1000) == TURN.uniform(1000, stream=1)) < 0.01


@settings(max_examples=30)
@given(st.integers(1, 300), st.integers(0, 320))
def test_any_part_of_a_draw_can_be_computed_alone(count: int, first: int) -> None:
    whole = TURN.uniform(1000)
    assert (TURN.uniform(count, first=first) == whole[first : first + count]).all()


def test_a_draw_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="in several segments"):
        TURN.uniform(10, first=2**34)


def test_drawn_numbers_equal_the_recorded_ones() -> None:
    """Workers on other processors, and later versions of this package, must draw the same numbers."""
    assert (TURN.uniform(4) * 2**32).astype(np.int64).tolist() == [3996938225, 1721433457, 1979892613, 86464956]
    assert TURN.subset(100, 5).tolist() == [1, 47, 49, 69, 86]


def test_uniform_numbers_fill_the_interval_evenly() -> None:
    numbers = TURN.uniform(80_000)
    counts = np.histogram(numbers, bins=16, range=(0, 1))[0]
    assert np.abs(counts - 5000).max() < 6 * np.sqrt(5000)
    assert numbers.min() >= 0
    assert numbers.max() < 1


def test_each_subset_is_equally_likely() -> None:
    counts = np.zeros(10)
    for step in range(2000):
        chosen = replace(TURN, step=step).subset(10, 3)
        assert len(set(chosen.tolist())) == 3
        counts[chosen] += 1
    assert np.abs(counts - 600).max() < 6 * np.sqrt(600 * 0.7)


def test_common_randomness_does_not_depend_on_the_worker() -> None:
    assert (TURN.common().permutation(50) == TURN.of(0).common().permutation(50)).all()
    assert sorted(TURN.permutation(50).tolist()) == list(range(50))
