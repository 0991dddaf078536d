"""Experiment 10: importance sampling of rows, and ISAGA.

VR-DIANA's step size is proportional to 1/L of the rows. With uniform sampling L is the largest row's; with sampling in
proportion to the rows' own L it is the mean of the rows (the proof is at `vr_diana_rule`). Rows here have different
lengths. In ISAGA (arXiv 1901.09437) each of n workers estimates its gradient from one row, corrected by SAGA's table,
and sends 1/n of the coordinates of the difference to its memory. The theorem applies with omega = n - 1.
"""

from __future__ import annotations

import math

from matplotlib.figure import Figure

from wiresum.compress import DIANA, RandK
from wiresum.compress.ratio import count_of
from wiresum.convex import LSVRG, SAGA, Estimator, Plain
from wiresum.experiments import figures
from wiresum.experiments.comparison import Runs
from wiresum.experiments.datasets import Task, breast_cancer, error_curve
from wiresum.experiments.experiment import Claim, Curve, Report

CONDITION = 10.0
"""Condition number, with L of the mean row."""
UNIFORM, IMPORTANCE = "L-SVRG, rows drawn alike", "L-SVRG, rows drawn by importance"
ISAGA, ISGD = "ISAGA", "ISEGA with plain SGD"
REACHED = 1e-9
BOUND = "the proof's bound"


def run(*, workers: int = 10, steps: int = 6000, every: int = 120) -> Report:
    task = breast_cancer(workers, condition=CONDITION, by_row="mean")
    method = DIANA(norm="inf")
    smoothness = {UNIFORM: task.problem.row_smoothness, IMPORTANCE: task.problem.mean_row_smoothness}
    rules = {
        name: task.vr_diana_rule(smoothness=largest, omega=task.omega(method)) for name, largest in smoothness.items()
    }
    estimators: dict[str, Estimator] = {UNIFORM: LSVRG(1), IMPORTANCE: LSVRG(1, sampling="importance")}
    curves = {
        name: error_curve(
            name, task, method, estimator=estimator, step_size=rules[name].step_size, steps=steps, every=every
        )
        for name, estimator in estimators.items()
    }
    mixed = breast_cancer(workers, condition=CONDITION, unit_rows=True, by_row=True)
    isaga_rule = mixed.vr_diana_rule(smoothness=mixed.problem.row_smoothness, omega=_omega_of_part(mixed))
    part = RandK(1 / workers, memory="diana")
    for name, estimator in {ISAGA: SAGA(1), ISGD: Plain(1)}.items():
        curves[name] = error_curve(
            name, mixed, part, estimator=estimator, step_size=isaga_rule.step_size, steps=steps, every=every
        )
    bounds = {
        UNIFORM: task.bound(BOUND, rules[UNIFORM], curves[UNIFORM].steps),
        IMPORTANCE: task.bound(BOUND, rules[IMPORTANCE], curves[UNIFORM].steps, by_importance=True),
        ISAGA: mixed.bound(BOUND, isaga_rule, curves[UNIFORM].steps),
    }
    uneven = task.problem.row_smoothness / task.problem.mean_row_smoothness
    reference = {
        name: Runs.beside_diana(
            [curves[name]],
            task,
            norm="inf",
            draws=5,
            rule=rules[name],
            estimator=kind,
        )
        for name, kind in ((UNIFORM, "lsvrg"), (IMPORTANCE, "importance"))
    }
    claims = [
        Claim("largest row's L / mean L, the expected gain of importance sampling", uneven, at_least=3),
        Claim.equal("importance sampling: step size / that of uniform sampling",
                    rules[IMPORTANCE].step_size / rules[UNIFORM].step_size, uneven),
        *(Claim(f"{name}: error / bound, maximum over steps", curves[name].over(bound), at_most=1)
          for name, bound in bounds.items()),
        *(claim for runs in reference.values() for claim in runs.claims()),
        *_rates(curves, steps),
        Claim(f"{ISAGA}: last error / last error of {ISGD}, which stalls", curves[ISAGA].last / curves[ISGD].last,
              at_most=0.1),
    ]  # fmt: skip

    def draw(figure: Figure) -> None:
        rows, coordinates = figure.subplots(1, 2)
        for axes, names, title in (
            (rows, (UNIFORM, IMPORTANCE), "ternary, rows of different lengths"),
            (coordinates, (ISAGA, ISGD), f"1/{workers} of the coordinates"),
        ):
            figures.logarithmic(
                axes,
                [curves[name] for name in names],
                dashed=[bounds[name] for name in names if name in bounds],
                title=title,
                unit=figures.ERROR,
            )

    return Report(
        f"Rows by importance, and ISAGA: {workers} workers, one row a step",
        ["method", f"error after {steps} steps", "the bound"],
        [[name, f"{curve.last:.1e}", f"{bounds[name].last:.1e}" if name in bounds else "-"]
         for name, curve in curves.items()],
        claims,
        draw,
    )  # fmt: skip


def _omega_of_part(task: Task) -> float:
    """The constant omega of 1/n of the coordinates, d/k - 1."""
    d = task.problem.dimension
    return d / count_of(1 / task.problem.workers, d) - 1


def _rates(curves: dict[str, Curve], steps: int) -> list[Claim]:
    """Claims on the rates of errors, which fall as exp(-rate k). The rate is proportional to the step size if nothing
    else limits it."""
    rate = {name: -math.log(curves[name].last / curves[name].values[0]) / steps for name in (UNIFORM, IMPORTANCE)}
    gain = rate[IMPORTANCE] / rate[UNIFORM]
    claims = [Claim("importance sampling: rate per step / that of uniform sampling", gain, at_least=2)]
    if steps >= 6000:
        claims.append(Claim(f"{IMPORTANCE}: last error", curves[IMPORTANCE].last, at_most=REACHED))
    return claims
