"""Draws a training in Mininet: the loss, and what crossed each port of the switches."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")  # no display is needed, and none is looked for

from matplotlib.figure import Figure

from runs import Run

IN, OUT = "#0b6e99", "#d9730d"
BAR = 0.4


def draw(run: Run, ports: Mapping[str, tuple[int, int]], path: Path, *, title: str) -> None:
    """`ports`: bytes that came in and went out."""
    figure = Figure(figsize=(11, 3.8), dpi=120, layout="constrained")
    loss, traffic = figure.subplots(1, 2)
    loss.plot(range(1, run.steps + 1), run.losses, color=IN, linewidth=1.6)
    loss.set_yscale("log")
    loss.set_title("Training loss", fontsize=10)
    loss.set_xlabel("step")
    loss.set_ylabel("cross-entropy")
    places = range(len(ports))
    for offset, name, colour, side in ((-BAR / 2, "in", IN, 0), (BAR / 2, "out", OUT, 1)):
        heights = [counts[side] / 1e6 for counts in ports.values()]
        traffic.bar([place + offset for place in places], heights, BAR, label=name, color=colour)
    traffic.set_xticks(list(places), list(ports), rotation=45, ha="right")
    traffic.set_title("Through the ports of the switches", fontsize=10)
    traffic.set_ylabel("MB")
    traffic.legend(frameon=False)
    for axes in (loss, traffic):
        axes.grid(visible=True, alpha=0.25)
    figure.suptitle(title)
    figure.savefig(path)
