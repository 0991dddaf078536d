"""Experiment 17: compression in both directions, by layer and over the entire model.

Source: 'On the discrepancy between the theoretical analysis and practical implementations of compressed communication'
(arXiv 1911.08250), whose theorem bounds the mean of |grad f|^2 with constants of the layers in place of the model's.
Workers send Q_W of their gradients, and the mean is compressed once more by Q_M. The function is the one of experiment
12 that is not convex, with smoothness L. The entire model is one layer.

Unbiased operators. With layers j,

    E|g|^2 <= sum over j of (1 + w_M)(|grad_j f|^2 + w_W/n mean_i |grad_j f_i|^2),       w of the layer's size

so with gamma = 1/(L max(1 + w_M)) the mean over K steps of |grad f|^2 is at most 2 (f(x_0) - inf f)/(gamma K) +
L gamma N, with N the second part of the sum, at its largest in the run. Constants of layers are smaller, and so is the
bound.

Biased operators. The theorem asks for <E g, grad f> >= alpha |grad f|^2 + R. With one worker, and so with workers that
have equal gradients, Top-k of the same ratio in both directions is one projection, so <g, grad f> = |g|^2 >=
alpha |grad f|^2 with alpha = min k_j/d_j and R = 0. With gamma = 1/L each step lowers f by |g|^2/(2L) or more, and the
mean of |grad f|^2 is at most 2 L (f(x_0) - inf f)/(alpha K). Workers that differ have no such alpha: the g_i are not
zero where grad f is, so near such a point g keeps its length, while grad f gets short, and takes all directions, also
that of -g. There R is negative, and the bound keeps a part that no number of steps makes small.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from wiresum.compress import QSGD, Compressor, Engine, InProcess, Piece, Segment, TopK
from wiresum.compress.arrays import Vector
from wiresum.experiments import figures
from wiresum.experiments.beyond_strong_convexity import Penalised
from wiresum.experiments.datasets import rows
from wiresum.experiments.experiment import Claim, Curve, Report

LEVELS = 3
LAYERS = {"by layer": (11, 10, 10), "entire model": (31,)}
"""Sizes of the parts that are compressed on their own."""
RATIO = 0.1
TOP = TopK(RATIO, memory="none", down=TopK(RATIO, memory="none"))
START = math.log(2)
"""The value f(0); f is nowhere below 0."""


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
class Descent:
    """What a run had at each step."""

    squares: Vector
    """The squares |grad f|^2, (steps,)."""
    slopes: Vector
    """The ratios <g, grad f> / |grad f|^2, (steps,), with g the compressed gradient."""
    layers: Vector
    """The means over workers of |grad_j f_i|^2, (steps, layers)."""

    @property
    def counts(self) -> Vector:
        """The number of steps so far, (steps,)."""
        return np.arange(1.0, len(self.squares) + 1)

    def mean(self, name: str) -> Curve:
        return _curve(name, np.cumsum(self.squares) / self.counts)


@dataclass(frozen=True)
class Run:
    descent: Descent
    mean: Curve
    """The mean of |grad f|^2 over the steps so far."""
    bound: Curve
    noise: float
    """The largest N in the run; 0 for one worker."""
    step_size: float


def run(*, workers: int = 10, steps: int = 1500) -> Report:
    features, labels = rows(unit_rows=True)
    problem, alone = (Penalised(features, labels, workers=count, l2=0.0) for count in (workers, 1))
    method = QSGD(LEVELS, block=None, down=QSGD(LEVELS, block=None))
    runs = {name: _unbiased(name, problem, method, sizes, steps) for name, sizes in LAYERS.items()}
    layer, model = runs.values()
    top = {name: _top_k(name, alone, sizes, steps) for name, sizes in LAYERS.items()}
    differing = {
        name: _descend(problem, TOP, sizes, steps, 1 / problem.worker_smoothness) for name, sizes in LAYERS.items()
    }
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
    for name, one in top.items():
        alpha, apart = _alpha(LAYERS[name]), differing[name]
        claims += [
            Claim(f"{name}, Top-k, one worker: running mean / its bound, maximum over steps",
                  one.mean.over(one.bound), 0.05, 1),
            Claim("the same: <g, grad f> / (alpha |grad f|^2), minimum over steps",
                  float(one.descent.slopes.min()) / alpha, at_least=1),
            Claim("workers that differ: the same", float(apart.slopes.min()) / alpha, at_most=0.9),
            Claim("workers that differ: last |grad f|^2 / one worker's",
                  float(apart.squares[-1] / one.descent.squares[-1]), at_least=5),
        ]  # fmt: skip
    shown = {**runs, **{f"{name}, Top-k, one worker": one for name, one in top.items()}}

    def draw(figure: Figure) -> None:
        figures.logarithmic(
            figure.subplots(),
            [Curve(name, one.mean.steps, one.mean.values) for name, one in shown.items()],
            dashed=[one.bound for one in shown.values()],
            title="the mean so far, and its bound",
            unit="|grad f(x)|²",
        )

    return Report(
        f"Compressed in both directions, {LEVELS} levels or Top-k {RATIO:.0%}: {workers} workers, {steps} steps",
        ["", "step size", "N", "mean of |grad f|²", "the bound"],
        [
            [name, f"{one.step_size:.3f}", f"{one.noise:.2e}", f"{one.mean.last:.1e}", f"{one.bound.last:.1e}"]
            for name, one in shown.items()
        ]
        + [
            [f"{name}, Top-k, workers that differ", f"{1 / problem.worker_smoothness:.3f}", "-",
             f"{one.mean(name).last:.1e}", "-"]
            for name, one in differing.items()
        ],
        claims,
        draw,
    )  # fmt: skip


def _unbiased(name: str, problem: Penalised, method: Compressor, sizes: tuple[int, ...], steps: int) -> Run:
    constants = [Constants.of(method, size, problem.workers) for size in sizes]
    smoothness = problem.worker_smoothness
    step_size = 1 / (smoothness * max(1 + one.down for one in constants))
    found = _descend(problem, method, sizes, steps, step_size)
    factors = [(1 + one.down) * one.up / problem.workers for one in constants]
    noise = float(np.max(found.layers @ factors))
    bounds = 2 * START / (step_size * found.counts) + smoothness * step_size * noise
    return Run(found, found.mean(name), _curve("its bound", bounds), noise, step_size)


def _top_k(name: str, problem: Penalised, sizes: tuple[int, ...], steps: int) -> Run:
    step_size = 1 / problem.worker_smoothness
    found = _descend(problem, TOP, sizes, steps, step_size)
    bounds = 2 * START / (step_size * _alpha(sizes) * found.counts)
    return Run(found, found.mean(name), _curve("its bound", bounds), 0.0, step_size)


def _alpha(sizes: tuple[int, ...]) -> float:
    """The least k_j/d_j of the layers."""
    return min(max(1, round(RATIO * size)) / size for size in sizes)


def _descend(problem: Penalised, method: Compressor, sizes: tuple[int, ...], steps: int, step_size: float) -> Descent:
    engine = Engine(method, InProcess(problem.workers), seed=1)
    segments = [Segment((Piece(f"{at}", (size,)),)) for at, size in enumerate(sizes)]
    ends = np.cumsum(sizes)[:-1]
    x, squares, slopes, layers = np.zeros(problem.dimension), [], [], []
    for _ in range(steps):
        gradients = [problem.gradient(worker, x) for worker in range(problem.workers)]
        split = [np.split(mine, ends) for mine in gradients]
        whole = np.mean(gradients, axis=0)
        estimate = np.concatenate(engine.average(segments, split))
        squares.append(whole @ whole)
        slopes.append(estimate @ whole / squares[-1])
        layers.append(np.mean([[layer @ layer for layer in mine] for mine in split], axis=0))
        x = x - step_size * estimate
        engine.advance()
    return Descent(np.array(squares), np.array(slopes), np.array(layers))


def _curve(name: str, values: Vector) -> Curve:
    return Curve(name, list(range(len(values))), values.tolist())
