"""Experiment 5: gTop-k trains as well as dense gradients, sends as much as its formula says, and loses nothing.

Source: arXiv 1901.04359. `exact` adds the workers' top k in full and then chooses; `tree` is the published algorithm,
whose merges lose contributions. The loss is measured: the mass of the input, less the mass of the output and of the
memories. Each step's sum is compared with the paper's algorithms in plain NumPy (numpy_reference.py), and accuracies
with dense training's, over seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from matplotlib.figure import Figure

from wiresum.compress import Compressor, Engine, GTopK, Identity, InProcess
from wiresum.compress.arrays import Bytes
from wiresum.compress.native import index_code_bytes
from wiresum.compress.ratio import count_of
from wiresum.experiments import figures
from wiresum.experiments.experiment import Claim, Curve, Report, spread
from wiresum.experiments.network import (
    Digits,
    Training,
    accuracies_of,
    gradients_of_workers,
    network,
    segments_of,
    train,
)
from wiresum.experiments.numpy_reference import Array, global_top_k

RATIO = 0.01
POINTS = 2.0
"""How many percentage points the mean accuracy may be from dense training's."""
CONSERVED = 1e-12
"""Largest fraction of the mass that rounding in float64 may lose."""
SMOOTHING_STEPS = 25
NUMBER_BYTES = 4
PRECISION = 1e-7
"""Relative precision of the sums: values travel as integers on a common scale, of 28 bits beside the sign with 4
workers."""
EXPONENT_BYTES = 2


class Unions(InProcess):
    """Counts the words of the unions over which values are summed."""

    words = 0

    def prefers_sum(self, words_sum: int, words_each: int) -> bool:
        self.words += words_sum
        return super().prefers_sum(words_sum, words_each)


