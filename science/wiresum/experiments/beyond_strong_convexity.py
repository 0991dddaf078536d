"""Experiment 12: DIANA on a function that is convex but hardly strongly convex, and on a function that is not convex.

Source: the algorithm of arXiv 1901.09269 with full gradients. The bounds are on means over steps: on the mean of
f(x_k) - f(x*), or of |grad f(x_k)|^2 (the proofs are at `diana_convex_rule` and `diana_nonconvex_rule`). The function
that is not convex has a penalty x^2/(1 + x^2) of every coordinate. Curves are compared with the same algorithm in plain
NumPy (numpy_reference.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from matplotlib.figure import Figure

from wiresum.compress import DIANA, Shift
from wiresum.compress.arrays import Indices, Vector
from wiresum.compress.quantise import Norm
from wiresum.convex import (
    LogisticRegression,
    MeanRule,
    Progress,
    diana_convex_rule,
    diana_nonconvex_rule,
    distributed_minimize,
)
from wiresum.experiments import figures, numpy_reference
from wiresum.experiments.comparison import Runs
from wiresum.experiments.datasets import Task, breast_cancer, rows
from wiresum.experiments.experiment import Claim, Curve, Report
from wiresum.experiments.numpy_reference import Array

CONDITION = 1000.0
"""Condition number of the convex problem, so large that bounds with mu promise less than a factor of ten in these
steps."""
PENALTY = 0.01
NORM: Norm = "inf"


class Penalised(LogisticRegression):
    """Logistic regression plus PENALTY times the sum of x_j^2/(1 + x_j^2), which is not convex where |x_j| > 1/sqrt
    3."""

    def gradient(self, worker: int, x: Vector, rows: Indices | None = None) -> Vector:
        gradient: Vector = super().gradient(worker, x, rows) + 2 * PENALTY * x / (1 + x**2) ** 2
        return gradient

    @property
    def worker_smoothness(self) -> float:
        return super().worker_smoothness + 2 * PENALTY

    def rows_smoothness(self, worker: int) -> Vector:
        return super().rows_smoothness(worker) + 2 * PENALTY

    def hessian(self, x: Vector) -> Array:
        return self._hessian(x) + np.diag(2 * PENALTY * (1 - 3 * x**2) / (1 + x**2) ** 3)


@dataclass(frozen=True)
class Case:
    name: str
    measured: str
    task: Task
    rule: MeanRule
    step_size: float
    """The rule's step size, by an independent formula."""
    ours: Callable[[Vector], float]
    theirs: Callable[[numpy_reference.Problem, Array], Array]
    start: float
    shift_square: float

    def bound(self, steps: int) -> float:
        return self.rule.bound(steps, self.start, self.shift_square)


def run(*, workers: int = 10, steps: int = 1500, seeds: int = 3) -> Report:
    table, claims, pictures = [], [], []
    for case in (_convex(workers), not_convex(workers)):
        found, iterates = _runs(case, steps, seeds)
        means = np.cumsum(found.curve.values) / np.arange(1, steps + 1)
        mean = Curve("its mean so far", found.curve.steps, means.tolist())
        bound = Curve("bound of the mean", found.curve.steps, [case.bound(step + 1) for step in found.curve.steps])
        claims += [
            Claim.equal(f"{case.name}: step size as in the proof", case.rule.step_size, case.step_size),
            Claim(f"{case.name}: running mean of {case.measured} / its bound, maximum over steps",
                  float(np.max(means / bound.values)), at_most=1),
            *found.claims(),
        ]  # fmt: skip
        if isinstance(case.task.problem, Penalised):
            least = min(float(np.linalg.eigvalsh(case.task.problem.hessian(x))[0]) for x in iterates[::100])
            claims.append(Claim(f"{case.name}: smallest eigenvalue of the Hessian in the run", least, at_most=-1e-3))
        table.append([case.name, case.measured, f"{mean.last:.1e}", f"{bound.last:.1e}", f"{found.curve.last:.1e}"])
        pictures.append((case, [found.curve, mean], bound))

    def draw(figure: Figure) -> None:
        for axes, (case, curves, bound) in zip(figure.subplots(1, len(pictures)), pictures, strict=True):
            figures.logarithmic(axes, curves, dashed=[bound], title=case.name, unit=case.measured)

    return Report(
        f"Beyond strong convexity: DIANA, {workers} workers, {steps} steps",
        ["f", "measured", "its mean", "the bound", "last"],
        table,
        claims,
        draw,
    )


def _omega(task: Task) -> float:
    """The constant omega of the compressor, as in experiment 1, for a scale from the largest value of all workers."""
    return (math.sqrt(task.problem.dimension * task.problem.workers) - 1) / 2


def _convex(workers: int) -> Case:
    task = breast_cancer(workers, condition=CONDITION, unit_rows=True)
    problem, omega = task.problem, _omega(task)
    least = problem.value(task.solution)
    smoothness = problem.worker_smoothness
    return Case(
        "convex",
        "f(x) - f(x*)",
        task,
        diana_convex_rule(smoothness=smoothness, omega=omega, workers=workers),
        1 / (2 * smoothness * (1 + 6 * omega / workers)),
        lambda x: problem.value(x) - least,
        lambda reference, x: reference.values(x) - least,
        float(np.sum(task.solution**2)),
        task.shift_square_at_start(),
    )


def not_convex(workers: int) -> Case:
    features, labels = rows(unit_rows=True)
    problem = Penalised(features, labels, workers=workers, l2=0.0)
    origin = np.zeros(problem.dimension)
    task = Task(problem, origin, features * labels[:, None], PENALTY)
    smoothness, omega = problem.worker_smoothness, _omega(task)
    gradients = [problem.gradient(worker, origin) for worker in range(workers)]
    return Case(
        "not convex",
        "|grad f(x)|^2",
        task,
        diana_nonconvex_rule(smoothness=smoothness, omega=omega, workers=workers),
        min(1 / 2, math.sqrt(workers / (12 * omega)) / (1 + omega)) / smoothness,
        lambda x: float(np.sum(np.mean([problem.gradient(worker, x) for worker in range(workers)], axis=0) ** 2)),
        lambda reference, x: np.asarray(np.sum(reference.gradients(x).mean(axis=1) ** 2, axis=1)),
        math.log(2),  # f(0), and f is nowhere below 0
        float(np.mean([np.sum(gradient**2) for gradient in gradients])),
    )


def _runs(case: Case, steps: int, seeds: int) -> tuple[Runs, list[Vector]]:
    """The measured curves, and x before each step of all runs."""
    method = replace(DIANA(norm=NORM), memory=Shift(case.rule.alpha))
    curves: list[Curve] = []
    iterates: list[Vector] = []

    def observe(progress: Progress) -> None:
        if progress.step < steps:
            curves[-1].add(progress.step, case.ours(progress.x))
            iterates.append(progress.x)

    for seed in range(seeds):
        curves.append(Curve(f"DIANA, {case.name}"))
        distributed_minimize(
            case.task.problem, method, step_size=case.rule.step_size, steps=steps, seed=seed, observe=observe
        )
    return Runs.beside_diana(curves, case.task, norm=NORM, draws=1, rule=case.rule, measure=case.theirs), iterates
