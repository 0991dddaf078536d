"""The papers' algorithms in plain NumPy, independent of wiresum: a reference for the experiments.

The reference has its own random generator and gradients, and no integers. All seeds run together: x is (seeds, d),
vectors of workers are (seeds, workers, d).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from wiresum.experiments.datasets import Task

Array: TypeAlias = npt.NDArray[np.float64]
Quantise: TypeAlias = Callable[[Array], Array]


class Problem:
    """Logistic regression with rows distributed to workers in order."""

    def __init__(self, task: Task) -> None:
        parts = np.array_split(task.signed, task.problem.workers)
        self.counts = np.array([len(part) for part in parts])
        self.rows = np.zeros((len(parts), self.counts.max(), task.signed.shape[1]))
        for worker, part in enumerate(parts):
            self.rows[worker, : len(part)] = part
        self.weights = (np.arange(self.counts.max()) < self.counts[:, None]) / self.counts[:, None]
        self.l2, self.solution, self.penalty = task.problem.l2, task.solution, task.penalty

    def values(self, x: Array) -> Array:
        """The values f(x), by seed."""
        losses = np.logaddexp(0, -np.moveaxis(self.rows @ x.T, 2, 0))
        penalties = self.l2 / 2 * np.sum(x**2, axis=1) + self.penalty * np.sum(x**2 / (1 + x**2), axis=1)
        return np.asarray(np.sum(self.weights * losses, axis=(1, 2)) / len(self.rows) + penalties)

    def gradients(self, x: Array) -> Array:
        """The gradients at x, by seed and worker."""
        margins = np.moveaxis(self.rows @ x.T, 2, 0)
        pull = -self.weights / (1 + np.exp(margins))
        own = np.einsum("snm,nmd->snd", pull, self.rows)
        return np.asarray(own + (self.l2 * x + 2 * self.penalty * x / (1 + x**2) ** 2)[:, None])

    def row_gradients(self, x: Array, chosen: npt.NDArray[np.int64]) -> Array:
        """The gradient of one row of each worker; `chosen` is (seeds, workers)."""
        rows = self.rows[np.arange(len(self.rows)), chosen]
        margins = np.einsum("snd,sd->sn", rows, x)
        return np.asarray(-rows / (1 + np.exp(margins))[..., None] + self.l2 * x[:, None])

    @property
    def smoothness(self) -> Array:
        """The smoothness L of each row, (workers, rows); zero beyond a worker's rows."""
        return np.where(self.weights > 0, np.sum(self.rows**2, axis=2) / 4 + self.l2, 0.0)

    def by_smoothness(self, generator: np.random.Generator, seeds: int) -> npt.NDArray[np.int64]:
        """A random row of each worker, with probabilities proportional to its smoothness; (seeds, workers)."""
        drawn = [generator.choice(len(each), seeds, p=each / each.sum()) for each in self.smoothness]
        return np.stack(drawn, axis=1)

    def over_uniform(self, chosen: npt.NDArray[np.int64]) -> Array:
        """The probabilities of chosen rows, divided by those of uniform sampling."""
        smoothness = self.smoothness
        return np.asarray(smoothness[np.arange(len(smoothness)), chosen] / smoothness.sum(axis=1) * self.counts)

    def errors(self, x: Array) -> Array:
        return np.asarray(np.sum((x - self.solution) ** 2, axis=1) / np.sum(self.solution**2))


def ternary(norm: str, generator: np.random.Generator) -> Quantise:
    """A quantiser to M sign(v) with probability |v|/M, else to zero, where M is the largest norm of all workers."""

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
    measure: Callable[[Problem, Array], Array] = Problem.errors,
) -> Array:
    """Runs DIANA. Returns the errors, or another measure of x, as an array (records, seeds).

    The estimator is "full" for full gradients, "row" for one row a step, "lsvrg" for VR-DIANA, "importance" for
    VR-DIANA with importance sampling, or "svrg" for an anchor that moves after as many steps as a worker has rows.
    """
    problem = Problem(task)
    workers, dimension = len(problem.rows), problem.rows.shape[2]
    x = np.zeros((seeds, dimension))
    shift = np.zeros((seeds, workers, dimension))
    anchor, at_anchor = x.copy(), problem.gradients(x)
    errors: list[Any] = []
    for step in range(steps + 1):
        if step % every == 0:
            errors.append(measure(problem, x))
        if estimator == "full":
            gradients = problem.gradients(x)
        elif estimator == "importance":
            chosen = problem.by_smoothness(generator, seeds)
            gradients = problem.row_gradients(x, chosen)
        else:
            chosen = (generator.random((seeds, workers)) * problem.counts).astype(np.int64)
            gradients = problem.row_gradients(x, chosen)
        if estimator in ("lsvrg", "svrg", "importance"):
            difference = gradients - problem.row_gradients(anchor, chosen)
            if estimator == "importance":
                difference = difference / problem.over_uniform(chosen)[..., None]
            gradients = difference + at_anchor
            renewed = generator.random(seeds) < 1 / problem.counts.mean()
            if estimator == "svrg":
                renewed = np.full(seeds, (step + 1) % round(problem.counts.mean()) == 0)
            if renewed.any():
                anchor = np.where(renewed[:, None], x, anchor)
                at_anchor = np.where(renewed[:, None, None], problem.gradients(x), at_anchor)
        sent = quantise(gradients - shift)
        x = x - step_size * (shift.mean(axis=1) + sent.mean(axis=1))
        shift = shift + alpha * sent
    return np.array(errors)


