"""ARC-Top-K: all workers send the same rows, those that are the largest in a sketch of their mean."""

from __future__ import annotations

import numpy as np
import pytest

import wiresum.compress as wc

from .rig import exchange

SHAPE = (30, 8)
SIZE = 240


def matrices(workers: int, seed: int = 3) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    scales = np.exp(2 * generator.normal(size=(30, 1)))
    return [(scales * generator.normal(size=SHAPE)).reshape(-1) for _ in range(workers)]


def signs(step: int, columns: int, rank: int) -> np.ndarray:
    turn = wc.Turn(1, step, 0, 1, "x", SHAPE, np.dtype(np.float64)).common()
    return np.where(turn.uniform(columns * rank, stream=1) >= 0.5, 1.0, -1.0).reshape(columns, rank)


@pytest.mark.parametrize("rank", [1, 4])
def test_the_mean_has_the_rows_with_the_longest_sketches(rank: int) -> None:
    """The reference sorts, and has no integers."""
    for step in range(5):
        values = matrices(4, step)
        mean = np.mean(values, axis=0).reshape(SHAPE)
        sketch = mean @ signs(step, 8, rank)
        chosen = np.argsort(-np.sum(sketch**2, axis=1))[:6]
        expected = np.zeros(SHAPE)
        expected[chosen] = mean[chosen]
        outcome = exchange(wc.ARCTopK(0.2, rank), values, shape=SHAPE, step=step)
        assert outcome.means[0] == pytest.approx(expected.reshape(-1), abs=1e-5)
        for mine, value in zip(outcome.own, values, strict=True):
            assert mine[0] == pytest.approx(np.where(expected.reshape(-1) != 0, value, 0), abs=1e-5)
    method = wc.ARCTopK(0.2, rank)
    assert method.contraction(SIZE) == 1 / SIZE and method.memory == "error-feedback"


def test_sketch_and_values_travel_as_sums_without_indices() -> None:
    for bits in (32, 16):
        aggregator = wc.InProcess(4)
        exchange(wc.ARCTopK(0.2, rank=2, bits=bits), matrices(4), shape=SHAPE, aggregator=aggregator)
        sketch, rows, flags, maxima = 4 * 30 * 2, 6 * 8 * bits // 8, 2 * (4 + bits // 8), 2 * 8
        assert aggregator.traffic.sent_bytes == sketch + rows + flags + maxima
        assert aggregator.traffic.received_bytes == aggregator.traffic.sent_bytes
        assert aggregator.traffic.rounds == 4


def test_a_tensor_that_would_not_be_smaller_is_sent_whole() -> None:
    aggregator = wc.InProcess(2)
    values = [np.arange(8.0), np.ones(8)]
    mean = exchange(wc.ARCTopK(0.01, rank=4), values, shape=(2, 4), aggregator=aggregator).means[0]
    assert mean == pytest.approx(np.mean(values, axis=0), abs=1e-6)
    assert aggregator.traffic.rounds == 2


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_value_that_is_not_finite_is_noticed_in_any_row(poison: float) -> None:
    values = matrices(3)
    smallest = int(np.argmin([np.abs(row).max() for row in values[1].reshape(SHAPE)]))
    values[1][smallest * 8 + 3] = poison
    assert np.isnan(exchange(wc.ARCTopK(0.1), values, shape=SHAPE).means[0]).all()
