"""Compares curves with curves of the same algorithm in plain NumPy (numpy_reference.py)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from wiresum.convex import MeanRule, Rule
from wiresum.experiments.datasets import Task
from wiresum.experiments.experiment import Claim, Curve
from wiresum.experiments.numpy_reference import Array, Problem, diana, ternary

REFERENCE_SEEDS = 12
FACTOR = math.log10(3)
"""Tolerance of log10 of errors: a factor of three, since a rare run of L-SVRG waits long for its anchor."""
CHECKED = (0.25, 0.5, 0.75)
"""Fractions of the run at which curves are compared: later errors may be close to rounding errors of x*."""


@dataclass
class Runs:
    """Curves of one method and of its reference, by seed."""

    curve: Curve
    """The mean of the method's curves over seeds."""
    logarithms: list[list[float]]
    """log10 of the method's errors, by seed."""
    reference: list[list[float]]

    @classmethod
    def of(cls, runs: Sequence[Curve], reference: Array) -> Runs:
        """Makes the comparison with `reference`, the errors at the same steps in an array (records, seeds)."""
        mean = np.mean([one.values for one in runs], axis=0).tolist()
        logarithms = [np.log10(one.values).tolist() for one in runs]
        return cls(Curve(runs[0].label, runs[0].steps, mean), logarithms, np.log10(reference.T).tolist())

    @classmethod
    def beside_diana(
        cls,
        runs: Sequence[Curve],
        task: Task,
        *,
        norm: str,
        draws: int,
        rule: Rule | MeanRule,
        alpha: float | None = None,
        estimator: str = "full",
        measure: Callable[[Problem, Array], Array] = Problem.errors,
    ) -> Runs:
        """Makes the comparison with DIANA with a ternary quantiser as the reference. `draws` is its seed, `alpha` may
        replace the rule's."""
        generator, steps = np.random.default_rng(draws), runs[0].steps
        reference = diana(
            task,
            ternary(norm, generator),
            generator,
            step_size=rule.step_size,
            alpha=rule.alpha if alpha is None else alpha,
            steps=steps[-1],
            every=steps[1],
            seeds=REFERENCE_SEEDS,
            estimator=estimator,
            measure=measure,
        )
        return cls.of(runs, reference)

    def claims(self) -> list[Claim]:
        """Claims that the errors match the reference's. They compare logarithms, since convergence is linear."""
        places = [round(part * (len(self.curve.steps) - 1)) for part in CHECKED]
        return [
            Claim.alike(
                f"{self.curve.label}: log10 of the error at step {self.curve.steps[at]} matches the reference",
                [one[at] for one in self.logarithms],
                [one[at] for one in self.reference],
                margin_min=FACTOR,
            )
            for at in places
        ]

    def stalls(self) -> Claim:
        """The claim that the curve stalls at the reference's level, in the last quarter of the run."""
        begin = len(self.curve.steps) * 3 // 4
        return Claim.alike(
            f"{self.curve.label}: stalls at the reference's level (mean log10 of the errors in the last quarter)",
            [float(np.mean(one[begin:])) for one in self.logarithms],
            [float(np.mean(one[begin:])) for one in self.reference],
            margin_min=FACTOR,
        )