class Root(InProcess):
    """Counts the numbers that pass through worker 0 of the tree."""

    numbers = 0

    def deliver(self, routes: Sequence[tuple[int, int]], parcels: Mapping[int, Bytes], nbytes: int) -> dict[int, Bytes]:
        self.numbers += sum(nbytes // NUMBER_BYTES for route in routes if 0 in route)
        return super().deliver(routes, parcels, nbytes)


def run(*, workers: int = 4, epochs: int = 60, seeds: int = 3) -> Report:
    """Runs the experiment. Accuracies are means over seeds, each with other test images; other results are of the first
    seed."""
    root, unions = Root(workers), Unions(workers)
    methods: dict[str, Compressor] = {
        "dense": Identity(),
        f"gTop-k {RATIO:.0%}, exact": GTopK(RATIO),
        f"gTop-k {RATIO:.0%}, tree": GTopK(RATIO, mode="tree"),
    }
    aggregators = {"exact": unions, "tree": root}
    trainings = {
        name: [
            train(
                method,
                workers=workers,
                epochs=epochs,
                seed=seed,
                aggregator=aggregators.get(name.split()[-1]) if seed == 1 else None,
            )
            for seed in range(1, seeds + 1)
        ]
        for name, method in methods.items()
    }
    runs = {name: of_seeds[0] for name, of_seeds in trainings.items()}
    accuracies = accuracies_of(trainings)
    dense, exact, _ = runs.values()
    size = int(dense.dense_bytes / 4 / len(dense.losses))
    k, steps = count_of(RATIO, size), len(dense.losses)
    modes: list[Literal["exact", "tree"]] = ["exact", "tree"]
    lost: dict[str, float] = {mode: lost_mass(GTopK(RATIO, mode=mode), workers) for mode in modes}
    numbers_expected = int(4 * k * np.log2(workers)) * steps
    bytes_expected = (EXPONENT_BYTES + index_code_bytes(k, size)) * steps + NUMBER_BYTES * unions.words
    below = [accuracies["dense"] - accuracies[name] for name in list(methods)[1:]]
    claims = [
        Claim("exact and tree: accuracy points below dense training, mean over seeds",
              float(np.mean(below)), -POINTS, POINTS),
        *(Claim(f"{mode}: largest difference to the reference's sums / largest value",
                _apart(GTopK(RATIO, mode=mode), workers), at_most=PRECISION) for mode in modes),
        Claim.equal("exact: bytes sent by a worker (k encoded indices, one number per index of the union)",
                    exact.sent_bytes, bytes_expected),
        Claim("exact: size of the union / k", unions.words / (k * steps), 1, workers - 0.2),
        Claim.equal(f"tree: numbers through its root (4k log2 N = {numbers_expected // steps} a step)",
                    root.numbers, numbers_expected),
        Claim("exact: lost mass (input that is neither in the output nor in memories)", lost["exact"],
              at_most=CONSERVED),
        Claim("tree: mass lost in merges", lost["tree"], 1e-3, 0.5),
    ]  # fmt: skip

    def draw(figure: Figure) -> None:
        curves = [loss_curve(name, training) for name, training in runs.items()]
        figures.logarithmic(figure.subplots(), curves, title="training loss, smoothed", unit="cross-entropy")

    return Report(
        f"gTop-k trains as well as dense gradients: {workers} workers, {size:,} parameters, k = {k}",
        ["method", "test accuracy, %", "sent by a worker, MB", "of dense float32", "mass lost"],
        [
            [
                name,
                spread(accuracies[name]),
                f"{training.sent_bytes / 1e6:.2f}",
                f"{training.sent_bytes / training.dense_bytes:.1%}",
                "-" if name == "dense" else f"{lost[name.split()[-1]]:.1e}",
            ]
            for name, training in runs.items()
        ],
        claims,
        draw,
    )


@dataclass(frozen=True)
class Step:
    """The workers' gradients, the estimate, and the residuals after the step, in float64."""

    gradients: list[Array]
    estimate: Array
    residuals: list[Array]


def steps_of(method: GTopK, workers: int, *, steps: int = 20, batch: int = 16) -> list[Step]:
    """The steps of an engine with gradients of a network whose parameters do not change."""
    digits, model, engine = Digits.load(1), network(1), Engine(method, InProcess(workers))
    segments = segments_of(model, "model")
    result = []
    for step in range(steps):
        gradients = gradients_of_workers(digits, model, seed=step, workers=workers, batch=batch)
        vectors = [np.concatenate(one).astype(np.float64) for one in gradients]
        estimate = engine.average(segments, [[vector] for vector in vectors])[0].astype(np.float64)
        engine.advance()
        held = [mine["residual"] for mine in engine.state_dict()["own"]]
        residuals = [np.concatenate([mine[piece.name] for piece in segments[0].pieces]).astype(float) for mine in held]
        result.append(Step(vectors, estimate, residuals))
    return result


def lost_mass(method: GTopK, workers: int) -> float:
    """The lost mass |input - output - memories|_1, divided by |output|_1, for a network's gradients."""
    steps = steps_of(method, workers)
    given = np.sum([vector for step in steps for vector in step.gradients], axis=0)
    received = np.sum([step.estimate for step in steps], axis=0) * workers
    held = np.sum(steps[-1].residuals, axis=0)
    return float(np.abs(given - received - held).sum() / np.abs(received).sum())


def _apart(method: GTopK, workers: int) -> float:
    """The largest difference from the reference in any step, divided by the reference's largest value.

    The reference starts each step from the engine's memories, so that a different choice affects one step only.
    """
    apart = 0.0
    before: list[Array] = [np.zeros(0)] * workers
    count = count_of(RATIO, segments_of(network(1), "model")[0].size)
    for step in steps_of(method, workers):
        vectors = [g + r if len(r) else g for g, r in zip(step.gradients, before, strict=True)]
        expected = global_top_k(vectors, count, tree=method.mode == "tree") / workers
        apart = max(apart, float(np.abs(step.estimate - expected).max() / np.abs(expected).max()))
        before = step.residuals
    return apart


def loss_curve(name: str, training: Training) -> Curve:
    smooth = np.convolve(training.losses, np.full(SMOOTHING_STEPS, 1 / SMOOTHING_STEPS), mode="valid")
    return Curve(name, list(range(SMOOTHING_STEPS, SMOOTHING_STEPS + len(smooth))), smooth.tolist())