def top_k(values: Array, count: int) -> Array:
    """The values with the `count` largest magnitudes, and zeros elsewhere."""
    kept = np.zeros_like(values)
    chosen = np.argsort(-np.abs(values), kind="stable")[:count]
    kept[chosen] = values[chosen]
    return kept


def global_top_k(vectors: list[Array], count: int, *, tree: bool) -> Array:
    """gTop-k's sum of vectors: of all top k at once, or with `tree` merged in pairs as published."""
    held = [top_k(vector, count) for vector in vectors]
    if not tree:
        return top_k(np.sum(held, axis=0), count)
    while len(held) > 1:
        pairs = [top_k(np.add(*held[at : at + 2]), count) for at in range(0, len(held) - 1, 2)]
        held = pairs + held[len(held) - len(held) % 2 :]
    return held[0]


class MomentumCorrected:
    """Deep Gradient Compression's algorithm 4 (arXiv 1712.01887) at all workers, with gTop-k's choice (1901.04359)."""

    def __init__(self, workers: int, size: int, *, momentum: float, masking: bool, clip: float) -> None:
        self.velocities, self.residuals = np.zeros((2, workers, size))
        self.momentum, self.masking, self.clip = momentum, masking, clip

    def step(self, gradients: list[Array], count: int, *, tree: bool) -> Array:
        """Makes a step, and returns the sum that all workers receive."""
        threshold = self.clip / np.sqrt(len(gradients))
        clipped = [gradient * min(1.0, threshold / np.linalg.norm(gradient)) for gradient in gradients]
        self.velocities = self.momentum * self.velocities + clipped
        self.residuals = self.residuals + self.velocities
        total = global_top_k(list(self.residuals), count, tree=tree)
        for u, v in zip(self.velocities, self.residuals, strict=True):
            sent = (top_k(v, count) != 0) & (total != 0)
            v[sent] = 0
            if self.masking:
                u[sent] = 0
        return total


Choose: TypeAlias = Callable[[Array, Array], npt.NDArray[np.bool_]]
"""A function of (workers, d) vectors and of x that returns a mask of the values to send."""


def error_feedback(
    task: Task,
    choose: Choose,
    *,
    step_size: float,
    steps: int,
    every: int,
    seeds: int = 1,
    decay: float = 0.0,
    in_steps: bool = False,
) -> Array:
    """Runs gradient descent with error feedback and step size step_size / (1 + decay k). Returns the errors, (records,
    seeds). `in_steps` keeps residuals of steps, as in arXiv 1901.09847, and not of gradients."""
    problem = Problem(task)
    workers, dimension = len(problem.rows), problem.rows.shape[2]
    x, residual = np.zeros((seeds, dimension)), np.zeros((seeds, workers, dimension))
    errors: list[Any] = []
    for step in range(steps + 1):
        if step % every == 0:
            errors.append(problem.errors(x))
        rate = step_size / (1 + decay * step)
        waiting = residual + (rate if in_steps else 1) * problem.gradients(x)
        sent = np.stack([np.where(choose(mine, at), mine, 0) for mine, at in zip(waiting, x, strict=True)])
        residual = waiting - sent
        x = x - (1 if in_steps else rate) * sent.mean(axis=1)
    return np.array(errors)


def block_norms(values: Array, block: int) -> Array:
    """The norms of blocks along the last axis; the last block may be shorter."""
    padded = np.zeros((*values.shape[:-1], -(-values.shape[-1] // block) * block))
    padded[..., : values.shape[-1]] = values
    return np.asarray(np.linalg.norm(padded.reshape(*values.shape[:-1], -1, block), axis=-1))


def of_values(blocks: npt.NDArray[np.bool_], block: int, size: int) -> npt.NDArray[np.bool_]:
    """Expands a mask of blocks to a mask of their values."""
    return np.asarray(np.repeat(blocks, block, axis=-1)[..., :size])


def largest_blocks(scores: Array, count: int) -> npt.NDArray[np.bool_]:
    """A mask of the `count` largest scores along the last axis; among equals the first win."""
    order = np.argsort(-scores, axis=-1, kind="stable")[..., :count]
    chosen = np.zeros(scores.shape, bool)
    np.put_along_axis(chosen, order, True, axis=-1)
    return chosen
