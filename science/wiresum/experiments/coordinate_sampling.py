"""Experiment 15: number and choice of the coordinates that each worker sends; and workers with the same data.

Source: '99% of worker-master communication in distributed optimization is not needed' (arXiv 1901.09437). Each of n
workers sends tau of d derivatives. ISEGA's step size is 1/(L (1 + 6 (d/tau - 1)/n)): with tau n = d it is a constant
fraction of gradient descent's, for any n. With a smaller tau, the number of steps grows as 1/tau; with a larger tau it
falls by less and less.
If f_i(x) is least at the same x for all workers, no memory is needed (IBCD), and
coordinates may be drawn with probabilities p_j in proportion to their smoothness v_j. In short: with every f_i below
its tangent plus half of sum v_j h_j^2, the mean over workers of sum (grad_j f_i)^2/v_j is at most 2 (f - f*), so
E|g|^2 <= 2 (L + A/n)(f - f*) with A = max v_j (1/p_j - 1), and |x - x*|^2 shrinks by 1 - gamma mu with gamma =
1/(L + A/n). With the same rows at all workers, all f_i are the same, and ISAGA needs no memory either.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from wiresum.compress import Identity, RandK, Sparse, SparseCompressor, Turn
from wiresum.compress.arrays import Indices, Vector
from wiresum.compress.ratio import count_of
from wiresum.convex import SAGA, LogisticRegression, Problem, Progress, distributed_minimize, isega_rule
from wiresum.experiments import figures
from wiresum.experiments.datasets import Matrix, Task, breast_cancer, error_curve, rows
from wiresum.experiments.experiment import Claim, Curve, Report

CONDITION = 30.0
LEVEL = 1e-2
PARTS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Values of tau n / d."""
COUNTS = (5, 10, 20)
"""Numbers of workers, with tau n = d."""
AS_PREDICTED = 1.2
"""Largest factor between the number of steps and its prediction from the step sizes."""
LARGE, LARGE_SQUARE, DIMENSION, DRAWN = 4, 30.0, 40, 4
"""The least squares problem: 4 of 40 coordinates have features whose squares are 30 times as large. A worker sends 4
coordinates on average."""
ALIKE, IMPORTANCE = "coordinates drawn alike", "coordinates drawn by importance"
OWN, SHARED = "own rows, no memory", "all rows at each worker, no memory"


@dataclass(frozen=True)
class Drawn(SparseCompressor):
    """Sends coordinate j with probability p_j, independently of the others."""

    probabilities: tuple[float, ...]
    counts_equal = False

    def compress(self, vector: Vector, turn: Turn) -> Sparse:
        probabilities = np.array(self.probabilities)
        chosen = np.flatnonzero(turn.uniform(turn.size) < probabilities)
        return Sparse(chosen, vector[chosen] / probabilities[chosen])


class LeastSquares(Problem):
    """The problem f_i(x) = |A_i (x - x*)|^2 / 2m, with the same x* for all workers."""

    def __init__(self, workers: int, *, m: int = 100) -> None:
        generator = np.random.Generator(np.random.Philox(11))
        scales = np.where(np.arange(DIMENSION) < LARGE, math.sqrt(LARGE_SQUARE), 1.0)
        self.workers, self.dimension, self.m = workers, DIMENSION, m
        self.matrices = generator.normal(size=(workers, m, DIMENSION)) * scales
        self.solution = generator.normal(size=DIMENSION)

    def rows(self, worker: int) -> int:
        return self.m

    def gradient(self, worker: int, x: Vector, rows: Indices | None = None) -> Vector:
        matrix = self.matrices[worker] if rows is None else self.matrices[worker][rows]
        gradient: Vector = matrix.T @ (matrix @ (x - self.solution)) / len(matrix)
        return gradient

    @functools.cached_property
    def hessians(self) -> Matrix:
        return np.asarray(np.swapaxes(self.matrices, 1, 2) @ self.matrices / self.m)

    @property
    def eigenvalues(self) -> Vector:
        """The eigenvalues of f's Hessian, ascending."""
        return np.asarray(np.linalg.eigvalsh(self.hessians.mean(axis=0)))

    @property
    def coordinates_smoothness(self) -> Vector:
        """The vector v: the largest diagonal of the Hessians, times the largest eigenvalue of any Hessian after a
        scaling that makes this diagonal one."""
        diagonal = np.max([np.diag(one) for one in self.hessians], axis=0)
        scale = np.sqrt(np.outer(diagonal, diagonal))
        return np.asarray(diagonal * max(float(np.linalg.eigvalsh(one / scale)[-1]) for one in self.hessians))


