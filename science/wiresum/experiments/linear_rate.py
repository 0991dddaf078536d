"""Experiment 1: DIANA converges linearly to x*, at least as fast as its theorem says, and stalls without a memory.

Source: arXiv 1901.09269, theorem 1. The quantiser is ternary, with the largest norm of all workers, in integers of 8
bits; omega is the constant for a shared norm (wiresum.compress.quantise). The theorem's constants are compared with
their formulas, and every curve with the same algorithm in plain NumPy (numpy_reference.py).
"""

from __future__ import annotations

import math

from matplotlib.figure import Figure

from wiresum.compress import DIANA, Shift
from wiresum.compress.quantise import Norm
from wiresum.convex import Rule, diana_rule
from wiresum.experiments import figures
from wiresum.experiments.comparison import Runs
from wiresum.experiments.datasets import Task, breast_cancer, error_curve
from wiresum.experiments.experiment import Claim, Report

CONDITION = 30.0
NORMS: tuple[Norm, ...] = ("1", "2", "inf")
REACHED = 1e-9


def run(*, workers: int = 10, steps: int = 1500, every: int = 25, seeds: int = 3) -> Report:
    """Runs the experiment. Each curve is a mean over seeds, since the theorem bounds an expectation."""
    task = breast_cancer(workers, condition=CONDITION)
    rows, claims, pictures = [], [], []
    for norm in NORMS:
        rule = _rule(task, norm)
        with_memory = _runs(f"DIANA, p = {norm}", task, norm, rule, rule.alpha, steps, every, seeds)
        without = _runs(f"alpha = 0, p = {norm}", task, norm, rule, 0.0, steps, every, seeds)
        bound = task.bound("theorem 1", rule, with_memory.curve.steps)
        within = with_memory.curve.over(bound)
        claims += _premises(task, norm, rule)
        claims.append(Claim(f"p = {norm}: DIANA's error / theorem 1's bound, maximum over steps", within, at_most=1))
        claims += [*with_memory.claims(), without.stalls()]
        rate = -math.log(with_memory.curve.last / with_memory.curve.values[0]) / steps
        rows.append([with_memory.curve.label, f"{with_memory.curve.last:.1e}", f"{bound.last:.1e}", f"{rate:.4f}"])
        rows.append([without.curve.label, f"{without.curve.last:.1e}", "-", "-"])
        pictures.append((norm, [with_memory.curve, without.curve], bound))
    if steps >= 1500:
        claims.append(Claim("p = inf: DIANA's last error", pictures[-1][1][0].last, at_most=REACHED))

    def draw(figure: Figure) -> None:
        for axes, (norm, curves, bound) in zip(figure.subplots(1, len(pictures)), pictures, strict=True):
            figures.logarithmic(axes, curves, dashed=[bound], title=f"p = {norm}", unit=figures.ERROR)

    return Report(
        f"DIANA goes linearly to x*: {workers} workers that differ, L/μ = {CONDITION:g}",
        ["method", "last error", "theorem's bound", "rate per step"],
        rows,
        claims,
        draw,
    )


def _rule(task: Task, norm: Norm) -> Rule:
    problem = task.problem
    return diana_rule(
        smoothness=problem.worker_smoothness,
        strong_convexity=problem.strong_convexity,
        omega=task.omega(DIANA(norm=norm)),
        workers=problem.workers,
    )


def _premises(task: Task, norm: Norm, rule: Rule) -> list[Claim]:
    """Claims that omega, gamma and alpha have the largest values that corollary 1 allows, by independent formulas."""
    d, n = task.problem.dimension, task.problem.workers
    omega = {
        "1": d * (1 + math.sqrt(n)) / 2 - 1,
        "2": math.sqrt(d) * (1 + math.sqrt(n)) / 2 - 1,
        "inf": (math.sqrt(d * n) - 1) / 2,
    }[norm]
    smoothness, mu = task.problem.worker_smoothness, task.problem.strong_convexity
    alpha = 1 / (2 * (1 + omega))
    gamma = min(alpha / mu, 2 / ((smoothness + mu) * (1 + 2 * omega / n)))
    return [
        Claim.equal(f"p = {norm}: omega as in the proof", task.omega(DIANA(norm=norm)), omega),
        Claim(f"p = {norm}: omega/n, the possible cost of compression in steps", omega / n, at_least=0.7),
        Claim.equal(f"p = {norm}: alpha is corollary 1's", rule.alpha, alpha),
        Claim.equal(f"p = {norm}: the step size is corollary 1's", rule.step_size, gamma),
        Claim.equal(f"p = {norm}: the rate is the step size times mu", rule.rate, gamma * mu),
    ]


def _runs(label: str, task: Task, norm: Norm, rule: Rule, alpha: float, steps: int, every: int, seeds: int) -> Runs:
    method = DIANA(norm=norm, memory=Shift(alpha) if alpha else "none")
    runs = [
        error_curve(label, task, method, steps=steps, every=every, step_size=rule.step_size, seed=seed)
        for seed in range(seeds)
    ]
    return Runs.beside_diana(runs, task, norm=norm, draws=1, rule=rule, alpha=alpha)
