"""Logistic regression with l2 regularisation: the problem of the papers' experiments."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from wiresum.compress.arrays import Indices, Vector
from wiresum.convex.problem import Problem

NEWTON_STEPS_MAX = 100
NEWTON_DECREMENT = 1e-28
HALVINGS_MAX = 60

Matrix = npt.NDArray[np.float64]


class LogisticRegression(Problem):
    """f_i(x) = mean of log(1 + exp(-b a.x)) over worker i's rows (a, b), plus (l2/2)|x|^2; labels b are -1 or 1.

    features: (rows, d); labels: (rows,). Rows are distributed to workers in order, as evenly as possible: sort rows by
    label first if workers should differ.
    """

    def __init__(self, features: Matrix, labels: Vector, *, workers: int, l2: float) -> None:
        if not set(np.unique(labels)) <= {-1.0, 1.0}:
            raise ValueError("labels are -1 or 1")
        if not 1 <= workers <= len(features):
            raise ValueError(f"{len(features)} rows cannot be dealt to {workers} workers")
        self.workers = workers
        self.dimension = features.shape[1]
        self.l2 = l2
        signed = features * labels[:, None]
        self._signed: Sequence[Matrix] = [np.ascontiguousarray(part) for part in np.array_split(signed, workers)]

    def rows(self, worker: int) -> int:
        return len(self._signed[worker])

    def gradient(self, worker: int, x: Vector, rows: Indices | None = None) -> Vector:
        signed = self._signed[worker] if rows is None else self._signed[worker][rows]
        weights = -_sigmoid(-(signed @ x)) / len(signed)
        result: Vector = weights @ signed + self.l2 * x
        return result

    def value(self, x: Vector) -> float:
        """The value of f at x."""
        losses = [np.logaddexp(0, -(signed @ x)).mean() for signed in self._signed]
        return float(np.mean(losses) + self.l2 / 2 * (x @ x))

    @property
    def strong_convexity(self) -> float:
        """The strong convexity mu of every f_i."""
        return self.l2

    @property
    def smoothness(self) -> float:
        """The smoothness L of f."""
        weighted = [signed / np.sqrt(len(signed) * self.workers) for signed in self._signed]
        return _largest_eigenvalue(np.vstack(weighted)) / 4 + self.l2

    @property
    def worker_smoothness(self) -> float:
        """The largest smoothness L of any f_i."""
        parts = [signed / np.sqrt(len(signed)) for signed in self._signed]
        return max(_largest_eigenvalue(part) for part in parts) / 4 + self.l2

    @property
    def row_smoothness(self) -> float:
        """The largest smoothness L of any row's loss."""
        return max(float(self.rows_smoothness(worker).max()) for worker in range(self.workers))

    @property
    def mean_row_smoothness(self) -> float:
        """The largest mean of L over a worker's rows, for importance sampling."""
        return max(float(self.rows_smoothness(worker).mean()) for worker in range(self.workers))

    def rows_smoothness(self, worker: int) -> Vector:
        smoothness: Vector = np.square(self._signed[worker]).sum(axis=1) / 4 + self.l2
        return smoothness

    def solution(self) -> Vector:
        """The minimum x*, by Newton's method with a line search, up to rounding errors. RuntimeError without
        convergence."""
        x = np.zeros(self.dimension)
        for _ in range(NEWTON_STEPS_MAX):
            gradient = np.mean([self.gradient(worker, x) for worker in range(self.workers)], axis=0)
            direction = np.linalg.solve(self._hessian(x), gradient)
            decrement = float(gradient @ direction)
            if decrement < NEWTON_DECREMENT:
                return x
            x = x - self._step_length(x, direction, decrement) * direction
        raise RuntimeError(f"Newton's method has not converged in {NEWTON_STEPS_MAX} steps: is l2 too small?")

    def _step_length(self, x: Vector, direction: Vector, decrement: float) -> float:
        before, length = self.value(x), 1.0
        for _ in range(HALVINGS_MAX):
            if self.value(x - length * direction) <= before - length * decrement / 4 + 1e-15:
                break
            length /= 2
        return length

    def _hessian(self, x: Vector) -> Matrix:
        total = self.l2 * np.eye(self.dimension)
        for signed in self._signed:
            probability = _sigmoid(signed @ x)
            total += signed.T @ (signed * (probability * (1 - probability) / (len(signed) * self.workers))[:, None])
        return total


def _sigmoid(z: Vector) -> Vector:
    result: Vector = np.exp(-np.logaddexp(0, -z))
    return result


def _largest_eigenvalue(rows: Matrix) -> float:
    """The largest eigenvalue of rows^T rows."""
    return float(np.linalg.norm(rows, 2)) ** 2
