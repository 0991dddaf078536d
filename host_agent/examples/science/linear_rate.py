"""Experiment 1: DIANA goes linearly to x*, at least as fast as its theorem says; without a memory it stalls.

Source: arXiv 1901.09269, theorem 1. The quantiser is ternary, with the largest norm of all workers, so that integers
in lanes of 8 bits are all that is added; omega is that of the shared norm (wiresum.compress.quantise).
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

import figures
from datasets import Task, breast_cancer, error_curve
from experiment import Claim, Curve, Report
from wiresum.compress import DIANA, Shift
from wiresum.compress.quantise import Norm
from wiresum.optim import diana_rule

CONDITION = 30.0
REACHED = 1e-9
STALLED = 1e-5


def run(*, workers: int = 10, steps: int = 1500, every: int = 25, seeds: int = 3) -> Report:
    """The theorem bounds an expectation: each curve is the mean over so many seeds."""
    task = breast_cancer(workers, condition=CONDITION)
    norms: list[Norm] = ["2", "inf"]
    runs = [_with_norm(task, norm, steps, every, seeds) for norm in norms]
    rows, claims = [], []
    for norm, (with_memory, without, bound) in zip(norms, runs, strict=True):
        rate = -np.log(with_memory.last / with_memory.values[0]) / steps
        rows.append([with_memory.label, f"{with_memory.last:.1e}", f"{bound.last:.1e}", f"{rate:.4f}"])
        rows.append([without.label, f"{without.last:.1e}", "-", "-"])
        within = all(value <= most for value, most in zip(with_memory.values, bound.values, strict=True))
        claims.append(Claim(f"p = {norm}: DIANA's error is within the theorem's bound at every step", within))
        claims.append(Claim(f"p = {norm}: DIANA reaches x* (error below {REACHED:g})", with_memory.last < REACHED))
        claims.append(Claim(f"p = {norm}: alpha = 0 stalls (error above {STALLED:g})", without.last > STALLED))

    def draw(figure: Figure) -> None:
        for axes, norm, (with_memory, without, bound) in zip(figure.subplots(1, 2), norms, runs, strict=True):
            figures.logarithmic(axes, [with_memory, without], dashed=[bound], title=f"p = {norm}", unit=figures.ERROR)

    return Report(
        f"DIANA goes linearly to x*: {workers} workers that differ, L/μ = {CONDITION:g}",
        ["method", "last error", "theorem's bound", "rate per step"],
        rows,
        claims,
        draw,
    )


def _with_norm(task: Task, norm: Norm, steps: int, every: int, seeds: int) -> tuple[Curve, Curve, Curve]:
    """DIANA, the same without a memory, and the theorem's bound on DIANA."""
    problem = task.problem
    omega = DIANA(norm=norm).omega(problem.dimension, problem.workers)
    assert omega is not None
    rule = diana_rule(
        smoothness=problem.worker_smoothness,
        strong_convexity=problem.strong_convexity,
        omega=omega,
        workers=problem.workers,
    )
    curves = []
    for label, memory in ((f"DIANA, p = {norm}", Shift(rule.alpha)), (f"alpha = 0, p = {norm}", "none")):
        method = DIANA(norm=norm, memory=memory)
        runs = [
            error_curve(label, task, method, steps=steps, every=every, step_size=rule.step_size, seed=seed)
            for seed in range(seeds)
        ]
        curves.append(Curve(label, runs[0].steps, np.mean([one.values for one in runs], axis=0).tolist()))
    distance, shift = float(np.sum(task.solution**2)), task.shift_square_at_start()
    bound = [rule.bound(step, distance, shift) / distance for step in curves[0].steps]
    return curves[0], curves[1], Curve("theorem 1", curves[0].steps, bound)
