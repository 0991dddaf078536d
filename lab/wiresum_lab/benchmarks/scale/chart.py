"""Draws the charts of the study: time by number of workers, and by loss, beside the bounds of a ring and of halving and
doubling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter

from wiresum_lab.benchmarks.scale.bounds import halving_doubling_s, ring_s
from wiresum_lab.benchmarks.scale.case import Case, Outcome
from wiresum_lab.benchmarks.scale.studies import Row, median_s

Rows = Sequence[tuple[Row, list[Outcome]]]
NO_LOSS_AT = 1e-7
"""The place of the case without loss on a logarithmic axis."""
OTHERS: tuple[tuple[str, str, str, Callable[..., float]], ...] = (
    ("ring, at best", "#E69F00", "--", ring_s),
    ("halving and doubling, at best", "#009E73", "-.", halving_doubling_s),
)
X_OF: dict[str, tuple[str, Callable[[Case], float]]] = {
    "scale": ("workers", lambda case: case.workers),
    "loss": ("fraction of packets lost on each link", lambda case: case.loss or NO_LOSS_AT),
}


def draw(study: str, rows: Rows, path: Path) -> None:
    """Writes a PNG with a panel for each last label of the rows."""
    panels: dict[str, list[tuple[Row, list[Outcome]]]] = {}
    for row, outcomes in rows:
        panels.setdefault(row.labels[-1], []).append((row, outcomes))
    figure, axes = plt.subplots(1, len(panels), figsize=(3.9 * len(panels), 3.7), squeeze=False, layout="constrained")
    for axis, (title, mine) in zip(axes.flat, panels.items(), strict=True):
        _draw_panel(axis, mine, *X_OF[study])
        axis.set_title(title)
    axes.flat[0].set_ylabel("ms")
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.suptitle(f"{rows[0][0].case.megabytes:g} MB of fp32")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_panel(axis: Axes, rows: Rows, x_label: str, x_of: Callable[[Case], float]) -> None:
    cases = [row.case for row, _ in rows]
    places = [x_of(case) for case in cases]
    axis.plot(
        places, [median_s(mine) * 1e3 for _, mine in rows], color="#0072B2", marker="o", label="Wiresum, simulated"
    )
    for label, colour, style, seconds in OTHERS:
        heights = [seconds(case.workers, case.tensor_bytes, case.path) * 1e3 for case in cases]
        axis.plot(places, heights, color=colour, linestyle=style, marker=".", label=label)
    axis.set_xscale("log", base=2 if x_label == "workers" else 10)
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.set_xticks(places, ["none" if place == NO_LOSS_AT else f"{place:g}" for place in places])
    axis.set_xlabel(x_label)
    axis.grid(visible=True, alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
