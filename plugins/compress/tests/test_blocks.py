"""Block sparsifiers: which blocks each one chooses, what is sent for them, and that nothing is lost."""

from __future__ import annotations

import numpy as np
import pytest

import wiresum.compress as wc
from wiresum.compress.blocks import block_norms
from wiresum.compress.compressor import elements_of
from wiresum.compress.native import index_code_bytes

from .rig import Array, exchange, vectors

GRADIENT = np.array([3.0, 4.0, 0.0, 1.0, -6.0, 8.0, 0.5])
"""Blocks of two have the norms 5, 1, 10 and, the shorter last one, 0.5."""


def chosen(method: wc.BlockSparsifier, values: Array, *, parameters: Array | None = None, step: int = 0) -> list[int]:
    """The blocks, of two elements each, that one worker sends of a gradient, found by running an engine."""
    engine = wc.Engine(method, wc.InProcess(1))
    engine.step = step
    segment = wc.Segment((wc.Piece("x", (len(values),)),))
    estimate = engine.average([segment], [[values]], None if parameters is None else {"x": parameters})[0]
    kept = estimate != 0
    assert (estimate[kept] == values[kept]).all(), "a value is sent as it is, or not at all"
    return sorted({int(at) // method.block for at in np.flatnonzero(kept)})


def test_norms_are_of_blocks_and_the_last_one_may_be_shorter() -> None:
    assert block_norms(GRADIENT, 2).tolist() == [5, 1, 10, 0.5]
    assert block_norms(GRADIENT.astype(np.float32) * np.float32(1e30), 2)[2] == pytest.approx(1e31), "no overflow"
    assert block_norms(GRADIENT[:6], 2).tolist() == [5, 1, 10]
    assert block_norms(GRADIENT, 100).tolist() == [pytest.approx(np.linalg.norm(GRADIENT))]


def test_elements_of_blocks_end_with_the_tensor() -> None:
    assert elements_of(np.array([0, 3]), 2, 7).tolist() == [0, 1, 6]
    assert elements_of(np.array([1]), 2, 7).tolist() == [2, 3]
    assert elements_of(np.zeros(0, np.int64), 2, 7).tolist() == []


def test_top_k_takes_the_largest_and_at_least_one() -> None:
    assert chosen(wc.BlockTopK(0.5, block=2), GRADIENT) == [0, 2]
    assert chosen(wc.BlockTopK(0.01, block=2), GRADIENT) == [2]
    assert chosen(wc.BlockTopK(0.5, block=2), np.array([0.0, 5.0, 3.0, 3.0])) == [0], "not by the sum of magnitudes"
    assert chosen(wc.BlockTopK(0.5, block=2), np.array([0.0, 5.0, 4.0, 4.0])) == [1], "nor by the largest value"


def test_top_k_ratio_measures_by_the_parameters() -> None:
    parameters = np.array([3.0, 4.0, 0.0, 0.1, 60.0, 80.0, 0.0])
    assert chosen(wc.BlockTopKRatio(0.5, block=2), GRADIENT, parameters=parameters) == [1, 3]


def test_top_k_ratio_says_that_it_needs_the_parameters() -> None:
    with pytest.raises(ValueError, match="compares 'x' with its parameters"):
        chosen(wc.BlockTopKRatio(0.5, block=2), GRADIENT)


def test_a_threshold_takes_the_blocks_that_reach_it_possibly_none() -> None:
    assert chosen(wc.BlockThreshold(5.0, block=2), GRADIENT) == [0, 2]
    assert chosen(wc.BlockThreshold(11.0, block=2), GRADIENT) == []


def test_random_k_takes_the_same_blocks_at_all_workers_unless_independent() -> None:
    ones = [np.ones(800)] * 3
    same = [row[0] for row in exchange(wc.BlockRandomK(0.1, block=2), ones).own]
    assert all((one == same[0]).all() for one in same)
    own = [row[0] for row in exchange(wc.BlockRandomK(0.1, block=2, independent=True), ones).own]
    assert not (own[0] == own[1]).all()
    assert [one.sum() for one in (*same, *own)] == [80] * 6
    later = exchange(wc.BlockRandomK(0.1, block=2), ones, step=1).own[0][0]
    assert not (later == same[0]).all()


@pytest.mark.parametrize("independent", [False, True])
def test_random_k_chooses_each_block_equally_often(independent: bool) -> None:
    """The shorter last block too: 5 of 20 blocks are sent in each of 800 steps."""
    method, counts = wc.BlockRandomK(0.25, block=3, independent=independent), np.zeros(58)
    for step in range(800):
        counts += exchange(method, [np.ones(58)], step=step).means[0]
    assert np.abs(counts - 200).max() < 6 * np.sqrt(800 * 0.25 * 0.75)


@pytest.mark.parametrize("method", [wc.BlockTopK(0.2, block=8), wc.BlockRandomK(0.2, block=8)], ids=repr)
@pytest.mark.parametrize("size", [80, 83])
def test_the_contraction_is_the_share_of_the_blocks(method: wc.BlockSparsifier, size: int) -> None:
    """Random blocks lose the rest of the squared norm on average; if all values are alike, the largest blocks do no
    better."""
    share = method.contraction(size)
    assert share == {80: 2 / 10, 83: 2 / 11}[size]
    worst = [np.ones(size)] * 2
    lost = [np.mean((exchange(method, worst, step=step).own[0][0] - 1) ** 2) for step in range(400)]
    error = 6 * np.std(lost) / 20 + 1e-12
    assert (
        np.mean(lost) <= 1 - share + error
        if isinstance(method, wc.BlockTopK)
        else abs(np.mean(lost) - 1 + share) < error
    )
    for values in vectors(5, (size,)):
        if isinstance(method, wc.BlockTopK):
            kept = exchange(method, [values]).own[0][0]
            assert np.sum((values - kept) ** 2) <= (1 - share) * np.sum(values**2)


@pytest.mark.parametrize(
    "method",
    [
        wc.BlockTopK(0.2, block=8),
        wc.BlockTopKRatio(0.2, block=8),
        wc.BlockThreshold(3.0, block=8),
        wc.BlockRandomK(0.2, block=8),
        wc.BlockRandomK(0.2, block=8, independent=True),
        wc.TopK(0.1),
    ],
    ids=repr,
)
def test_results_and_residuals_add_up_to_the_gradients(method: wc.Compressor) -> None:
    segment = wc.Segment((wc.Piece("a", (7, 5)), wc.Piece("b", (48,))))
    engine, given, received = wc.Engine(method, wc.InProcess(3)), np.zeros(83), np.zeros(83)
    for step in range(12):
        values = vectors(3, (83,), seed=step)
        given += np.mean(values, axis=0)
        parameters = {segment.name: vectors(1, (83,), seed=99)[0]}
        received += engine.average([segment], [[value] for value in values], parameters)[0]
        engine.advance()
    own = [np.concatenate(list(mine["residual"].values())) for mine in engine.state_dict()["own"]]
    assert received + np.mean(own, axis=0) == pytest.approx(given, abs=1e-9)
    assert np.abs(np.mean(own, axis=0)).max() > 0.1


def test_indices_number_blocks_and_are_not_sent_if_all_workers_can_draw_them() -> None:
    """83 values in 11 blocks, of which 2 are sent: one exponent, the indices, and the values of the union."""
    values = [np.concatenate([np.zeros(8), np.full(16, 9.0), np.zeros(59)]) + 1e-3 * v for v in vectors(3, (83,))]
    for method, index_bytes in (
        (wc.BlockTopK(0.2, block=8), index_code_bytes(2, 11)),
        (wc.BlockRandomK(0.2, block=8), 0),
    ):
        aggregator = wc.InProcess(3)
        outcome = exchange(method, values, aggregator=aggregator)
        count = np.count_nonzero(outcome.means[0])
        assert count in (16, 11), "two blocks, the last of which has three values"
        assert aggregator.traffic.sent_bytes == 2 + index_bytes + 4 * count
