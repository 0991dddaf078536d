"""Draws the chart of a run: time of a step, accuracy over bytes, accuracy over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

COLOURS = matplotlib.color_sequences["tab20"]


def draw(ways: Sequence[dict[str, Any]], path: Path, *, title: str) -> None:
    """Writes a PNG; `ways` are the records of the benchmark."""
    figure, axes = plt.subplots(1, 3, figsize=(14, 4.2), layout="constrained")
    _draw_steps(axes[0], ways)
    _draw_accuracy(axes[1], ways, [way["received_megabytes"] for way in ways], "received by a worker, MB")
    _draw_accuracy(axes[2], ways, [way["seconds"] for way in ways], "time on these links, s")
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{title}; on the right each way has the colour of its bar")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _draw_steps(axis: Axes, ways: Sequence[dict[str, Any]]) -> None:
    slowest = ways[0]["seconds"]
    heights = [way["seconds"] * 1e3 for way in ways]
    bars = axis.barh([way["title"] for way in ways], heights, color=COLOURS)
    labels = [f"{height:.0f} ms, {slowest * 1e3 / height:.1f} x" for height in heights]
    axis.bar_label(bars, labels, fontsize=9, padding=2)
    axis.invert_yaxis()
    axis.set_xlim(right=max(heights) * 1.3)
    axis.set_xlabel("a training step, ms")


def _draw_accuracy(axis: Axes, ways: Sequence[dict[str, Any]], of_step: Sequence[float], unit: str) -> None:
    """Plots accuracy over `of_step` (the bytes or seconds of a step) times steps, on a logarithmic axis, since the ways
    differ by an order of magnitude."""
    for way, one, colour in zip(ways, of_step, COLOURS, strict=False):
        axis.plot([one * step for step in way["steps"]], way["accuracy"], color=colour, marker=".")
    axis.set_xscale("log")
    axis.set_xlabel(unit)
    axis.set_ylabel("test accuracy, %")
    axis.grid(visible=True, alpha=0.25)
