"""Experiment 18: SVRG-DIANA, workers that take part in some steps only, and minibatches on a function that is not
convex.

Source: VR-DIANA (arXiv 1904.05115). SVRG-DIANA renews the anchor after a fixed number of steps. A worker that takes
part with probability p sends C(v)/p or nothing, which is an unbiased compressor with (1 + omega)/p - 1 in place of
omega, so VR-DIANA's bound holds. On the function of experiment 12 that is not convex, DIANA with one row a step has the
bound of full gradients plus a term for the noise (`diana_nonconvex_noise`); VR-DIANA, there with a scale of each worker
as in the paper, has a bound without this term (`vr_diana_nonconvex_rule`). Curves are compared with plain NumPy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
from matplotlib.figure import Figure

from wiresum.compress import DIANA, Compressor, IntegerCompressor, Memory, OwnScale, Shift, Turn
from wiresum.compress.arrays import Int32Array, Vector
from wiresum.convex import (
    LSVRG,
    SVRG,
    Estimator,
    Plain,
    Progress,
    diana_nonconvex_noise,
    distributed_minimize,
    vr_diana_nonconvex_rule,
)
from wiresum.experiments import figures
from wiresum.experiments.beyond_strong_convexity import Case, not_convex
from wiresum.experiments.comparison import Runs
from wiresum.experiments.datasets import breast_cancer, error_curve
from wiresum.experiments.experiment import Claim, Curve, Report

CONDITION = 10.0
LOOPLESS, NESTED = "L-SVRG", "SVRG, nested"
NOT_CONVEX, OWN_SCALES = "not convex, one row a step", "not convex, L-SVRG, own scales"
PROBABILITIES = (0.5, 0.25)
OWN_WORKERS, OWN_STEPS = 30, 300
"""The size at any size of the experiment: more rows at a worker would make the bound weaker than the start."""
COIN_STREAM = 9
ROW_SQUARE = 2.0
"""Upper bound on the square of the gradient of a row's loss, for a row of length 1 with an intercept."""


@dataclass(frozen=True)
class Participation(IntegerCompressor):
    """Sends `inner`'s integers at workers that take part in the step, each with `probability`, and zeros at the
    others."""

    inner: IntegerCompressor
    probability: float
    memory: str | Memory = field(default="diana", kw_only=True)

    def omega(self, size: int, workers: int) -> float | None:
        omega = self.inner.omega(size, workers)
        return None if omega is None else (1 + omega) / self.probability - 1

    def bits_at(self, turn: Turn) -> int:
        return self.inner.bits_at(turn)

    def statistic(self, vector: Vector, turn: Turn) -> Vector | None:
        return self.inner.statistic(vector, turn)

    def compress(self, vector: Vector, turn: Turn) -> Int32Array:
        takes_part = turn.uniform(1, stream=COIN_STREAM)[0] < self.probability
        return self.inner.compress(vector, turn) if takes_part else np.zeros(turn.size, np.int32)

    def decompress(self, integers: Int32Array, turn: Turn, contributors: int) -> Vector:
        mean: Vector = self.inner.decompress(integers, turn, contributors) / turn.dtype.type(self.probability)
        return mean


