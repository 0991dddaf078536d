"""Ratios that change with the step (warm-up)."""

from __future__ import annotations

import numpy as np
import pytest

from wiresum.compress import (
    BlockRandomK,
    BlockTopK,
    Compressor,
    Engine,
    GTopK,
    InProcess,
    Piece,
    Segment,
    TopK,
    WarmUp,
)

from .rig import exchange, vectors

GTOP_K = (0.25, 0.0725, 0.015, 0.004)
"""arXiv 1901.04359, section IV."""


def test_a_warm_up_takes_its_stages_one_after_the_other() -> None:
    warm = WarmUp(0.001, 3, GTOP_K)
    assert [warm.at(step) for step in range(14)] == [*np.repeat(GTOP_K, 3), 0.001, 0.001]


def test_the_default_stages_are_deep_gradient_compressions() -> None:
    assert WarmUp(0.001, 1).stages == (0.25, 0.0625, 0.015625, 0.004)


def test_the_first_step_of_a_training_is_the_first_of_its_warm_up() -> None:
    """Through the engine, which counts the steps: with a stage of one step it is the first step that sends more."""
    engine = Engine(GTopK(WarmUp(0.05, 2, (0.5, 0.1))), InProcess(2))
    counts = []
    for step in range(6):
        values = [np.random.default_rng([step, worker]).normal(size=40) for worker in range(2)]
        mean = engine.average([Segment((Piece("x", (40,)),))], [[value] for value in values])[0]
        engine.advance()
        counts.append(np.count_nonzero(mean))
    assert counts == [20, 20, 4, 4, 2, 2]


WARM = WarmUp(0.02, 2, (0.5, 0.1))


@pytest.mark.parametrize(
    "method", [TopK(WARM), GTopK(WARM), BlockTopK(WARM, block=1), BlockRandomK(WARM, block=1)], ids=repr
)
def test_a_step_sends_as_many_values_as_its_stage_says(method: Compressor) -> None:
    values = vectors(3, (200,))
    for step, count in enumerate([100, 100, 20, 20, 4, 4]):
        outcome = exchange(method, values, step=step)
        assert np.count_nonzero(outcome.means[0]) >= count
        if isinstance(method, GTopK):
            assert np.count_nonzero(outcome.means[0]) == count
        else:
            assert [np.count_nonzero(row[0]) for row in outcome.own] == [count] * 3


@pytest.mark.parametrize("method", [TopK(WarmUp(0.1, 1)), TopK(WarmUp(0.2, 1, (0.1,)))])
def test_a_contraction_holds_in_every_stage(method: Compressor) -> None:
    assert method.contraction(1000) == (4 if method == TopK(WarmUp(0.1, 1)) else 100) / 1000
