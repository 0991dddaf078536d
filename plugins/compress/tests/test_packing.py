"""Packing integers into words: sums that fit are exact, even if contributions or partial sums overflow."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wiresum.compress.native import pack, unpack
from wiresum.compress.packing import limit, width_for

BITS = st.sampled_from([8, 16, 32])


@st.composite
def contributions_whose_sum_fits(draw: st.DrawFn) -> tuple[int, np.ndarray, np.ndarray]:
    """Contributions of any 32-bit integers; the last one makes the sum fit."""
    bits, count, workers = draw(BITS), draw(st.integers(0, 40)), draw(st.integers(1, 9))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    half = 1 << (bits - 1)
    wanted = generator.integers(-half, half, count)
    if count:
        wanted[draw(st.integers(0, count - 1))] = draw(st.sampled_from([-half, half - 1]))
    first = generator.integers(-(2**31), 2**31, (workers - 1, count))
    last = (wanted - first.sum(axis=0)) & 0xFFFFFFFF
    values = np.vstack([first & 0xFFFFFFFF, last]).astype(np.uint32).view(np.int32)
    return bits, values, wanted


@given(contributions_whose_sum_fits())
def test_sums_are_exact_if_they_fit_even_where_contributions_wrap(case: tuple[int, np.ndarray, np.ndarray]) -> None:
    bits, values, wanted = case
    total = np.sum([pack(one, bits).view(np.uint32) for one in values], axis=0, dtype=np.uint32)
    assert (unpack(total.view(np.int32), bits, values.shape[1]) == wanted).all()


@pytest.mark.parametrize(("bits", "words"), [(8, 3), (16, 5), (32, 10)])
def test_ten_integers_take_as_few_words_as_possible(bits: int, words: int) -> None:
    assert len(pack(np.ones(10, np.int32), bits)) == words


def test_an_overflow_changes_only_its_value_and_the_next_one() -> None:
    """Shows why there is a limit: an overflow changes its own value and the next one of its word."""
    assert unpack(pack(np.array([100, 1, 2, 3], np.int32), 8) * 2, 8, 4).tolist() == [-56, 3, 4, 6]


@given(BITS, st.integers(1, 127))
def test_the_limit_is_the_largest_value_that_all_workers_can_send(bits: int, workers: int) -> None:
    assert workers * limit(bits, workers) < 1 << (bits - 1)
    assert workers * (limit(bits, workers) + 1) >= 1 << (bits - 1)


@given(st.integers(1, 200), st.integers(1, 200))
def test_the_width_is_the_smallest_in_which_all_workers_can_send(magnitude: int, workers: int) -> None:
    bits = width_for(magnitude, workers)
    assert magnitude * workers < 1 << (bits - 1)
    assert bits == 8 or magnitude * workers >= 1 << (bits // 2 - 1)


def test_no_width_is_enough_for_the_largest_integers_of_two_workers() -> None:
    with pytest.raises(ValueError, match="integers up to 2147483647 from each of 2 workers do not fit in 32 bits"):
        width_for((1 << 31) - 1, 2)


def test_too_many_workers_for_the_bits_are_refused() -> None:
    with pytest.raises(ValueError, match="128 workers does not fit in 8 bits"):
        limit(8, 128)
    with pytest.raises(ValueError, match="integers have 8, 16 or 32 bits, not 4"):
        limit(4, 2)
