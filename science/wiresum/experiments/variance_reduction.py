"""Experiment 2: with minibatches, only memory and variance reduction together reach x*.

Source: VR-DIANA, arXiv 1904.05115. Two noises keep compressed SGD from x*: the compressor's, which a memory removes,
and the minibatch's, which L-SVRG or SAGA removes. All combinations run with VR-DIANA's step size and a ternary
compressor, so that both noises matter. Curves are compared with the same algorithms in plain NumPy.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

from matplotlib.figure import Figure

from wiresum.compress import DIANA
from wiresum.convex import LSVRG, SAGA, Estimator, Plain, Rule
from wiresum.experiments import figures
from wiresum.experiments.comparison import Runs
from wiresum.experiments.datasets import Task, breast_cancer, error_curve
from wiresum.experiments.experiment import Claim, Report

CONDITION = 10.0
REACHED = 1e-9
MEMORIES = {"memory": "diana", "no memory": "none"}
ESTIMATORS: dict[str, Estimator] = {"L-SVRG": LSVRG(1), "plain SGD": Plain(1), "SAGA": SAGA(1)}
REFERENCES = {"L-SVRG": "lsvrg", "plain SGD": "row"}
"""The reference's names of estimators. The reference has no SAGA."""
BOTH = ("memory", "L-SVRG")


def run(*, workers: int = 10, steps: int = 5000, every: int = 100) -> Report:
    task = breast_cancer(workers, condition=CONDITION, unit_rows=True, by_row=True)
    method = DIANA(norm="inf")
    rule = task.vr_diana_rule(smoothness=task.problem.row_smoothness, omega=task.omega(method))
    combinations = list(itertools.product(MEMORIES, ESTIMATORS))
    runs = {
        (memory, estimator): error_curve(
            f"{estimator}, {memory}",
            task,
            replace(method, memory=MEMORIES[memory]),
            estimator=ESTIMATORS[estimator],
            step_size=rule.step_size,
            steps=steps,
            every=every,
        )
        for memory, estimator in combinations
    }
    compared = {
        (memory, estimator): Runs.beside_diana(
            [runs[memory, estimator]],
            task,
            norm="inf",
            draws=2,
            rule=rule,
            alpha=None if memory == "memory" else 0.0,
            estimator=REFERENCES[estimator],
        )
        for memory, estimator in itertools.product(MEMORIES, REFERENCES)
    }
    bound = task.bound("the proof's bound", rule, runs[BOTH].steps)
    claims = _premises(task, rule)
    for estimator in ("L-SVRG", "SAGA"):
        ratio = runs["memory", estimator].over(bound)
        claims.append(Claim(f"{estimator}, memory: error / bound, maximum over steps", ratio, at_most=1))
    claims += compared[BOTH].claims()
    claims += [compared[key].stalls() for key in compared if key != BOTH]
    if steps >= 5000:
        claims += [
            Claim(f"{estimator}, memory: last error", runs["memory", estimator].last, at_most=REACHED)
            for estimator in ("L-SVRG", "SAGA")
        ]

    def draw(figure: Figure) -> None:
        figures.logarithmic(
            figure.subplots(),
            list(runs.values()),
            dashed=[bound],
            title="one row a step, ternary, integers of 8 bits",
            unit=figures.ERROR,
        )

    return Report(
        f"Only VR-DIANA reaches x* with minibatches: {workers} workers, L/μ = {CONDITION:g}",
        ["error after " + str(steps) + " steps", *ESTIMATORS],
        [[memory, *(f"{runs[memory, estimator].last:.1e}" for estimator in ESTIMATORS)] for memory in MEMORIES],
        claims,
        draw,
    )


def _premises(task: Task, rule: Rule) -> list[Claim]:
    """Claims on the paper's constants, by independent formulas."""
    n, smoothness = task.problem.workers, task.problem.row_smoothness
    omega = (math.sqrt(task.problem.dimension * n) - 1) / 2
    return [
        Claim("omega, large enough that compression matters", omega, at_least=4),
        Claim.equal("the step size is theorem 1's", rule.step_size, 1 / (smoothness * (1 + 36 * (omega + 1) / n))),
        Claim.equal("alpha is 1/(1 + omega)", rule.alpha, 1 / (1 + omega)),
        Claim("rate, at least a quarter of step size times mu", rule.rate,
              at_least=rule.step_size * task.problem.strong_convexity / 4),
    ]  # fmt: skip
