"""Draws loss, accuracy and goodput of the two runs, wiresum beside Gloo."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")  # a backend that needs no display

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from wiresum_lab.demos.digits.runs import Run

COLOURS = {"wiresum": "#0b6e99", "gloo": "#d9730d"}
STYLES = {"wiresum": "-", "gloo": "--"}
SMOOTHING_STEPS = 9


def draw(runs: list[Run], path: Path, *, world_size: int, link_mbit: float) -> None:
    figure = Figure(figsize=(12, 3.8), dpi=120, layout="constrained")
    loss, accuracy, goodput = figure.subplots(1, 3)
    for run in runs:
        look = {"color": COLOURS[run.name], "linestyle": STYLES[run.name], "linewidth": 1.6}
        loss.plot(range(1, run.steps + 1), run.losses, label=run.name, **look)
        steps = sorted(run.accuracies)
        accuracy.plot(steps, [100 * run.accuracies[step] for step in steps], label=run.name, **look)
        smooth = moving_median(run.goodputs_mbit, SMOOTHING_STEPS)
        goodput.plot(range(1, run.steps + 1), smooth, label=f"{run.name}, median {run.goodput_mbit:.0f}", **look)
    loss.set_yscale("log")
    label(loss, "Training loss", "cross-entropy")
    label(accuracy, "Test accuracy", "%")
    label(goodput, f"Gradients all-reduced, median of {SMOOTHING_STEPS} steps", "Mbit/s")
    goodput.set_ylim(bottom=0)
    links = f"behind links of {link_mbit:g} Mbit/s" if link_mbit else "on one machine's loopback"
    figure.suptitle(f"Handwritten digits, {world_size} workers {links}, DistributedDataParallel")
    figure.savefig(path)


def label(axes: Axes, title: str, unit: str) -> None:
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("step")
    axes.set_ylabel(unit)
    axes.grid(visible=True, alpha=0.25)
    axes.legend(frameon=False)


def moving_median(values: list[float], width: int) -> list[float]:
    """The moving median, with as many values as given: the window is narrower at both ends."""
    half = width // 2
    windows = (sorted(values[max(0, at - half) : at + half + 1]) for at in range(len(values)))
    return [window[len(window) // 2] for window in windows]
