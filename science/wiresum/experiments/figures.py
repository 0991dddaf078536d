"""The style of the experiments' charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np

mpl.use("Agg")  # a backend that needs no display

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from wiresum.experiments.experiment import Curve, Report

ERROR = "|x - x*|² / |x*|²"
COLOURS = ["#0b6e99", "#d9730d", "#0f7b6c", "#ad1a72", "#6940a5", "#64473a", "#9b9a97", "#dfab01"]


def save(report: Report, path: Path) -> None:
    figure = Figure(figsize=(10, 4), dpi=110, layout="constrained")
    report.draw(figure)
    figure.suptitle(report.title)
    figure.savefig(path)


def logarithmic(
    axes: Axes,
    curves: Sequence[Curve],
    *,
    title: str,
    unit: str,
    dashed: Sequence[Curve] = (),
    first_colour: int = 0,
) -> None:
    """Draws values over steps; a bound is a thin dashed line in its curve's colour."""
    for curve, colour in zip(curves, COLOURS[first_colour:], strict=False):
        axes.plot(curve.steps, curve.values, label=curve.label, color=colour, linewidth=1.5)
    for curve, colour in zip(dashed, COLOURS, strict=False):
        axes.plot(curve.steps, curve.values, label=curve.label, color=colour, linewidth=1, linestyle="--")
    axes.set_yscale("log")
    label(axes, title=title, unit=unit)


def granularities(axes: Axes, values: Mapping[str, tuple[float, float]], *, title: str, unit: str) -> None:
    """Draws two bars for each method: compressed by layer, and over the entire model."""
    at = np.arange(len(values))
    axes.bar(at - 0.2, [by_layer for by_layer, _ in values.values()], 0.4, color=COLOURS[0], label="by layer")
    axes.bar(at + 0.2, [of_model for _, of_model in values.values()], 0.4, color=COLOURS[1], label="entire model")
    axes.set_xticks(at, list(values), fontsize=8)
    label(axes, title=title, unit=unit, over="")


def label(axes: Axes, *, title: str, unit: str, over: str = "step") -> None:
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(over)
    axes.set_ylabel(unit)
    axes.grid(visible=True, alpha=0.25)
    axes.legend(frameon=False, fontsize=8)