def run(*, workers: int = 10, steps: int = 5000, every: int = 100) -> Report:
    task = breast_cancer(workers, condition=CONDITION, unit_rows=True, by_row=True)
    ternary = DIANA(norm="inf")
    variants: dict[str, tuple[IntegerCompressor, Estimator]] = {
        LOOPLESS: (ternary, LSVRG(1)),
        NESTED: (ternary, SVRG(1, length=round(len(task.signed) / workers))),
        **{f"{p:.0%} of workers": (Participation(ternary, p), LSVRG(1)) for p in PROBABILITIES},
    }
    rules = {
        name: task.vr_diana_rule(smoothness=task.problem.row_smoothness, omega=task.omega(method))
        for name, (method, _) in variants.items()
    }
    curves = {
        name: error_curve(
            name, task, method, estimator=estimator, step_size=rules[name].step_size, steps=steps, every=every
        )
        for name, (method, estimator) in variants.items()
    }
    bounds = {name: task.bound("bound", rules[name], curve.steps) for name, curve in curves.items() if name != NESTED}
    nested = Runs.beside_diana([curves[NESTED]], task, norm="inf", draws=4, rule=rules[NESTED], estimator="svrg")
    rate = {name: -math.log(curve.last / curve.values[0]) / steps for name, curve in curves.items()}
    fewer = [name for name in curves if name not in (LOOPLESS, NESTED)]
    rough = {NOT_CONVEX: _one_row(workers, steps // 2), OWN_SCALES: _own_scales(OWN_WORKERS, OWN_STEPS)}
    claims = [
        *(Claim(f"{name}: error / bound, maximum over steps", curves[name].over(one), at_most=1)
          for name, one in bounds.items()),
        *nested.claims(),
        Claim(f"{NESTED}: rate / that of {LOOPLESS}", rate[NESTED] / rate[LOOPLESS], 0.7, 1.6),
        *(Claim(f"{name}: rate / that of {LOOPLESS}, over the step sizes' ratio",
                rate[name] / rate[LOOPLESS] / (rules[name].step_size / rules[LOOPLESS].step_size), 0.6, 1.7)
          for name in fewer),
        Claim.equal(f"{fewer[0]}: (1 + omega)/p", 1 + task.omega(variants[fewer[0]][0]),
                    (1 + (math.sqrt(task.problem.dimension * workers) - 1) / 2) / PROBABILITIES[0]),
        *(claim for _, _, of_case in rough.values() for claim in of_case),
    ]  # fmt: skip

    def draw(figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        shown = list(curves.values())
        figures.logarithmic(left, shown, title="one row a step, ternary", unit=figures.ERROR)
        means, below = [one[0] for one in rough.values()], [one[1] for one in rough.values()]
        figures.logarithmic(right, means, dashed=below, title="not convex", unit="mean of |grad f(x)|²")

    return Report(
        f"Variants of VR-DIANA: {workers} workers, one row a step",
        ["method", f"error after {steps} steps", "the bound", "rate per step"],
        [
            [name, f"{curve.last:.1e}", f"{bounds[name].last:.1e}" if name in bounds else "-", f"{rate[name]:.5f}"]
            for name, curve in curves.items()
        ]
        + [[f"{name}: mean of |grad f|²", f"{mean.last:.1e}", f"{bound.last:.1e}", "-"]
           for name, (mean, bound, _) in rough.items()],
        claims,
        draw,
    )  # fmt: skip


def _one_row(workers: int, steps: int) -> tuple[Curve, Curve, list[Claim]]:
    """DIANA with one row a step on the function that is not convex."""
    case = not_convex(workers)
    rule, smoothness = case.rule, case.task.problem.worker_smoothness
    noise = diana_nonconvex_noise(
        smoothness=smoothness,
        omega=1 / rule.alpha - 1,
        workers=workers,
        step_size=rule.step_size,
        variance=ROW_SQUARE,
    )
    curves = _below_bound(NOT_CONVEX, case, DIANA(norm="inf", memory=Shift(rule.alpha)), Plain(1), steps, noise)
    expected = 2 * ROW_SQUARE * smoothness * rule.step_size * (4 / rule.alpha - 3) / workers
    return *curves[:2], [*curves[2], Claim.equal(f"{NOT_CONVEX}: the noise's term", noise, expected)]


def _own_scales(workers: int, steps: int) -> tuple[Curve, Curve, list[Claim]]:
    """VR-DIANA on the function that is not convex, where each worker has its own scale, as in the paper."""
    case = not_convex(workers)
    problem = case.task.problem
    method, count = OwnScale(DIANA(norm="inf"), memory="diana"), max(map(problem.rows, range(workers)))
    omega, smoothness = (math.sqrt(problem.dimension) - 1) / 2, problem.row_smoothness
    rule = vr_diana_nonconvex_rule(smoothness=smoothness, omega=omega, workers=workers, refresh=1 / count)
    step_size = min(0.5, math.sqrt(workers / (12 * omega * (1 + omega) ** 2 + 8 * (1 + 4 * omega) * count**2)))
    estimator = LSVRG(1, 1 / count)
    mean, bound, claims = _below_bound(OWN_SCALES, replace(case, rule=rule), method, estimator, steps)
    claims.append(Claim.equal(f"{OWN_SCALES}: step size as in the proof", rule.step_size, step_size / smoothness))
    return mean, bound, claims


def _below_bound(
    name: str, case: Case, method: Compressor, estimator: Estimator, steps: int, noise: float = 0.0
) -> tuple[Curve, Curve, list[Claim]]:
    """The running mean of |grad f|^2, and its bound."""
    squares: list[float] = []

    def observe(progress: Progress) -> None:
        squares.append(case.ours(progress.x))

    distributed_minimize(
        case.task.problem,
        method,
        step_size=case.rule.step_size,
        steps=steps,
        estimator=estimator,
        observe=observe,
    )
    counts = np.arange(1, steps + 2)
    mean = Curve(f"{name}: its mean so far", counts.tolist(), (np.cumsum(squares) / counts).tolist())
    bound = Curve("bound of the mean", counts.tolist(), [case.bound(count) + noise for count in counts.tolist()])
    return mean, bound, [
        Claim(f"{name}: running mean of |grad f|^2 / its bound, maximum over steps", mean.over(bound), at_most=1),
        Claim(f"{name}: last mean / first", mean.last / mean.values[0], at_most=0.3),
    ]  # fmt: skip
