"""Logistic regression: gradients, constants, and the solution."""

from __future__ import annotations

import numpy as np
import pytest

from wiresum.convex import LogisticRegression

from .problems import differing


def test_the_gradient_is_that_of_the_value() -> None:
    problem = differing()
    x, step = np.linspace(-1, 1, 8), 1e-6
    numeric = [(problem.value(x + step * e) - problem.value(x - step * e)) / (2 * step) for e in np.eye(8)]
    mean = np.mean([problem.gradient(worker, x) for worker in range(4)], axis=0)
    assert mean == pytest.approx(np.array(numeric), abs=1e-8)


def test_a_workers_gradient_is_the_mean_of_its_rows() -> None:
    problem, x = differing(), np.ones(8)
    one_by_one = [problem.gradient(2, x, np.array([row])) for row in range(problem.rows(2))]
    assert problem.gradient(2, x) == pytest.approx(np.mean(one_by_one, axis=0))


def test_the_gradient_vanishes_at_the_solution() -> None:
    problem = differing()
    solution = problem.solution()
    gradients = np.stack([problem.gradient(worker, solution) for worker in range(4)])
    assert np.linalg.norm(gradients.mean(axis=0)) < 1e-14
    assert np.linalg.norm(gradients, axis=1).min() > 0.05, "the workers differ"


def test_the_constants_bound_how_fast_gradients_change() -> None:
    problem = differing()
    generator = np.random.default_rng(1)
    assert problem.smoothness <= problem.worker_smoothness <= problem.row_smoothness
    for _ in range(50):
        x, y = generator.normal(size=(2, 8))
        distance = np.linalg.norm(x - y)
        changes = [problem.gradient(worker, x) - problem.gradient(worker, y) for worker in range(4)]
        assert np.linalg.norm(np.mean(changes, axis=0)) <= problem.smoothness * distance
        for change in changes:
            assert np.linalg.norm(change) <= problem.worker_smoothness * distance
            assert change @ (x - y) >= problem.strong_convexity * distance**2 * (1 - 1e-12)


def test_a_rows_smoothness_bounds_how_fast_its_gradient_changes_and_the_mean_is_over_rows() -> None:
    problem = differing()
    x, y = np.random.default_rng(1).normal(size=(2, 8)) / 100
    smoothness = problem.rows_smoothness(2)
    for row in range(problem.rows(2)):
        one = np.array([row])
        change = np.linalg.norm(problem.gradient(2, x, one) - problem.gradient(2, y, one))
        assert change <= smoothness[row] * np.linalg.norm(x - y)
    means = [np.mean(problem.rows_smoothness(worker)) for worker in range(4)]
    assert problem.mean_row_smoothness == pytest.approx(max(means))
    assert problem.worker_smoothness <= problem.mean_row_smoothness < problem.row_smoothness


def test_invalid_data_is_refused() -> None:
    with pytest.raises(ValueError, match="labels are -1 or 1"):
        LogisticRegression(np.ones((4, 2)), np.array([0.0, 1, 0, 1]), workers=2, l2=0.1)
    with pytest.raises(ValueError, match="4 rows cannot be dealt to 5 workers"):
        LogisticRegression(np.ones((4, 2)), np.ones(4), workers=5, l2=0.1)
