"""The papers' algorithms once more, in plain NumPy: what the experiments are compared with.

Nothing of wiresum is in here: no integers, no lanes, no memories of its engine, another generator, other gradients.
All seeds run side by side: x is (seeds, d), what workers have is (seeds, workers, d).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from datasets import Task

Array: TypeAlias = npt.NDArray[np.float64]
Quantise: TypeAlias = Callable[[Array], Array]


class Problem:
    """Logistic regression with rows dealt to workers in their order."""

    def __init__(self, task: Task) -> None:
        parts = np.array_split(task.signed, task.problem.workers)
        self.counts = np.array([len(part) for part in parts])
        self.rows = np.zeros((len(parts), self.counts.max(), task.signed.shape[1]))
        for worker, part in enumerate(parts):
            self.rows[worker, : len(part)] = part
        self.weights = (np.arange(self.counts.max()) < self.counts[:, None]) / self.counts[:, None]
        self.l2, self.solution = task.problem.l2, task.solution

    def gradients(self, x: Array) -> Array:
        """Of all workers."""
        margins = np.moveaxis(self.rows @ x.T, 2, 0)
        pull = -self.weights / (1 + np.exp(margins))
        return np.asarray(np.einsum("snm,nmd->snd", pull, self.rows) + self.l2 * x[:, None])

    def row_gradients(self, x: Array, chosen: npt.NDArray[np.int64]) -> Array:
        """Of one row of each worker; `chosen` is (seeds, workers)."""
        rows = self.rows[np.arange(len(self.rows)), chosen]
        margins = np.einsum("snd,sd->sn", rows, x)
        return np.asarray(-rows / (1 + np.exp(margins))[..., None] + self.l2 * x[:, None])

    def errors(self, x: Array) -> Array:
        return np.asarray(np.sum((x - self.solution) ** 2, axis=1) / np.sum(self.solution**2))


def ternary(norm: str, generator: np.random.Generator) -> Quantise:
    """M sign(v) with probability |v|/M, M the largest norm of all workers; else zero."""

    def quantise(values: Array) -> Array:
        lengths = np.linalg.norm(values, {"1": 1, "2": 2, "inf": np.inf}[norm], axis=2).max(axis=1)[:, None, None]
        return np.asarray(lengths * np.sign(values) * (generator.random(values.shape) * lengths < np.abs(values)))

    return quantise


def diana(
    task: Task,
    quantise: Quantise,
    generator: np.random.Generator,
    *,
    step_size: float,
    alpha: float,
    steps: int,
    every: int,
    seeds: int,
    estimator: str = "full",
) -> Array:
    """DIANA; with estimator "row" of one row a step, with "lsvrg" VR-DIANA. Returns the errors, (records, seeds)."""
    problem = Problem(task)
    workers, dimension = len(problem.rows), problem.rows.shape[2]
    x = np.zeros((seeds, dimension))
    shift = np.zeros((seeds, workers, dimension))
    anchor, at_anchor = x.copy(), problem.gradients(x)
    errors: list[Any] = []
    for step in range(steps + 1):
        if step % every == 0:
            errors.append(problem.errors(x))
        if estimator == "full":
            gradients = problem.gradients(x)
        else:
            chosen = (generator.random((seeds, workers)) * problem.counts).astype(np.int64)
            gradients = problem.row_gradients(x, chosen)
        if estimator == "lsvrg":
            gradients = gradients - problem.row_gradients(anchor, chosen) + at_anchor
            renewed = generator.random(seeds) < 1 / problem.counts.mean()
            if renewed.any():
                anchor = np.where(renewed[:, None], x, anchor)
                at_anchor = np.where(renewed[:, None, None], problem.gradients(x), at_anchor)
        sent = quantise(gradients - shift)
        x = x - step_size * (shift.mean(axis=1) + sent.mean(axis=1))
        shift = shift + alpha * sent
    return np.array(errors)


def top_k(values: Array, count: int) -> Array:
    """The `count` largest magnitudes; zeros elsewhere."""
    kept = np.zeros_like(values)
    chosen = np.argsort(-np.abs(values), kind="stable")[:count]
    kept[chosen] = values[chosen]
    return kept


def global_top_k(vectors: list[Array], count: int, *, tree: bool) -> Array:
    """The sum that gTop-k gives of these vectors: of all top k at once, or merged in pairs as it was published."""
    held = [top_k(vector, count) for vector in vectors]
    if not tree:
        return top_k(np.sum(held, axis=0), count)
    while len(held) > 1:
        pairs = [top_k(np.add(*held[at : at + 2]), count) for at in range(0, len(held) - 1, 2)]
        held = pairs + held[len(held) - len(held) % 2 :]
    return held[0]
