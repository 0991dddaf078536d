"""Experiment 6: by layer or over the entire model?

Source: arXiv 1911.08250. Theory assumes the entire model, practice compresses layer by layer. An unbiased quantiser's
error is smaller by layer: each layer has its own norm, and a layer of small gradients is not measured by a large one's.
Top-k's is smaller over the entire model: the largest values of all are the best choice there is. Measured on a
network's gradients while it trains, as E|C(g) - g|^2 / |g|^2.
"""

from __future__ import annotations

import numpy as np
import torch
from matplotlib.figure import Figure

import figures
from experiment import Claim, Report
from network import Digits, arranged, gradient, network, segments_of
from wiresum.compress import DIANA, QSGD, Compressor, Engine, InProcess, Natural, RandK, Segment, TernGrad, TopK
from wiresum.compress.arrays import Vector

UNBIASED: dict[str, Compressor] = {
    "QSGD, 15 levels": QSGD(15, block=None),
    "TernGrad": TernGrad(),
    "DIANA, p = 2": DIANA(memory="none"),
}
INDIFFERENT: dict[str, Compressor] = {"natural": Natural(), "RandK 10%": RandK(0.1)}
"""Their error does not depend on norms: the same either way, but for chance."""
CHANCE = 0.1
TOP_K: dict[str, Compressor] = {f"Top-k {ratio:.0%}": TopK(ratio, memory="none") for ratio in (0.01, 0.1)}


def run(*, points: int = 8, draws: int = 10, rate: float = 0.1, batch: int = 64) -> Report:
    digits, model = Digits.load(1), network(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    methods = {**UNBIASED, **INDIFFERENT, **TOP_K}
    errors: dict[tuple[str, str], list[float]] = {(name, g): [] for name in methods for g in ("layer", "model")}
    for point in range(points):
        for step in range(10):
            order = torch.randperm(len(digits.images), generator=torch.Generator().manual_seed(100 * point + step))
            values = gradient(model, digits.images[order[:batch]], digits.labels[order[:batch]])[1]
            optimizer.step()
        for (name, granularity), found in errors.items():
            found.append(
                relative_error(methods[name], segments_of(model, granularity), arranged(values, granularity), draws)
            )
    mean = {key: float(np.mean(found)) for key, found in errors.items()}
    claims = [
        Claim(f"{name}: the error is smaller by layer, at every point of the training", all(
            by_layer < whole for by_layer, whole in zip(errors[name, "layer"], errors[name, "model"], strict=True)))
        for name in UNBIASED
    ]  # fmt: skip
    claims += [
        Claim(f"{name}: the same either way, within {CHANCE:.0%}",
              abs(mean[name, "layer"] / mean[name, "model"] - 1) < CHANCE)
        for name in INDIFFERENT
    ]  # fmt: skip
    claims += [
        Claim(f"{name}: the error is smaller over the entire model, at every point", all(
            whole < by_layer for by_layer, whole in zip(errors[name, "layer"], errors[name, "model"], strict=True)))
        for name in TOP_K
    ]  # fmt: skip

    def draw(figure: Figure) -> None:
        axes, at = figure.subplots(), np.arange(len(methods))
        for offset, granularity, colour in ((-0.2, "layer", figures.COLOURS[0]), (0.2, "model", figures.COLOURS[1])):
            label = "by layer" if granularity == "layer" else "entire model"
            axes.bar(at + offset, [mean[name, granularity] for name in methods], 0.4, color=colour, label=label)
        axes.set_xticks(at, list(methods), fontsize=8)
        axes.set_yscale("log")
        figures.label(axes, title="on a network's gradients", unit="E|C(g) - g|² / |g|²", over="")

    return Report(
        "Quantise by layer, choose the top k of the entire model",
        ["compressor", "error by layer", "error of the entire model"],
        [[name, f"{mean[name, 'layer']:.3g}", f"{mean[name, 'model']:.3g}"] for name in methods],
        claims,
        draw,
    )


def relative_error(method: Compressor, segments: list[Segment], vectors: list[Vector], draws: int) -> float:
    """The mean over so many draws of |C(g) - g|^2 / |g|^2, over all segments together."""
    engine, squares = Engine(method, InProcess(1)), []
    for _ in range(draws):
        compressed = engine.average(segments, [vectors])
        squares.append(sum(float(np.sum((c - v) ** 2)) for c, v in zip(compressed, vectors, strict=True)))
        engine.advance()
    return float(np.mean(squares)) / sum(float(np.sum(v**2)) for v in vectors)
