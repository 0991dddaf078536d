"""Experiment 5: gTop-k trains as well as dense gradients; it sends what its formula says, and loses nothing.

Source: arXiv 1901.04359. `exact` adds the workers' top k in full and then chooses; `tree` is the published algorithm,
whose merges drop contributions for good. How much is lost is measured: the mass that went in, minus what came out and
what the memories hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from matplotlib.figure import Figure

import figures
from experiment import Claim, Curve, Report
from network import Digits, Training, gradient, network, segments_of, train
from wiresum.compress import Compressor, Engine, GTopK, Identity, InProcess
from wiresum.compress.arrays import Bytes
from wiresum.compress.sparse import count_of
from wiresum.compress.union import index_code_bytes

RATIO = 0.01
POINTS = 1.0
"""How far the accuracy may be from dense training's."""
CONSERVED = 1e-12
"""Of the mass, in float64."""
SMOOTHING_STEPS = 25
NUMBER_BYTES = 4
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
    """Accuracies are means over so many seeds, each with other test images; the rest is of the first."""
    root, unions = Root(workers), Unions(workers)
    methods: dict[str, Compressor] = {
        "dense": Identity(),
        f"gTop-k {RATIO:.0%}, exact": GTopK(RATIO),
        f"gTop-k {RATIO:.0%}, tree": GTopK(RATIO, mode="tree"),
    }
    runs = {
        name: train(
            method, workers=workers, epochs=epochs, aggregator={"tree": root, "exact": unions}.get(name.split()[-1])
        )
        for name, method in methods.items()
    }
    accuracy = {
        name: float(np.mean([runs[name].accuracy, *_accuracies(method, workers, epochs, range(2, seeds + 1))]))
        for name, method in methods.items()
    }
    dense, exact, _ = runs.values()
    accuracy_dense, accuracy_exact, _ = accuracy.values()
    size = int(dense.dense_bytes / 4 / len(dense.losses))
    k, steps = count_of(RATIO, size), len(dense.losses)
    modes: list[Literal["exact", "tree"]] = ["exact", "tree"]
    lost: dict[str, float] = {mode: lost_mass(GTopK(RATIO, mode=mode), workers) for mode in modes}
    numbers_expected = int(4 * k * np.log2(workers)) * steps
    bytes_expected = (EXPONENT_BYTES + index_code_bytes(k, size)) * steps + NUMBER_BYTES * unions.words
    claims = [
        Claim(f"exact: accuracy within {POINTS:g} point of dense", accuracy_exact >= accuracy_dense - POINTS),
        Claim("exact: each worker sends k indices as a code, and a number for each of the union, less than N k",
              exact.sent_bytes == bytes_expected and unions.words < workers * k * steps),
        Claim(f"tree: through its root pass {numbers_expected // steps} numbers (4k log2 N) a step",
              root.numbers == numbers_expected),
        Claim("exact conserves mass: what came out and what memories hold is what went in", lost["exact"] < CONSERVED),
        Claim("tree does not", lost["tree"] > CONSERVED),
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
                f"{accuracy[name]:.1f}",
                f"{training.sent_bytes / 1e6:.2f}",
                f"{training.sent_bytes / training.dense_bytes:.1%}",
                "-" if name == "dense" else f"{lost[name.split()[-1]]:.1e}",
            ]
            for name, training in runs.items()
        ],
        claims,
        draw,
    )


def _accuracies(method: Compressor, workers: int, epochs: int, seeds: Iterable[int]) -> list[float]:
    return [train(method, workers=workers, epochs=epochs, seed=seed).accuracy for seed in seeds]


def lost_mass(method: GTopK, workers: int, *, steps: int = 20, batch: int = 16) -> float:
    """|what went in - what came out - what memories hold|_1 over |what came out|_1, for a network's gradients."""
    digits, model, engine = Digits.load(1), network(1), Engine(method, InProcess(workers))
    segments = segments_of(model, "model")
    given, received = np.zeros(segments[0].size), np.zeros(segments[0].size)
    for step in range(steps):
        order = torch.randperm(len(digits.images), generator=torch.Generator().manual_seed(step))
        shares = order[: workers * batch].reshape(workers, batch)
        gradients = [gradient(model, digits.images[share], digits.labels[share])[1] for share in shares]
        vectors = [[np.concatenate(one).astype(np.float64)] for one in gradients]
        given += np.sum([row[0] for row in vectors], axis=0)
        received += engine.average(segments, vectors)[0] * workers
        engine.advance()
    held = np.zeros_like(given)
    for mine in engine.state_dict()["own"]:
        held += np.concatenate([mine[piece.name] for piece in segments[0].pieces])
    return float(np.abs(given - received - held).sum() / np.abs(received).sum())


def loss_curve(name: str, training: Training) -> Curve:
    smooth = np.convolve(training.losses, np.full(SMOOTHING_STEPS, 1 / SMOOTHING_STEPS), mode="valid")
    return Curve(name, list(range(SMOOTHING_STEPS, SMOOTHING_STEPS + len(smooth))), smooth.tolist())