def run(*, workers: int = 20, steps: int = 1200, every: int = 10, rows_steps: int = 3000) -> Report:
    """Runs the experiment. `steps` is for the smallest step size; larger step sizes need fewer steps."""
    parts, part_claims = _by_part(workers, steps, every)
    drawn, bounds, drawn_claims = _by_importance(steps, every)
    shared, shared_claims = _with_the_same_rows(rows_steps)

    def draw(figure: Figure) -> None:
        left, middle, right = figure.subplots(1, 3)
        figures.logarithmic(left, list(parts.values()), title=f"ISEGA, {workers} workers", unit=figures.ERROR)
        figures.logarithmic(middle, drawn, dashed=bounds, title=f"{DRAWN} of {DIMENSION}", unit=figures.ERROR)
        figures.logarithmic(right, shared, title="ISAGA", unit=figures.ERROR)

    return Report(
        f"How many coordinates each worker sends, and which: {workers} workers",
        ["method", f"steps to {LEVEL:g}", "derivatives sent, of those of gradient descent", "last error"],
        [
            *_rows_of_parts(parts, workers),
            *([one.label, f"{one.settles_below(LEVEL):g}", "-", f"{one.last:.1e}"] for one in (*drawn, *shared)),
        ],
        [*part_claims, *drawn_claims, *shared_claims],
        draw,
    )


def _step_size(task: Task, part: float) -> float:
    """ISEGA's step size for tau = part d / n."""
    problem = task.problem
    return isega_rule(
        smoothness=problem.worker_smoothness,
        strong_convexity=problem.strong_convexity,
        ratio=min(1.0, part / problem.workers),
        workers=problem.workers,
    ).step_size


def _descent(task: Task, steps: int, every: int) -> Curve:
    step_size = 1 / task.problem.worker_smoothness
    return error_curve("gradient descent", task, Identity(), step_size=step_size, steps=steps, every=every)


def _isega(task: Task, part: float, steps: int, every: int) -> Curve:
    """The error of ISEGA. `steps` is for the smallest part; larger parts take fewer steps."""
    step_size = _step_size(task, part)
    return error_curve(
        f"tau n / d = {part:g}",
        task,
        RandK(part / task.problem.workers, memory="diana"),
        step_size=step_size,
        steps=math.ceil(steps * _step_size(task, PARTS[0]) / step_size / every) * every,
        every=every,
    )


