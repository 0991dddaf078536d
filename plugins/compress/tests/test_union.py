"""Sums of sparse vectors: the code of the indices, and the same bits whether values are summed or gathered."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wiresum.compress import Compressor, GTopK, InProcess, RandK, RandKPartition, Threshold, TopK
from wiresum.compress.native import index_code, index_code_bytes, indices_of, places_among, union_of

from .rig import exchange, vectors


class Forced(InProcess):
    """An aggregator that always sums the values, or always gathers them."""

    def __init__(self, workers: int, *, summed: bool) -> None:
        super().__init__(workers)
        self.summed = summed

    def prefers_sum(self, words_sum: int, words_each: int) -> bool:
        return self.summed


@given(st.integers(1, 5000), st.data())
def test_indices_survive_encoding(size: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, size))
    chosen = np.random.default_rng(data.draw(st.integers(0, 2**32))).permutation(size)[:count]
    indices = np.sort(chosen).astype(np.int64)
    code = index_code(indices, size)
    assert len(code) == index_code_bytes(count, size)
    assert (indices_of(code, count, size) == indices).all()


@pytest.mark.parametrize("size", [2**31 - 1, 2**31 - 2, 2**30])
def test_the_ends_of_the_largest_tensor_have_a_code(size: int) -> None:
    indices = np.array([0, 1, size // 2, size - 1])
    assert (indices_of(index_code(indices, size), 4, size) == indices).all()


@pytest.mark.parametrize("ratio", [0.1, 0.01, 0.001])
def test_an_index_takes_at_most_two_bits_more_than_its_entropy(ratio: float) -> None:
    size = 10**6
    entropy = -(math.log2(ratio) + (1 / ratio - 1) * math.log2(1 - ratio))
    assert 8 * index_code_bytes(int(ratio * size), size) / (ratio * size) < entropy + 2


@pytest.mark.parametrize(
    "method", [TopK(0.1), GTopK(0.1), RandK(0.2), RandKPartition(), Threshold(0.5)], ids=lambda m: type(m).__name__
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_summing_and_gathering_give_the_same_bits(method: Compressor, dtype: type) -> None:
    values = vectors(5, dtype=dtype)
    summed, gathered = (exchange(method, values, aggregator=Forced(5, summed=way)) for way in (True, False))
    assert summed.means[0].tobytes() == gathered.means[0].tobytes()
    assert [row[0].tobytes() for row in summed.own] == [row[0].tobytes() for row in gathered.own]


def test_the_cheaper_of_summing_and_gathering_is_chosen() -> None:
    alike = [np.arange(1.0, 61.0)] * 4
    apart = [np.roll(np.r_[np.ones(6), np.zeros(54)], 6 * worker) for worker in range(4)]
    received = []
    for values in (alike, apart):
        aggregator = InProcess(4)
        exchange(TopK(0.1), values, aggregator=aggregator)
        received.append(aggregator.traffic.received_bytes - 4 * (2 + index_code_bytes(6, 60)))
    assert received == [4 * 6, 4 * 24]


def test_values_of_similar_size_are_exact_and_rounding_errors_count_as_not_sent() -> None:
    exact = [(np.arange(60) - 30).astype(np.float32) / 7] * 3
    assert (exchange(TopK(1.0), exact).means[0] == exact[0]).all()
    wide = [np.float64([1.0, 2.0**-28 * 1.25])] * 3
    outcome = exchange(TopK(1.0), wide)
    assert outcome.own[0][0].tolist() == [1.0, 2.0**-28]
    assert outcome.means[0].tolist() == [1.0, 2.0**-28]


def test_zeros_need_no_second_round() -> None:
    aggregator = InProcess(3)
    outcome = exchange(TopK(0.1), [np.zeros(60)] * 3, aggregator=aggregator)
    assert not outcome.means[0].any()
    assert aggregator.traffic.rounds == 1


def test_largest_sums_do_not_overflow() -> None:
    values = [np.full(4, np.finfo(np.float32).max)] * 7
    assert exchange(TopK(1.0), values).means[0] == pytest.approx(values[0], rel=1e-7)


def test_a_parcel_that_is_no_index_code_is_an_error() -> None:
    code = index_code(np.array([3, 5, 900]), 1000)
    code[0] ^= 0xFF
    with pytest.raises(ValueError, match="no code of so many indices"):
        indices_of(code, 3, 1000)
    with pytest.raises(ValueError, match="must ascend"):
        index_code(np.array([5, 3]), 1000)
    with pytest.raises(ValueError, match="more indices than elements"):
        index_code_bytes(11, 10)


@given(st.lists(st.sets(st.integers(0, 299)), max_size=5), st.sets(st.integers(0, 299)))
def test_unions_and_positions_equal_those_of_python_sets(parts: list[set[int]], others: set[int]) -> None:
    ascending = [np.array(sorted(part), np.int64) for part in parts]
    united = union_of(ascending, 300)
    assert united.tolist() == sorted(set().union(*parts))
    among = np.array(sorted(others), np.int64)
    expected = [sorted(others).index(index) if index in others else -1 for index in united.tolist()]
    assert places_among(united, among).tolist() == expected


def test_an_index_beyond_the_tensor_is_refused() -> None:
    for index in (-1, 300):
        with pytest.raises(ValueError, match="not below the size"):
            union_of([np.array([index])], 300)
