"""Experiment 3: '99% of the partial derivatives need not be sent'.

Source: ISEGA, arXiv 1901.09437. Of n workers each sends a random part tau = 1/n of its gradient's difference to the
memory, and descent needs about as many steps as with whole gradients, since different workers draw differently. With
the same draw at all workers nothing averages out, and the step size is too large. A partition (each coordinate has one
owner, drawn by all from a shared seed) does as well as independent draws, and sends no index.
"""

from __future__ import annotations

from matplotlib.figure import Figure

import figures
from datasets import breast_cancer, error_curve
from experiment import Claim, Report
from wiresum.compress import Identity, RandK, RandKPartition, RandKSameSeed
from wiresum.optim import isega_rule

CONDITION = 30.0
LEVEL = 1e-4
"""Steps are compared at this error."""
AS_MANY = 1.5
"""'About as many' steps."""


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
        "gradient descent, everything sent": Identity(),
        f"ISEGA, {ratio:.0%} sent, each worker its own": RandK(ratio, memory="diana"),
        "partition, each coordinate one owner": RandKPartition(ratio, memory="diana"),
        "same coordinates at all workers": RandKSameSeed(ratio, memory="diana"),
    }
    curves = [
        error_curve(label, task, method, step_size=rule.step_size, steps=steps, every=every)
        for label, method in methods.items()
    ]
    needed = [curve.first_step_below(LEVEL) for curve in curves]
    descent, isega, partition, same = needed
    claims = [
        Claim(f"ISEGA needs at most {AS_MANY} times as many steps as gradient descent", isega <= AS_MANY * descent),
        Claim(f"so does the partition, at most {AS_MANY} times", partition <= AS_MANY * descent),
        Claim("with the same coordinates at all workers it does not get there", same == float("inf")),
        Claim("and is further from x* than it was at the start", curves[3].last > curves[3].values[0]),
    ]

    def draw(figure: Figure) -> None:
        figures.logarithmic(figure.subplots(), curves, title=f"step size {rule.step_size:.2g}", unit=figures.ERROR)

    return Report(
        f"{1 - ratio:.0%} of the derivatives are never sent: {workers} workers, d = {problem.dimension}",
        ["method", f"steps to {LEVEL:g}", "last error"],
        [[curve.label, f"{step:g}", f"{curve.last:.1e}"] for curve, step in zip(curves, needed, strict=True)],
        claims,
        draw,
    )
