"""Experiment 6: the error of compression by layer and over the entire model.

Source: arXiv 1911.08250. Theory assumes the entire model, practice compresses layer by layer. The error of an unbiased
quantiser is smaller by layer, since each layer has its own norm; the error of top-k is smaller over the entire model.
E|C(g) - g|^2 / |g|^2 is measured on a network's gradients while it trains, and compared with its closed form.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from matplotlib.figure import Figure

from wiresum.compress import DIANA, QSGD, Compressor, Engine, InProcess, Natural, RandK, Segment, TernGrad, TopK
from wiresum.compress.arrays import Vector
from wiresum.experiments import figures
from wiresum.experiments.experiment import Claim, Report
from wiresum.experiments.network import Digits, arranged, gradients_of_workers, network, segments_of

UNBIASED: dict[str, Compressor] = {
    "QSGD, 15 levels": QSGD(15, block=None),
    "TernGrad": TernGrad(),
    "DIANA, p = 2": DIANA(memory="none"),
}
INDIFFERENT: dict[str, Compressor] = {"natural": Natural(), "RandK 10%": RandK(0.1)}
"""Methods whose error does not depend on norms, and so not on the granularity."""
CHANCE = 0.1
TOP_K: dict[str, Compressor] = {f"Top-k {ratio:.0%}": TopK(ratio, memory="none") for ratio in (0.01, 0.1)}


def run(*, points: int = 8, draws: int = 10, rate: float = 0.1, batch: int = 64) -> Report:
    digits, model = Digits.load(1), network(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    methods = {**UNBIASED, **INDIFFERENT, **TOP_K}
    errors: dict[tuple[str, str], list[float]] = {(name, g): [] for name in methods for g in ("layer", "model")}
    ratios: dict[tuple[str, str], list[float]] = {key: [] for key in errors}
    for point in range(points):
        for step in range(10):
            [values] = gradients_of_workers(digits, model, seed=100 * point + step, workers=1, batch=batch)
            optimizer.step()
        for (name, granularity), found in errors.items():
            vectors = arranged(values, granularity)
            squares = relative_errors(methods[name], segments_of(model, granularity), vectors, draws)
            found.append(float(np.mean(squares)))
            ratios[name, granularity] += [square / expected_error(name, vectors) for square in squares]
    mean = {key: float(np.mean(found)) for key, found in errors.items()}
    claims = [
        Claim.mean(f"{name}, {granularity}: error / its expectation", found, 1.0)
        for (name, granularity), found in ratios.items()
    ]
    claims += [
        Claim(f"{name}: error of the entire model / by layer, minimum over points of the training",
              float(np.min(np.divide(errors[name, "model"], errors[name, "layer"]))), at_least=1.1)
        for name in UNBIASED
    ]  # fmt: skip
    claims += [
        Claim(f"{name}: error by layer / of the entire model", mean[name, "layer"] / mean[name, "model"],
              1 - CHANCE, 1 + CHANCE)
        for name in INDIFFERENT
    ]  # fmt: skip
    claims += [
        Claim(f"{name}: error by layer / of the entire model, minimum over points of the training",
              float(np.min(np.divide(errors[name, "layer"], errors[name, "model"]))), at_least=1.05)
        for name in TOP_K
    ]  # fmt: skip

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        pairs = {name: (mean[name, "layer"], mean[name, "model"]) for name in methods}
        figures.granularities(axes, pairs, title="on a network's gradients", unit="E|C(g) - g|² / |g|²")
        axes.set_yscale("log")

    return Report(
        "Quantise by layer, choose the top k of the entire model",
        ["compressor", "error by layer", "error of the entire model"],
        [[name, f"{mean[name, 'layer']:.3g}", f"{mean[name, 'model']:.3g}"] for name in methods],
        claims,
        draw,
    )


def relative_errors(method: Compressor, segments: list[Segment], vectors: list[Vector], draws: int) -> list[float]:
    """The relative error |C(g) - g|^2 / |g|^2 of each draw, over all segments together."""
    engine, squares = Engine(method, InProcess(1)), []
    whole = sum(float(np.sum(v**2)) for v in vectors)
    for _ in range(draws):
        compressed = engine.average(segments, [vectors])
        squares.append(sum(float(np.sum((c - v) ** 2)) for c, v in zip(compressed, vectors, strict=True)) / whole)
        engine.advance()
    return squares


def expected_error(name: str, vectors: list[Vector]) -> float:
    """The expectation E|C(g) - g|^2 / |g|^2, by independent formulas."""
    wide = [vector.astype(np.float64) for vector in vectors]
    return sum(EXPECTED[name](vector) for vector in wide) / sum(float(np.sum(vector**2)) for vector in wide)


def _on_a_grid(magnitudes: Vector, quantum: float) -> float:
    """The error of unbiased rounding to multiples of the quantum."""
    fraction = magnitudes / quantum % 1
    return float(np.sum(fraction * (1 - fraction)) * quantum**2)


def _to_powers_of_two(magnitudes: Vector) -> float:
    low = np.exp2(np.floor(np.log2(magnitudes[magnitudes > 0])))
    return float(np.sum((2 * low - magnitudes[magnitudes > 0]) * (magnitudes[magnitudes > 0] - low)))


def _without_largest(vector: Vector, ratio: float) -> float:
    ascending = np.sort(vector**2)
    return float(ascending[: len(vector) - max(1, round(ratio * len(vector)))].sum())


EXPECTED: dict[str, Callable[[Vector], float]] = {
    "QSGD, 15 levels": lambda v: _on_a_grid(np.abs(v), float(np.linalg.norm(v)) / 15),
    "TernGrad": lambda v: _on_a_grid(np.abs(v), float(np.abs(v).max())),
    "DIANA, p = 2": lambda v: _on_a_grid(np.abs(v), float(np.linalg.norm(v))),
    "natural": lambda v: _to_powers_of_two(np.abs(v)),
    "RandK 10%": lambda v: (len(v) / max(1, round(0.1 * len(v))) - 1) * float(np.sum(v**2)),
    "Top-k 1%": lambda v: _without_largest(v, 0.01),
    "Top-k 10%": lambda v: _without_largest(v, 0.1),
}
