"""Gradient estimators are unbiased, and have no variance at the solution where theory promises that."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from wiresum.compress import DIANA, Turn
from wiresum.convex import LSVRG, SAGA, SVRG, Estimator, Plain, Progress, distributed_minimize

from .problems import differing

ALL = [Plain(3), LSVRG(3), SAGA(3), LSVRG(3, sampling="importance"), SVRG(3, length=10**6)]

FLOAT = np.dtype(np.float64)


def turn(step: int, worker: int = 1) -> Turn:
    return Turn(7, step, worker, 4, "rows", (), np.dtype(np.float64))


@pytest.mark.parametrize("estimator", ALL, ids=repr)
def test_the_estimator_is_unbiased_away_from_its_starting_point(estimator: Estimator) -> None:
    problem, x = differing(), np.full(8, 0.7)
    state = estimator.start(problem, 1, np.zeros(8))
    drawn = np.stack([estimator.gradient(problem, 1, x, state, turn(step)) for step in range(3000)])
    deviation = drawn.std(axis=0) / np.sqrt(len(drawn))
    assert (np.abs(drawn.mean(axis=0) - problem.gradient(1, x)) <= 6 * deviation).all()
    assert (deviation > 0).all()


@pytest.mark.parametrize("estimator", ALL[1:], ids=repr)
def test_variance_reduction_is_exact_at_its_starting_point(estimator: Estimator) -> None:
    problem, x = differing(), np.full(8, 0.7)
    state = estimator.start(problem, 1, x)
    assert estimator.gradient(problem, 1, x, state, turn(0)) == pytest.approx(problem.gradient(1, x), abs=1e-14)


def test_without_a_batch_the_gradient_is_exact() -> None:
    problem, x = differing(), np.ones(8)
    assert (Plain().gradient(problem, 2, x, {}, turn(0, 2)) == problem.gradient(2, x)).all()


def test_svrg_is_renewed_when_its_inner_loop_ends() -> None:
    problem, estimator = differing(), SVRG(1, length=4)
    state = estimator.start(problem, 1, np.zeros(8))
    anchors = []
    for step in range(10):
        state = estimator.settle(problem, 1, np.full(8, step + 1.0), state, turn(step))
        anchors.append(state["w"][0])
        assert state["full"] == pytest.approx(problem.gradient(1, state["w"]))
    assert anchors == [0, 0, 0, 4, 4, 4, 4, 8, 8, 8]
    with pytest.raises(ValueError, match="at least 1 step, not 0"):
        SVRG(length=0)


def test_lsvrg_is_renewed_at_the_point_before_the_step() -> None:
    """VR-DIANA's algorithm 3: w becomes x_k, not x_(k+1); all workers flip one coin."""
    problem, steps = differing(), 30
    path: list[np.ndarray] = []
    evaluated: list[tuple[int, bytes]] = []

    class Watched:
        """The problem, with the points at which whole gradients are taken."""

        def __getattr__(self, name: str) -> Any:
            return getattr(problem, name)

        def gradient(self, worker: int, x: np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
            if rows is None:
                evaluated.append((worker, x.tobytes()))
            return problem.gradient(worker, x, rows)

    def observe(progress: Progress) -> None:
        path.append(progress.x)

    distributed_minimize(
        Watched(), DIANA(), step_size=0.01, steps=steps, estimator=LSVRG(1, refresh=0.3), observe=observe
    )
    visited = [point.tobytes() for point in path]
    by_worker = [[visited.index(point) for at, point in evaluated if at == worker] for worker in range(problem.workers)]
    assert all(one == by_worker[0] for one in by_worker), "one coin for all"
    assert by_worker[0][:1] == [0]
    assert 3 < len(by_worker[0]) < 20
    renewed = by_worker[0][1:]
    coins = [Turn(0, step, 0, 1, "rows", (), FLOAT).common().uniform(1, stream=1)[0] for step in range(steps)]
    assert renewed == [step for step, coin in enumerate(coins) if coin < 0.3]


def test_saga_replaces_the_drawn_rows_of_its_table_and_no_others() -> None:
    problem, estimator, x = differing(), SAGA(2), np.full(8, 0.7)
    state = estimator.start(problem, 1, np.zeros(8))
    before = state["table"].copy()
    gradient = estimator.gradient(problem, 1, x, state, turn(3))
    after = estimator.settle(problem, 1, x, state, turn(3))["table"]
    changed = np.flatnonzero((after != before).any(axis=1))
    assert len(changed) == 2
    for row in changed:
        assert after[row] == pytest.approx(problem.gradient(1, x, np.array([row])))
    expected = problem.gradient(1, x, changed) - before[changed].mean(axis=0) + before.mean(axis=0)
    assert gradient == pytest.approx(expected), "the rows of the estimate are those of the table"


def test_sagas_mean_stays_the_mean_of_its_table() -> None:
    problem, estimator = differing(), SAGA(2)
    state = estimator.start(problem, 1, np.zeros(8))
    for step in range(20):
        state = estimator.settle(problem, 1, np.full(8, step / 10), state, turn(step))
    assert state["mean"] == pytest.approx(state["table"].mean(axis=0), abs=1e-13)


def test_importance_sampling_draws_rows_by_their_smoothness_and_is_unbiased() -> None:
    """The contribution of each row is divided by m times the probability of drawing it."""
    problem, x = differing(), np.full(8, 0.7)
    estimator = LSVRG(1, sampling="importance")
    state = estimator.start(problem, 1, np.zeros(8))
    drawn = np.stack([estimator.gradient(problem, 1, x, state, turn(step)) for step in range(4000)])
    smoothness = problem.rows_smoothness(1)
    by_row = [
        smoothness.mean()
        / smoothness[row]
        * (problem.gradient(1, x, np.array([row])) - problem.gradient(1, np.zeros(8), np.array([row])))
        for row in range(problem.rows(1))
    ]
    which = np.array([np.abs(np.array(by_row) - (one - state["full"])).sum(axis=1).argmin() for one in drawn])
    assert np.abs(np.array(by_row)[which] + state["full"] - drawn).max() < 1e-12
    expected = 4000 * smoothness / smoothness.sum()
    assert (np.abs(np.bincount(which, minlength=len(smoothness)) - expected) < 6 * np.sqrt(expected)).all()
    assert smoothness.max() > 2 * smoothness.min(), "otherwise it would be no test"


def test_importance_sampling_takes_the_mean_of_a_batch() -> None:
    problem, x = differing(), np.full(8, 0.7)
    estimator = LSVRG(64, sampling="importance")
    state = estimator.start(problem, 1, np.zeros(8))
    drawn = np.stack([estimator.gradient(problem, 1, x, state, turn(step)) for step in range(200)])
    deviation = drawn.std(axis=0) / np.sqrt(len(drawn))
    assert (np.abs(drawn.mean(axis=0) - problem.gradient(1, x)) <= 6 * deviation).all()
    single = np.stack([LSVRG(1, sampling="importance").gradient(problem, 1, x, state, turn(s)) for s in range(1000)])
    assert drawn.var(axis=0).sum() == pytest.approx(single.var(axis=0).sum() / 64, rel=0.3)


def test_unknown_sampling_is_refused() -> None:
    with pytest.raises(ValueError, match='"uniform" or "importance" sampling, not \'best\''):
        LSVRG(sampling="best")  # type: ignore[arg-type]
