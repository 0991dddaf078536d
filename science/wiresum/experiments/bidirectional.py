"""Experiment 17: compression in both directions, by layer and over the entire model.

Source: 'On the discrepancy between the theoretical analysis and practical implementations of compressed communication'
(arXiv 1911.08250), whose theorem bounds the mean of |grad f|^2 with constants of the layers in place of the model's.
Workers send Q_W of their gradients, and the mean is compressed once more by Q_M. With layers j and unbiased Q,

    E|g|^2 <= sum over j of (1 + w_M)(|grad_j f|^2 + w_W/n mean_i |grad_j f_i|^2),       w of the layer's size

so with gamma = 1/(L max(1 + w_M)) the mean over K steps of |grad f|^2 is at most 2 (f(x_0) - inf f)/(gamma K) +
L gamma N, with N the second part of the sum, at its largest in the run. The entire model is one layer. Constants of
layers are smaller, and so is the bound. The function is the one of experiment 12 that is not convex.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from wiresum.compress import QSGD, Compressor, Engine, InProcess, Piece, Segment
from wiresum.compress.arrays import Vector
from wiresum.experiments import figures
from wiresum.experiments.beyond_strong_convexity import Penalised
from wiresum.experiments.datasets import rows
from wiresum.experiments.experiment import Claim, Curve, Report

LEVELS = 3
LAYERS = {"by layer": (11, 10, 10), "entire model": (31,)}
"""Sizes of the parts that are compressed on their own."""


@dataclass(frozen=True)
class Constants:
    """The constants w_W (`up`) and w_M (`down`) of one layer."""

    up: float
    down: float

    @classmethod
    def of(cls, method: Compressor, size: int, workers: int) -> Constants:
        assert method.down is not None
        up, down = method.omega(size, workers), method.down.omega(size, 1)
        assert up is not None and down is not None, "both are unbiased"
        return cls(up, down)


@dataclass(frozen=True)
class Run:
    mean: Curve
    """The mean of |grad f|^2 over the steps so far."""
    bound: Curve
    noise: float
    """The largest N in the run."""
    step_size: float


def run(*, workers: int = 10, steps: int = 1500) -> Report:
    features, labels = rows(unit_rows=True)
    problem = Penalised(features, labels, workers=workers, l2=0.0)
    method = QSGD(LEVELS, block=None, down=QSGD(LEVELS, block=None))
    runs = {name: _run(name, problem, method, sizes, steps) for name, sizes in LAYERS.items()}
    layer, model = runs.values()
    root = math.sqrt(31) / LEVELS
    claims = [
        *(Claim(f"{name}: running mean of |grad f|^2 / its bound, maximum over steps", one.mean.over(one.bound),
                at_most=1) for name, one in runs.items()),
        Claim.equal("the entire model's 1 + w_M, as its closed form (spread below 2: 1 + d/4s^2)",
                    1 + Constants.of(method, 31, workers).down, 1 + root**2 / 4),
        Claim("N by layer / N of the entire model", layer.noise / model.noise, at_most=0.9),
        Claim("step size by layer / of the entire model", layer.step_size / model.step_size, at_least=1.2),
        Claim("the bound by layer / of the entire model, last step", layer.bound.last / model.bound.last, at_most=0.9),
        Claim("the mean by layer / of the entire model, last step", layer.mean.last / model.mean.last, at_most=1),
        Claim("by layer: last mean / first", layer.mean.last / layer.mean.values[0], at_most=0.2),
    ]  # fmt: skip

    def draw(figure: Figure) -> None:
        figures.logarithmic(
            figure.subplots(),
            [one.mean for one in runs.values()],
            dashed=[one.bound for one in runs.values()],
            title="the mean so far, and its bound",
            unit="|grad f(x)|²",
        )

    return Report(
        f"Compressed in both directions, {LEVELS} levels: {workers} workers, {steps} steps",
        ["", "step size", "N", "mean of |grad f|²", "the bound"],
        [
            [name, f"{one.step_size:.3f}", f"{one.noise:.2e}", f"{one.mean.last:.1e}", f"{one.bound.last:.1e}"]
            for name, one in runs.items()
        ],
        claims,
        draw,
    )


def _run(name: str, problem: Penalised, method: Compressor, sizes: tuple[int, ...], steps: int) -> Run:
    constants = [Constants.of(method, size, problem.workers) for size in sizes]
    smoothness = problem.worker_smoothness
    step_size = 1 / (smoothness * max(1 + one.down for one in constants))
    engine = Engine(method, InProcess(problem.workers), seed=1)
    segments = [Segment((Piece(f"{at}", (size,)),)) for at, size in enumerate(sizes)]
    ends = np.cumsum(sizes)[:-1]
    x, squares, noises = np.zeros(problem.dimension), [], []
    for _ in range(steps):
        gradients = [np.split(problem.gradient(worker, x), ends) for worker in range(problem.workers)]
        squares.append(float(np.sum(np.mean([np.concatenate(mine) for mine in gradients], axis=0) ** 2)))
        noises.append(_noise(gradients, constants))
        x = x - step_size * np.concatenate(engine.average(segments, gradients))
        engine.advance()
    counts = np.arange(1, steps + 1)
    means = np.cumsum(squares) / counts
    bounds = 2 * math.log(2) / (step_size * counts) + smoothness * step_size * max(noises)
    at = list(range(steps))
    return Run(
        Curve(name, at, means.tolist()), Curve("its bound", at, bounds.tolist()), max(noises), step_size
    )  # f(0) is log 2, and f is nowhere below 0


def _noise(gradients: list[list[Vector]], constants: list[Constants]) -> float:
    """The noise N at one point."""
    squares = np.mean([[np.sum(layer**2) for layer in mine] for mine in gradients], axis=0)
    factors = [(1 + one.down) * one.up / len(gradients) for one in constants]
    return float(np.dot(factors, squares))
