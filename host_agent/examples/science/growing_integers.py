"""Experiment 4: IntSGD matches full precision; where workers differ its integers grow, and IntDIANA's stay small.

Source: arXiv 2102.08374. IntSGD sends Int(a_k g_i). Near x* the model hardly moves, so that a_k grows, but g_i does not
vanish where workers differ: the integers grow without bound. IntDIANA sends Int(a_k (g_i - h_i)), and g_i - h_i
shrinks as fast as the motion.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

import figures
from datasets import breast_cancer, error_curve
from experiment import Claim, Curve, Report
from wiresum.compress import Compressor, Identity, InProcess, IntDIANA, IntSGD
from wiresum.compress.arrays import Int32Array

CONDITION = 30.0
LEVEL = 1e-12
WITHIN = 1.5
"""'Matches' is up to a constant in the paper's theorems: its rounding adds half of |x_k - x_(k-1)|^2 to the error."""
SINGLE_DIGIT = 9
GROWN = 1e5
SETTLED_STEPS = 20
"""The first step's integers are 32 bits wide by design, and the shift has to find the gradient."""


class Watching(InProcess):
    """Notes the largest integer that a worker sends."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self.largest: list[int] = []

    def sum(self, contributions: Sequence[Int32Array], bits: int) -> Int32Array:
        self.largest.append(max(int(np.abs(values).max()) for values in contributions))
        return super().sum(contributions, bits)


def run(*, workers: int = 10, steps: int = 700, every: int = 5) -> Report:
    data = {"alike": True, "differing": False}
    methods: dict[str, Compressor] = {
        "full precision": Identity(),
        "IntSGD": IntSGD(32),
        "IntDIANA, 8 bits": IntDIANA(8),
    }
    errors: dict[tuple[str, str], Curve] = {}
    integers: dict[tuple[str, str], Curve] = {}
    for workers_are, mixed in data.items():
        task = breast_cancer(workers, condition=CONDITION, mixed=mixed)
        for name, method in methods.items():
            watching = Watching(workers)
            errors[workers_are, name] = error_curve(
                f"{name}, workers {workers_are}",
                task,
                method,
                step_size=1 / task.problem.worker_smoothness,
                steps=steps,
                every=every,
                aggregator=watching,
            )
            integers[workers_are, name] = Curve(
                f"{name}, workers {workers_are}",
                list(range(len(watching.largest))),
                [float(v) for v in watching.largest],
            )

    def draw(figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        shown = [errors["differing", name] for name in methods]
        figures.logarithmic(left, shown, title="error", unit=figures.ERROR)
        shown = [integers["differing", name] for name in list(methods)[1:]]
        figures.logarithmic(right, shown, title="largest integer that a worker sends", unit="integer", first_colour=1)

    return Report(
        f"IntSGD matches full precision; IntDIANA keeps its integers small: {workers} workers",
        ["method", "workers", f"steps to {LEVEL:g}", "last error", "largest integer, last step"],
        [
            [
                name,
                workers_are,
                f"{errors[workers_are, name].first_step_below(LEVEL):g}",
                f"{errors[workers_are, name].last:.1e}",
                f"{integers[workers_are, name].last:g}" if integers[workers_are, name].values else "-",
            ]
            for workers_are in data
            for name in methods
        ],
        _claims(errors, integers),
        draw,
    )


def _claims(errors: dict[tuple[str, str], Curve], integers: dict[tuple[str, str], Curve]) -> list[Claim]:
    claims = []
    for workers_are in ("alike", "differing"):
        full = errors[workers_are, "full precision"].first_step_below(LEVEL)
        for name in ("IntSGD", "IntDIANA, 8 bits"):
            needed = errors[workers_are, name].first_step_below(LEVEL)
            text = f"{name} matches full precision, workers {workers_are} (at most {WITHIN} times the steps)"
            claims.append(Claim(text, needed <= WITHIN * full))
    growing = integers["differing", "IntSGD"].values
    quarters = [max(part) for part in np.array_split(growing[SETTLED_STEPS:], 4)]
    small = integers["differing", "IntDIANA, 8 bits"].values[SETTLED_STEPS:]
    return [
        *claims,
        Claim("IntSGD's integers grow in every quarter of the run, workers differing", quarters == sorted(quarters)),
        Claim(f"they exceed {GROWN:g}", growing[-1] > GROWN),
        Claim(f"IntDIANA's stay single digits (at most {max(small):g})", max(small) <= SINGLE_DIGIT),
    ]
