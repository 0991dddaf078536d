"""Experiment 4: IntSGD matches full precision. If workers differ, its integers grow, and IntDIANA's stay small.

Source: arXiv 2102.08374. IntSGD sends Int(a_k g_i). Near x* the model hardly moves, so a_k grows, but g_i does not
vanish if workers differ: the integers grow without bound. IntDIANA sends Int(a_k (g_i - h_i)), and g_i - h_i shrinks as
fast as the motion. The experiment uses the paper's scale, scale="estimate"; with a maximum, as the guide recommends, no
integer grows. Integers are compared with the paper's scale, computed from the iterates.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from wiresum.compress import Compressor, Identity, InProcess, IntDIANA, IntSGD
from wiresum.compress.arrays import Int32Array, Vector
from wiresum.experiments import figures
from wiresum.experiments.datasets import Task, breast_cancer, error_curve
from wiresum.experiments.experiment import Claim, Curve, Report

CONDITION = 30.0
LEVEL = 1e-12
BETA = 0.9
"""Decay of the moving average, as in the paper."""
WITHIN = 1.5
"""Largest ratio of the steps to full precision's. The paper's theorems hold up to a constant: rounding adds half of
|x_k - x_(k-1)|^2 to the error."""
EPSILON = 1e-8
"""The paper's eps."""
MOTION_PRECISION = 1e-7
"""Relative tolerance of the scale, which rounding errors of the iterates affect near the end."""
NOISE_STEPS = 250
"""Steps in which noise is compared. Later it is as small as rounding errors of the iterates."""
SINGLE_DIGIT = 9
GROWN = 1e5
SETTLED_STEPS = 20
"""Steps that are left out at the start: the first step's integers have 32 bits, and the shift needs some steps to
approach the gradient."""


class Watching(InProcess):
    """Records the largest integer that a worker sends in each sum."""

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
        "IntSGD": IntSGD(32, scale="estimate"),
        "IntDIANA, 8 bits": IntDIANA(8, scale="estimate"),
    }
    errors: dict[tuple[str, str], Curve] = {}
    integers: dict[tuple[str, str], Curve] = {}
    iterates: dict[tuple[str, str], list[Vector]] = {}
    claims: list[Claim] = []
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
                iterates=iterates.setdefault((workers_are, name), []),
            )
            integers[workers_are, name] = Curve(
                f"{name}, workers {workers_are}",
                list(range(len(watching.largest))),
                [float(v) for v in watching.largest],
            )
        claims += _scale_claims(task, workers_are, iterates[workers_are, "IntSGD"], integers[workers_are, "IntSGD"])

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
                f"{errors[workers_are, name].settles_below(LEVEL):g}",
                f"{errors[workers_are, name].last:.1e}",
                f"{integers[workers_are, name].last:g}" if integers[workers_are, name].values else "-",
            ]
            for workers_are in data
            for name in methods
        ],
        [*claims, *_claims(errors, integers)],
        draw,
    )


def _scale_claims(task: Task, workers_are: str, iterates: list[Vector], largest: Curve) -> list[Claim]:
    """Compares the integers and the noise with the paper's formulas of the iterates (section 3.2)."""
    problem = task.problem
    n, d, rate = problem.workers, problem.dimension, 1 / problem.worker_smoothness
    moved = [float(np.sum((after - before) ** 2)) for before, after in itertools.pairwise(iterates)]
    average, apart, noise, largest_noise = moved[0], [], [], []
    for step in range(1, len(moved)):
        scale = rate * math.sqrt(d) / math.sqrt(2 * n * average + (rate * EPSILON) ** 2)
        gradients = [problem.gradient(worker, iterates[step]) for worker in range(n)]
        expected_largest = scale * max(float(np.abs(g).max()) for g in gradients)
        apart.append(abs(largest.values[step] - expected_largest) / (1 + MOTION_PRECISION * expected_largest))
        estimate = (iterates[step] - iterates[step + 1]) / rate
        fractions = scale * np.abs(gradients) % 1
        expected = float(np.sum(fractions * (1 - fractions))) / (n * scale) ** 2
        noise.append(float(np.sum((estimate - np.mean(gradients, axis=0)) ** 2)) / expected)
        largest_noise.append(expected / (average / (2 * rate**2) + EPSILON**2 / (4 * n)))
        average = BETA * average + (1 - BETA) * moved[step]
    return [
        Claim(f"IntSGD, workers {workers_are}: largest integer, maximum difference to scale * largest value",
              max(apart[1:]), at_most=1 + 1e-6),
        Claim.mean(f"IntSGD, workers {workers_are}: noise / its expectation", noise[:NOISE_STEPS], 1.0),
        Claim(f"IntSGD, workers {workers_are}: expected noise / lemma 1's bound r/(2 eta^2) + eps^2/(4n), maximum",
              max(largest_noise), at_most=1 + 1e-6),
    ]  # fmt: skip


def _claims(errors: dict[tuple[str, str], Curve], integers: dict[tuple[str, str], Curve]) -> list[Claim]:
    claims = []
    for workers_are in ("alike", "differing"):
        full = errors[workers_are, "full precision"].settles_below(LEVEL)
        for name in ("IntSGD", "IntDIANA, 8 bits"):
            needed = errors[workers_are, name].settles_below(LEVEL) / full
            claims.append(Claim(f"{name}, workers {workers_are}: steps / full precision's steps", needed, 0.9, WITHIN))
    growing = integers["differing", "IntSGD"].values
    quarters = [max(part) for part in np.array_split(growing[SETTLED_STEPS:], 4)]
    small = integers["differing", "IntDIANA, 8 bits"].values[SETTLED_STEPS:]
    growth = min(after / before for before, after in itertools.pairwise(quarters))
    return [
        *claims,
        Claim("IntSGD, workers differing: smallest growth of integers between quarters of the run", growth, 2),
        Claim("IntSGD, workers differing: largest integer in the last step", growing[-1], GROWN),
        Claim("IntDIANA, workers differing: largest integer", max(small), 1, SINGLE_DIGIT),
    ]
