"""Experiment 20: MARINA and DASHA, EF21 with momentum, ARC-Top-K.

MARINA (arXiv 2102.07845) with full gradients: f(x_k) - f(x*) is below its theorem's bound (the proof is at
`marina_rule`); DASHA (arXiv 2202.01268) never sends whole gradients. EF21 with momentum (EF21-SGDM, arXiv 2305.15155):
on the paper's example, |x|^2/2 in two dimensions with three gradients, SGD with a step size gamma ends at an error of
gamma/2 times the gradients' variance. The top 1 with EF21 ends at more, the smaller gamma the more; with momentum it
ends where SGD does. ARC-Top-K (arXiv 2510.26709) on a network: as many bytes for any number of workers, since all send
the same rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import wiresum.compress as wc
from wiresum.compress.arrays import Indices, Vector
from wiresum.convex import DASHA, MARINA, Plain, Problem, Progress, distributed_minimize, marina_rule
from wiresum.experiments import figures
from wiresum.experiments.comparison import REFERENCE_SEEDS, Runs
from wiresum.experiments.datasets import Task, breast_cancer
from wiresum.experiments.experiment import Claim, Curve, Report, spread
from wiresum.experiments.network import (
    Digits,
    accuracies_of,
    gradients_of_workers,
    network,
    segments_of,
    train_with_seeds,
)
from wiresum.experiments.numpy_reference import marina, ternary

CONDITION = 30.0
PROBABILITY = 0.1
WORSE = {0.1: 1.4, 0.01: 1.7}
"""By step size: at least so many times SGD's error has EF21 on the example."""
WEIGHT = 0.1
AS_SGD = (0.65, 1.4)
EXAMPLE_STEPS = 8000
ARC, TOP, DENSE = "ARC-Top-K, 5% of the rows", "Top-k 5%", "dense"
METHODS: dict[str, wc.Compressor] = {DENSE: wc.Identity(), TOP: wc.TopK(0.05), ARC: wc.ARCTopK(0.05)}
POINTS = 4.0
COUNTS = (4, 16)


class Three(Problem):
    """|x|^2/2, whose gradient comes with one of three errors that cancel on average."""

    workers, dimension = 1, 2
    errors = np.array([[2.0, 0.0], [0.0, 1.0], [-2.0, -1.0]])
    variance = float(np.mean(np.sum(errors**2, axis=1)))

    def rows(self, worker: int) -> int:
        return len(self.errors)

    def gradient(self, worker: int, x: Vector, rows: Indices | None = None) -> Vector:
        gradient: Vector = x + (self.errors if rows is None else self.errors[rows]).mean(axis=0)
        return gradient


