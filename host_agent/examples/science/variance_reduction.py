"""Experiment 2: with minibatches, only memory and variance reduction together reach x*.

Source: VR-DIANA, arXiv 1904.05115. Two noises keep compressed SGD from x*: that of the compressor, which a memory
removes, and that of the minibatch, which L-SVRG removes. All four combinations, with VR-DIANA's step size.
"""

from __future__ import annotations

import itertools

from matplotlib.figure import Figure

import figures
from datasets import breast_cancer, error_curve
from experiment import Claim, Curve, Report
from wiresum.compress import Quantiser
from wiresum.optim import LSVRG, Estimator, Plain, vr_diana_step_size

CONDITION = 20.0
REACHED = 1e-9
STALLED = 1e-6
MEMORIES = {"memory": "diana", "no memory": "none"}
ESTIMATORS: dict[str, Estimator] = {"L-SVRG": LSVRG(1), "plain SGD": Plain(1)}


def run(*, workers: int = 10, steps: int = 5000, every: int = 50) -> Report:
    task = breast_cancer(workers, condition=CONDITION, unit_rows=True, by_row=True)
    problem = task.problem
    omega = Quantiser(lanes=8).omega(problem.dimension, workers)
    assert omega is not None
    step_size = vr_diana_step_size(smoothness=problem.row_smoothness, omega=omega, workers=workers)
    curves: dict[tuple[str, str], Curve] = {
        (memory, estimator): error_curve(
            f"{estimator}, {memory}",
            task,
            Quantiser(lanes=8, memory=MEMORIES[memory]),
            estimator=ESTIMATORS[estimator],
            step_size=step_size,
            steps=steps,
            every=every,
        )
        for memory, estimator in itertools.product(MEMORIES, ESTIMATORS)
    }
    both = curves["memory", "L-SVRG"]
    others = [curve for curve in curves.values() if curve is not both]
    claims = [Claim(f"memory and L-SVRG together reach x* (error below {REACHED:g})", both.last < REACHED)]
    claims += [
        Claim(f"{other.label} stalls (error above {STALLED:g} to the end)", min(other.values[-10:]) > STALLED)
        for other in others
    ]

    def draw(figure: Figure) -> None:
        figures.logarithmic(
            figure.subplots(), list(curves.values()), title="one row a step, integers of 8 bits", unit=figures.ERROR
        )

    return Report(
        f"Only VR-DIANA reaches x* with minibatches: {workers} workers, L/μ = {CONDITION:g}",
        ["error after " + str(steps) + " steps", *ESTIMATORS],
        [[memory, *(f"{curves[memory, estimator].last:.1e}" for estimator in ESTIMATORS)] for memory in MEMORIES],
        claims,
        draw,
    )
