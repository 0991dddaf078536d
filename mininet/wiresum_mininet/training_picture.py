"""Draws a training in Mininet: the loss, and the traffic at each port of the switches; for Gloo, too, if its traffic
was measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")  # works without a display

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from wiresum_mininet.passage import Passage

IN, OUT = "#0b6e99", "#d9730d"
BAR = 0.4
WIDTH_IN, HEIGHT_IN = 5.5, 3.8


def draw(passages: Sequence[Passage], path: Path, *, title: str) -> None:
    figure = Figure(figsize=(WIDTH_IN * (1 + len(passages)), HEIGHT_IN), dpi=120, layout="constrained")
    loss, *traffic = figure.subplots(1, 1 + len(passages))
    for one in passages:
        name = "Gloo" if one.run.backend == "gloo" else "Wiresum"
        loss.plot(range(1, one.run.steps + 1), one.run.losses, linewidth=1.6, label=name)
    loss.set_yscale("log")
    loss.set_title("Training loss", fontsize=10)
    loss.set_xlabel("step")
    loss.set_ylabel("cross-entropy")
    if len(passages) > 1:
        loss.legend(frameon=False)
    most = max(count for one in passages for counts in one.ports.values() for count in counts)
    for axes, one in zip(traffic, passages, strict=True):
        _draw_ports(axes, one)
        axes.set_ylim(0, 1.05 * most / 1e6)
    for axes in (loss, *traffic):
        axes.grid(visible=True, alpha=0.25)
    figure.suptitle(title)
    figure.savefig(path)


def _draw_ports(axes: Axes, one: Passage) -> None:
    places = range(len(one.ports))
    for offset, name, colour, side in ((-BAR / 2, "in", IN, 0), (BAR / 2, "out", OUT, 1)):
        heights = [counts[side] / 1e6 for counts in one.ports.values()]
        axes.bar([place + offset for place in places], heights, BAR, label=name, color=colour)
    axes.set_xticks(list(places), list(one.ports), rotation=45, ha="right")
    whose = ", Gloo" if one.run.backend == "gloo" else ""
    axes.set_title(f"Through the ports of the switches{whose}", fontsize=10)
    axes.set_ylabel("MB")
    axes.legend(frameon=False)