def run(*, workers: int = 10, steps: int = 1500, every: int = 50, epochs: int = 15, seeds: int = 2) -> Report:
    convex, bound, convex_claims = _convex(workers, steps, every)
    example, example_claims = _example()
    trainings = {
        name: train_with_seeds(method, seeds, workers=4, epochs=epochs, granularity="layer")
        for name, method in METHODS.items()
    }
    accuracies = accuracies_of(trainings)
    received = {name: [_received_bytes(METHODS[name], count) for count in COUNTS] for name in (TOP, ARC)}
    claims = [
        *convex_claims,
        *example_claims,
        Claim.equal(f"{ARC}: bytes received at {COUNTS[1]} workers / at {COUNTS[0]}",
                    received[ARC][1] / received[ARC][0], 1),
        Claim(f"{TOP}: the same", received[TOP][1] / received[TOP][0], at_least=2),
        Claim(f"{ARC}: bytes of dense float32", trainings[ARC][0].sent_bytes / trainings[ARC][0].dense_bytes,
              at_most=0.2),
    ]  # fmt: skip
    if epochs >= 15:
        below = float(np.mean(accuracies[DENSE] - accuracies[ARC]))
        claims.append(Claim(f"{ARC}: accuracy points below dense training, mean over seeds", below, at_most=POINTS))

    def draw(figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        figures.logarithmic(left, convex, dashed=[bound], title="full gradients, ternary", unit="f(x) - f(x*)")
        figures.logarithmic(right, example, title="EF21 of the top 1, one gradient a step", unit="|grad f(x)|²")

    return Report(
        f"Newer methods: {workers} workers",
        ["method", "last value", "sent, of dense float32", "test accuracy, %"],
        [
            *([one.label, f"{one.last:.1e}", "-", "-"] for one in (*convex, *example)),
            *(
                [name, "-", f"{of_seeds[0].sent_bytes / of_seeds[0].dense_bytes:.1%}", spread(accuracies[name])]
                for name, of_seeds in trainings.items()
            ),
        ],
        claims,
        draw,
    )


def _convex(workers: int, steps: int, every: int) -> tuple[list[Curve], Curve, list[Claim]]:
    task = breast_cancer(workers, condition=CONDITION, unit_rows=True)
    problem, ternary_method = task.problem, wc.DIANA(norm="inf", memory="none")
    least, start = problem.value(task.solution), problem.value(np.zeros(problem.dimension))
    omega = task.omega(ternary_method)
    step_size, rate = marina_rule(
        smoothness=problem.worker_smoothness,
        strong_convexity=problem.strong_convexity,
        omega=omega,
        workers=workers,
        probability=PROBABILITY,
    )
    methods = {
        "MARINA": MARINA(ternary_method, PROBABILITY),
        "DASHA": wc.DIANA(norm="inf", memory=DASHA()),
        "no memory": ternary_method,
    }
    curves = [
        _values(name, task, method, lambda x: problem.value(x) - least, step_size=step_size, steps=steps, every=every)
        for name, method in methods.items()
    ]
    bound = Curve("the theorem's bound", curves[0].steps, [(1 - rate) ** k * (start - least) for k in curves[0].steps])
    generator = np.random.default_rng(6)
    reference = marina(
        task, ternary("inf", generator), generator, step_size=step_size, probability=PROBABILITY, steps=steps,
        every=every, seeds=REFERENCE_SEEDS, measure=lambda one, x: one.values(x) - least,
    )  # fmt: skip
    claims = [
        Claim(
            "MARINA: f(x) - f(x*) / the theorem's bound, maximum over steps", curves[0].over(bound), at_most=1 + 1e-9
        ),
        *Runs.of([curves[0]], reference).claims(),
        Claim("DASHA: last value / that without memory", curves[1].last / curves[2].last, at_most=0.1),
        Claim("without memory: last value / MARINA's", curves[2].last / curves[0].last, at_least=10),
    ]
    return curves, bound, claims


def _values(
    label: str,
    task: Task,
    method: wc.Compressor,
    measure: Callable[[Vector], float],
    *,
    every: int,
    **options: Any,
) -> Curve:
    curve = Curve(label)

    def observe(progress: Progress) -> None:
        if progress.step % every == 0:
            curve.add(progress.step, measure(progress.x))

    distributed_minimize(task.problem, method, observe=observe, **options)
    return curve


def _example() -> tuple[list[Curve], list[Claim]]:
    memories: dict[str, wc.Memory] = {"EF21": wc.EF21(), "with momentum": wc.EF21Momentum(WEIGHT)}
    curves, claims = [], []
    for step_size, worse in WORSE.items():
        for name, memory in memories.items():
            curve = _of_three(f"{name}, step size {step_size:g}", memory, step_size)
            level = float(np.mean(curve.values[len(curve.values) // 4 :])) / (Three.variance * step_size / 2)
            allowed = (worse, math.inf) if name == "EF21" else AS_SGD
            claims.append(Claim(f"{curve.label}: mean of |grad f|^2 / SGD's", level, *allowed))
            curves.append(curve)
    return curves, claims


def _of_three(label: str, memory: wc.Memory, step_size: float) -> Curve:
    curve = Curve(label)

    def observe(progress: Progress) -> None:
        if progress.step % 10 == 0:
            curve.add(progress.step, float(progress.x @ progress.x))

    distributed_minimize(
        Three(),
        wc.TopK(0.5, memory=memory),
        step_size=step_size,
        steps=EXAMPLE_STEPS,
        estimator=Plain(1),
        start=np.array([0.0, -1.0]),
        observe=observe,
    )
    return curve


def _received_bytes(method: wc.Compressor, workers: int) -> float:
    digits, model, aggregator = Digits.load(1), network(1), wc.InProcess(workers)
    gradients = gradients_of_workers(digits, model, seed=1, workers=workers, batch=8)
    wc.Engine(method, aggregator).average(segments_of(model, "layer"), gradients)
    return aggregator.traffic.received_bytes
