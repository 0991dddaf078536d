"""Experiment 3: '99% of the partial derivatives need not be sent'.

Source: ISEGA, arXiv 1901.09437. Each of n workers sends a random fraction 1/n of its gradient's difference to the
memory, and the descent needs about as many steps as with whole gradients, since the workers draw independently. With
the same draw at all workers errors do not average out, and the step size is too large. A partition (each coordinate has
one owner, drawn from a common seed) is as good as independent draws, and sends no index. The variance of each mean is
compared with its closed form.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

import wiresum.compress as wc
from wiresum.compress.ratio import count_of
from wiresum.convex import isega_rule
from wiresum.experiments import figures
from wiresum.experiments.datasets import Matrix, Task, breast_cancer, error_curve
from wiresum.experiments.experiment import Claim, Report

CONDITION = 30.0
LEVEL = 1e-4
"""The error at which numbers of steps are compared."""
AS_MANY = 1.5
"""Largest ratio of steps that counts as 'about as many'."""
DRAWS = 60


def run(*, workers: int = 100, steps: int = 1200, every: int = 20) -> Report:
    task = breast_cancer(workers, condition=CONDITION, degree=2, unit_rows=True)
    problem, ratio = task.problem, 1 / workers
    rule = isega_rule(
        smoothness=problem.worker_smoothness,
        strong_convexity=problem.strong_convexity,
        ratio=ratio,
        workers=workers,
    )
    methods = {
        "gradient descent, everything sent": wc.Identity(),
        f"ISEGA, {ratio:.0%} sent, each worker its own": wc.RandK(ratio, memory="diana"),
        "partition, each coordinate one owner": wc.RandKPartition(ratio, memory="diana"),
        "same coordinates at all workers": wc.RandKSameSeed(ratio, memory="diana"),
    }
    curves = [
        error_curve(label, task, method, step_size=rule.step_size, steps=steps, every=every)
        for label, method in methods.items()
    ]
    needed = [curve.settles_below(LEVEL) for curve in curves]
    descent, isega, partition, _ = needed
    bound = task.bound("theorem", rule, curves[1].steps)
    omega, smoothness = 1 / ratio - 1, problem.worker_smoothness
    claims = [
        Claim.equal("the step size is 1/(L (1 + 6 omega/n))", rule.step_size,
                    1 / (smoothness * (1 + 6 * omega / workers))),
        Claim("ISEGA: error / the theorem's bound, maximum over steps",
              curves[1].over(bound), at_most=1),
        Claim("gradient descent: last error / its bound (1 - gamma mu)^2k",
              curves[0].last / (1 - rule.step_size * problem.strong_convexity) ** (2 * steps), at_most=1),
        Claim("ISEGA: steps to stay below the level / gradient descent's steps", isega / descent, 0.8, AS_MANY),
        Claim("partition: steps to stay below the level / gradient descent's steps", partition / descent, 0.8, AS_MANY),
        Claim("same coordinates at all workers: last error / first error",
              curves[3].last / curves[3].values[0], at_least=1),
        *_variances(task, ratio),
    ]  # fmt: skip

    def draw(figure: Figure) -> None:
        figures.logarithmic(
            figure.subplots(), curves, dashed=[bound], title=f"step size {rule.step_size:.2g}", unit=figures.ERROR
        )

    return Report(
        f"{1 - ratio:.0%} of the derivatives are never sent: {workers} workers, d = {problem.dimension}",
        ["method", f"steps to {LEVEL:g}", "last error"],
        [[curve.label, f"{step:g}", f"{curve.last:.1e}"] for curve, step in zip(curves, needed, strict=True)],
        claims,
        draw,
    )


def _variances(task: Task, ratio: float) -> list[Claim]:
    """Claims that E|mean of C(v_i) - v|^2 on normal vectors has its closed form. V is the mean of |v_i|^2, v that of
    v_i.

    The closed forms are (d/k - 1) V/n for own coordinates, (d/k - 1) |v|^2 for the same coordinates at all workers, and
    V - |v|^2 for one owner of each coordinate.
    """
    n, d = task.problem.workers, task.problem.dimension
    vectors = np.random.default_rng(3).normal(size=(n, d)) + 0.5
    mean, square = np.sum(vectors.mean(axis=0) ** 2), np.mean(np.sum(vectors**2, axis=1))
    factor = d / count_of(ratio, d)
    expected: dict[str, tuple[wc.Compressor, float]] = {
        "own coordinates": (wc.RandK(ratio), (factor - 1) * square / n),
        "same coordinates": (wc.RandKSameSeed(ratio), (factor - 1) * mean),
        "one owner for each coordinate": (wc.RandKPartition(), square - mean),
    }
    claims = [
        Claim.mean(f"{name}: squared error of the mean", _square_errors(method, vectors), variance)
        for name, (method, variance) in expected.items()
    ]
    agreeing = np.tile(vectors[0], (n, 1))
    nothing = max(_square_errors(wc.RandKPartition(), agreeing)) / np.sum(vectors[0] ** 2)
    apart = _apart_from_kept(wc.RandKSameSeed(ratio), vectors[0], n, factor)
    return [
        *claims,
        Claim("same coordinates, equal workers: largest relative error of d/k times a value", apart, at_most=1e-4),
        Claim("one owner for each coordinate, equal workers: squared error / |v|^2", nothing, at_most=1e-12),
    ]


def _apart_from_kept(method: wc.Compressor, vector: Matrix, workers: int, factor: float) -> float:
    """The largest relative difference between a value in the mean of equal workers and d/k times the vector's value."""
    segments = [wc.Segment((wc.Piece("x", vector.shape),))]
    estimate = wc.Engine(method, wc.InProcess(workers)).average(segments, [[vector]] * workers)[0]
    kept = np.flatnonzero(estimate)
    return float(np.abs(estimate[kept] / (factor * vector[kept]) - 1).max())


def _square_errors(method: wc.Compressor, vectors: Matrix) -> list[float]:
    segments = [wc.Segment((wc.Piece("x", (vectors.shape[1],)),))]
    engine, errors = wc.Engine(method, wc.InProcess(len(vectors))), []
    for _ in range(DRAWS):
        estimate = engine.average(segments, [[vector] for vector in vectors])[0]
        errors.append(float(np.sum((estimate - vectors.mean(axis=0)) ** 2)))
        engine.advance()
    return errors
