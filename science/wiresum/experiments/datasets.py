"""Logistic regression on scikit-learn's breast cancer data, with rows sorted so that workers differ."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from wiresum.compress import Compressor
from wiresum.compress.arrays import Vector
from wiresum.convex import LogisticRegression, Progress, Rule, distributed_minimize, vr_diana_rule
from wiresum.experiments.experiment import Curve

Matrix = npt.NDArray[np.float64]

ASTRAY = 1e6
"""The error above which a run counts as divergent."""


@dataclass(frozen=True)
class Task:
    """A problem and its solution."""

    problem: LogisticRegression
    solution: Vector
    signed: Matrix
    """The rows, multiplied by their labels."""
    penalty: float = 0.0
    """The factor of the sum of x_j^2/(1 + x_j^2) in `Penalised`."""

    def error(self, x: Vector) -> float:
        """The relative error |x - x*|^2 / |x*|^2."""
        return float(np.sum((x - self.solution) ** 2) / np.sum(self.solution**2))

    def omega(self, method: Compressor) -> float:
        omega = method.omega(self.problem.dimension, self.problem.workers)
        assert omega is not None, "the method is unbiased"
        return omega

    def vr_diana_rule(self, *, smoothness: float, omega: float) -> Rule:
        """The rule for one row a step, with an anchor that is renewed as often as the largest worker has drawn as many
        rows as it has."""
        workers = self.problem.workers
        return vr_diana_rule(
            smoothness=smoothness,
            strong_convexity=self.problem.strong_convexity,
            omega=omega,
            workers=workers,
            refresh=1 / max(self.problem.rows(worker) for worker in range(workers)),
        )

    def shift_square_at_start(self) -> float:
        """The mean over workers of |grad f_i(x*)|^2."""
        workers = range(self.problem.workers)
        return float(np.mean([np.sum(self.problem.gradient(worker, self.solution) ** 2) for worker in workers]))

    def row_square_at_start(self, *, by_importance: bool = False) -> float:
        """The mean over rows of |grad f_ij(0) - grad f_ij(x*)|^2; with `by_importance` each is multiplied by the mean L
        divided by L_ij."""
        pull = 1 / (1 + np.exp(self.signed @ self.solution)) - 0.5
        squares = np.sum((pull[:, None] * self.signed - self.problem.l2 * self.solution) ** 2, axis=1)
        parts = np.array_split(squares, self.problem.workers)
        if by_importance:
            smoothness = [self.problem.rows_smoothness(worker) for worker in range(self.problem.workers)]
            parts = [part * each.mean() / each for part, each in zip(parts, smoothness, strict=True)]
        return float(np.mean([np.mean(part) for part in parts]))

    def bound(self, label: str, rule: Rule, steps: list[int], *, by_importance: bool = False) -> Curve:
        """The rule's bound on the error, from x = 0 on."""
        distance = float(np.sum(self.solution**2))
        start = (distance, self.shift_square_at_start(), self.row_square_at_start(by_importance=by_importance))
        return Curve(label, steps, [rule.bound(step, *start) / distance for step in steps])


@functools.lru_cache(maxsize=4)
def rows(*, degree: int = 1, unit_rows: bool = False) -> tuple[Matrix, Vector]:
    """Standardised features (products up to `degree`) and an intercept of ones; rows sorted by label, -1 or 1.

    With `unit_rows` each row is scaled to length 1 before the intercept is added.
    """
    # This import takes more than a second, which a program that only shows its help need not spend.
    from sklearn.datasets import load_breast_cancer
    from sklearn.preprocessing import Normalizer, PolynomialFeatures, StandardScaler

    features, labels = load_breast_cancer(return_X_y=True)
    if degree > 1:
        features = PolynomialFeatures(degree, include_bias=False).fit_transform(
            StandardScaler().fit_transform(features)
        )
    features = StandardScaler().fit_transform(features)
    if unit_rows:
        features = Normalizer().fit_transform(features)
    features = np.hstack([features, np.ones((len(features), 1))])
    order = np.argsort(labels, kind="stable")
    return features[order], np.where(labels[order] > 0, 1.0, -1.0)


def breast_cancer(
    workers: int,
    *,
    condition: float,
    degree: int = 1,
    unit_rows: bool = False,
    by_row: bool | Literal["mean"] = False,
    mixed: bool = False,
) -> Task:
    """The problem for so many workers. `condition` is L/mu, with L of the workers; with `by_row` L is of single rows,
    or the "mean" over a worker's rows. With `mixed`, rows are distributed at random."""
    features, labels = rows(degree=degree, unit_rows=unit_rows)
    if mixed:
        order = np.random.Generator(np.random.Philox(7)).permutation(len(labels))
        features, labels = features[order], labels[order]
    plain = LogisticRegression(features, labels, workers=workers, l2=0.0)
    smoothness = plain.row_smoothness if by_row else plain.worker_smoothness
    if by_row == "mean":
        smoothness = plain.mean_row_smoothness
    problem = LogisticRegression(features, labels, workers=workers, l2=smoothness / (condition - 1))
    return Task(problem, problem.solution(), features * labels[:, None])


def error_curve(
    label: str,
    task: Task,
    method: Compressor,
    *,
    steps: int,
    every: int,
    iterates: list[Vector] | None = None,
    **options: Any,
) -> Curve:
    """The error at every `every`-th step of `distributed_minimize`, which ends early if it diverges. Appends x before
    each step and after the last to `iterates`, if given."""
    curve = Curve(label)

    def observe(progress: Progress) -> bool:
        if iterates is not None:
            iterates.append(progress.x)
        error = task.error(progress.x)
        astray = not error < ASTRAY
        if progress.step % every == 0 or astray:
            curve.add(progress.step, error)
        return astray

    distributed_minimize(task.problem, method, steps=steps, observe=observe, **options)
    return curve