def _by_part(workers: int, steps: int, every: int) -> tuple[dict[float, Curve], list[Claim]]:
    """Curves by tau n / d, and claims; infinity stands for gradient descent, which sends everything."""
    task = breast_cancer(workers, condition=CONDITION, degree=2, unit_rows=True)
    curves = {part: _isega(task, part, steps, every) for part in PARTS} | {math.inf: _descent(task, steps // 12, every)}
    needed = {part: curve.settles_below(LEVEL) for part, curve in curves.items()}
    predicted = {part: 1 / _step_size(task, part) for part in PARTS}
    claims = [
        Claim(f"tau n / d = {part:g}: steps / those of 1, over what the step sizes say",
              needed[part] / needed[1.0] / (predicted[part] / predicted[1.0]), 1 / AS_PREDICTED, AS_PREDICTED)
        for part in PARTS if part != 1
    ]  # fmt: skip
    claims.append(
        Claim("four times as many derivatives than tau n = d: steps saved, of four times", needed[1] / needed[4] / 4,
              at_most=0.9)
    )  # fmt: skip
    same_part = {count: breast_cancer(count, condition=CONDITION, degree=2, unit_rows=True) for count in COUNTS}
    relative = {
        count: _isega(one, 1.0, steps, every).settles_below(LEVEL) * _step_size(one, 1.0) * one.problem.strong_convexity
        for count, one in same_part.items()
    }
    claims.append(
        Claim(f"tau n = d, {COUNTS[0]} to {COUNTS[-1]} workers: steps times step size and mu, largest / smallest",
              max(relative.values()) / min(relative.values()), at_most=AS_PREDICTED)
    )  # fmt: skip
    return curves, claims


def _rows_of_parts(curves: dict[float, Curve], workers: int) -> list[list[str]]:
    descent = curves[math.inf].settles_below(LEVEL)
    return [
        [
            "ISEGA, " + curve.label if part < math.inf else curve.label,
            f"{curve.settles_below(LEVEL):g}",
            f"{curve.settles_below(LEVEL) / descent * min(1.0, part / workers):.0%}",
            f"{curve.last:.1e}",
        ]
        for part, curve in curves.items()
    ]


def _by_importance(steps: int, every: int, workers: int = 4) -> tuple[list[Curve], list[Curve], list[Claim]]:
    problem = LeastSquares(workers)
    v, eigenvalues = problem.coordinates_smoothness, problem.eigenvalues
    probabilities = {ALIKE: np.full(DIMENSION, DRAWN / DIMENSION), IMPORTANCE: np.minimum(1, DRAWN * v / v.sum())}
    smoothness = {name: float(eigenvalues[-1] + np.max(v * (1 / p - 1)) / workers) for name, p in probabilities.items()}
    curves, bounds = [], []
    for name, p in probabilities.items():
        curve, step_size = Curve(name), 1 / smoothness[name]

        def observe(progress: Progress, curve: Curve = curve) -> None:
            if progress.step % every == 0:
                distance = float(np.sum((progress.x - problem.solution) ** 2))
                curve.add(progress.step, distance / float(np.sum(problem.solution**2)))

        distributed_minimize(problem, Drawn(tuple(p)), step_size=step_size, steps=steps, observe=observe)
        rate = step_size * float(eigenvalues[0])
        bounds.append(Curve("the proof's bound", curve.steps, [(1 - rate) ** step for step in curve.steps]))
        curves.append(curve)
    alike, importance = (-math.log(curve.last) for curve in curves)
    expected = smoothness[ALIKE] / smoothness[IMPORTANCE]
    return curves, bounds, [
        *(Claim(f"{curve.label}: error / bound, maximum over steps", curve.over(bound), at_most=1)
          for curve, bound in zip(curves, bounds, strict=True)),
        Claim(f"{IMPORTANCE}: values that are sent on average / those of {ALIKE}",
              float(probabilities[IMPORTANCE].sum()) / DRAWN, at_most=1 + 1e-9),
        Claim("expected gain of importance", expected, at_least=1.5),
        Claim("rate by importance / rate alike, over the expected gain", importance / alike / expected, 0.6, 2),
    ]  # fmt: skip


def _with_the_same_rows(steps: int, workers: int = 5) -> tuple[list[Curve], list[Claim]]:
    own = breast_cancer(workers, condition=10.0, unit_rows=True, by_row=True)
    features, labels = rows(unit_rows=True)
    everything = LogisticRegression(
        np.tile(features, (workers, 1)), np.tile(labels, workers), workers=workers, l2=own.problem.l2
    )
    shared = Task(everything, everything.solution(), np.tile(features * labels[:, None], (workers, 1)))
    part = RandK(1 / workers)
    curves = []
    for label, task in ((OWN, own), (SHARED, shared)):
        omega = task.problem.dimension / count_of(1 / workers, task.problem.dimension) - 1
        rule = task.vr_diana_rule(smoothness=task.problem.row_smoothness, omega=omega)
        curves.append(
            error_curve(label, task, part, estimator=SAGA(1), step_size=rule.step_size, steps=steps, every=steps // 60)
        )
    bound = shared.bound("the proof's bound", rule, curves[1].steps)
    return curves, [
        Claim(f"{SHARED}: error / bound, maximum over steps", curves[1].over(bound), at_most=1),
        Claim(f"{SHARED}: last error / that of {OWN}, which stalls", curves[1].last / curves[0].last, at_most=0.1),
    ]
