"""The picture of a run: goodput by link and system, bits of a float, loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from wiresum_lab.benchmarks.against_gloo_and_mpi.report import Record, median
from wiresum_lab.benchmarks.against_gloo_and_mpi.systems import SYSTEMS

# Okabe and Ito's palette, which colour-blind readers can tell apart; hatches say the same in print.
LOOKS = {
    "wiresum": ("#0072B2", ""),
    "wiresum-xdp": ("#CC79A7", "++"),
    "wiresum-dpdk": ("#D55E00", "oo"),
    "gloo": ("#E69F00", "//"),
    "openmpi": ("#009E73", ".."),
    "openmpi-wiresum": ("#56B4E9", "xx"),
}
LANE_COLOURS = {32: "#0072B2", 16: "#56B4E9", 8: "#CC79A7"}
BAR_GROUP_WIDTH = 0.8
# Keeps a number readable where the line of the bound runs through it.
LABEL_BOX = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}


def draw(records: Sequence[Record], path: Path) -> None:
    """Writes a PNG with a panel for everything that the records hold; without any there is no picture."""
    records = [record for record in records if record["goodput_mbit"] is not None and record["correct"]]
    rates = [record for record in records if record["experiment"] == "rate"]
    panels = [(_draw_rate, rows) for rows in _by_link([record for record in rates if record["bits"] == 32])]
    own = [record for record in rates if record["system"] == "wiresum"]
    if len({record["bits"] for record in own}) > 1:
        panels += [(_draw_lanes, _by_link(own)[0])]
    unshaped = [record for record in records if record["experiment"] == "unshaped"]
    panels += [(_draw_unshaped, unshaped)] if unshaped else []
    lossy = [record for record in records if record["experiment"] == "loss"]
    panels += [(_draw_loss, lossy + _without_loss(lossy, rates))] if lossy else []
    latencies = [record for record in records if record["experiment"] == "latency"]
    panels += [(_draw_latency, latencies)] if latencies else []
    if not panels:
        return
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(4.8 * columns, 3.9 * rows), squeeze=False, layout="constrained")
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, (draw_panel, panel_records) in zip(axes.flat, panels, strict=False):
        draw_panel(axis, panel_records)
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle("All-reduce in the network, beside ring all-reduce, on the same star of links")
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _draw_rate(axis: Axes, records: Sequence[Record]) -> None:
    link_mbit = records[0]["link_mbit"]
    _draw_systems(axis, records, _workers_of, lambda workers: f"N = {workers}")
    own = next((record for record in records if record["system"] == "wiresum"), records[0])
    if own["bound_ratio"]:
        bound_mbit = own["goodput_mbit"] / own["bound_ratio"]
        axis.axhline(bound_mbit, color="#444444", linestyle="--", linewidth=1, label="bound of the link")
    _finish(axis, f"fp32, links of {link_mbit:g} Mbit/s", "goodput, Mbit/s")


def _draw_lanes(axis: Axes, records: Sequence[Record]) -> None:
    workers = _workers(records)
    lanes = sorted({record["bits"] for record in records}, reverse=True)
    for index, bits in enumerate(lanes):
        rows = {record["workers"]: record for record in records if record["bits"] == bits}
        heights = [rows[n]["goodput_mbit"] if n in rows else 0.0 for n in workers]
        _bars(axis, index, len(lanes), heights, f"{bits} bits", LANE_COLOURS[bits], "")
    axis.set_xticks(range(len(workers)), [f"N = {n}" for n in workers])
    _finish(
        axis,
        f"Wiresum's bits for a float, links of {records[0]['link_mbit']:g} Mbit/s",
        "goodput of fp32 tensors, Mbit/s",
    )


def _draw_unshaped(axis: Axes, records: Sequence[Record]) -> None:
    _draw_systems(axis, records, lambda row: (row["workers"], row["mtu"]), lambda at: "N = {}\nMTU {}".format(*at))
    _finish(axis, f"fp32, {records[0]['bytes'] / 1e6:g} MB, unshaped links of one host", "goodput, Mbit/s")


def _draw_loss(axis: Axes, records: Sequence[Record]) -> None:
    _draw_systems(axis, records, lambda row: row["loss"], lambda loss: f"{loss:.2%}")
    axis.set_xlabel("fraction of packets lost in each direction")
    _finish(
        axis,
        f"Packets lost on every link, N = {records[0]['workers']}, {records[0]['link_mbit']:g} Mbit/s",
        "goodput, Mbit/s",
    )


def _draw_latency(axis: Axes, records: Sequence[Record]) -> None:
    for record in records:
        record["microseconds"] = median(record["seconds"]) * 1e6
    _draw_systems(axis, records, _workers_of, lambda workers: f"N = {workers}", "microseconds")
    _finish(axis, "1 kB over loopback", "median time, us (less is better)")


def _draw_systems(
    axis: Axes,
    records: Sequence[Record],
    key: Callable[[Record], Any],
    label: Callable[[Any], str],
    value: str = "goodput_mbit",
) -> None:
    """A group of bars for each key that the records have, a bar for each system."""
    keys = sorted({key(record) for record in records})
    systems = [name for name in SYSTEMS if any(record["system"] == name for record in records)]
    for index, system in enumerate(systems):
        rows = {key(record): record for record in records if record["system"] == system}
        heights = [rows[at][value] if at in rows else 0.0 for at in keys]
        _bars(axis, index, len(systems), heights, SYSTEMS[system].title, *LOOKS[system])
    axis.set_xticks(range(len(keys)), [label(at) for at in keys])


def _bars(axis: Axes, index: int, count: int, heights: Sequence[float], label: str, colour: str, hatch: str) -> None:
    width = BAR_GROUP_WIDTH / count
    places = [at + (index - (count - 1) / 2) * width for at in range(len(heights))]
    bars = axis.bar(places, heights, width * 0.94, label=label, color=colour, hatch=hatch, edgecolor="white")
    axis.bar_label(
        bars, [f"{height:.0f}" if height else "" for height in heights], fontsize=8, padding=2, bbox=LABEL_BOX
    )


def _finish(axis: Axes, title: str, y_label: str) -> None:
    """With a legend above the bars, where it hides nothing."""
    axis.set_title(title)
    axis.set_ylabel(y_label)
    axis.set_ylim(top=axis.get_ylim()[1] * 1.22)
    axis.legend(fontsize=8, ncols=2, loc="upper center", frameon=False)


def _workers(records: Sequence[Record]) -> list[Any]:
    return sorted({record["workers"] for record in records})


def _workers_of(record: Record) -> Any:
    return record["workers"]


def _by_link(records: Sequence[Record]) -> list[list[Record]]:
    links = sorted({record["link_mbit"] for record in records})
    return [[record for record in records if record["link_mbit"] == link_mbit] for link_mbit in links]


def _without_loss(lossy: Sequence[Record], rates: Sequence[Record]) -> list[Record]:
    """The same cases on links that lose nothing."""
    names = ("system", "workers", "link_mbit", "bits", "bytes")
    wanted = {tuple(record[name] for name in names) for record in lossy}
    return [record for record in rates if tuple(record[name] for name in names) in wanted]
