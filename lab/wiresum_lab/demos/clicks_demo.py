"""Trains a recommendation model with sparse embeddings over wiresum and over Gloo on shaped links. Needs root.

On a star of namespaces (`star.py`) every worker is one process (`clicks_rank.py`) that trains the same model from the
same seed on the same generated clicks twice: with gradients summed by the software switch, and by Gloo. DDP hands the
embeddings' gradients over as `torch.sparse` tensors (docs/sparse.md). The demo compares the final parameters, and shows
the bytes on a worker's link and the time. Gloo's sparse all-reduce sends every worker's rows to all others.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from rich.console import Console

from wiresum_lab.benchmarks.program import prerequisites_met
from wiresum_lab.namespaces.links import Link
from wiresum_lab.namespaces.star import Star, termination_as_exit
from wiresum_lab.ranks.ranks import start_on_star

if TYPE_CHECKING:
    import torch

SYSTEMS = ("wiresum", "gloo")
TOLERANCE = 1e-5
"""Largest allowed difference of a parameter, relative to the largest of its tensor. Either system rounds each sum to
within 2^-24 of its largest term; the difference is the sum of these roundings in all steps."""
SMOOTHING_STEPS = 10


class Run:
    """The records of one training, by system."""

    def __init__(self, name: str, records: Sequence[dict[str, Any]], folder: Path) -> None:
        import torch

        self.name = name
        begin = max(record["times_ns"][0] for record in records)  # when the last rank was ready
        by_step = zip(*(record["times_ns"] for record in records), strict=True)
        self.times_s = [(max(times) - begin) / 1e9 for times in by_step]
        self.losses = [statistics.mean(losses) for losses in zip(*(r["losses"] for r in records), strict=True)]
        steps = len(self.losses)
        self.kilobytes_sent = statistics.mean(r["bytes_sent"] for r in records) / steps / 1e3
        self.kilobytes_received = statistics.mean(r["bytes_received"] for r in records) / steps / 1e3
        self.parameters: list[list[torch.Tensor]] = [
            torch.load(folder / f"{name}-{rank}.pt") for rank in range(len(records))
        ]

    def identical(self) -> bool:
        """Whether all ranks have the same parameters, bit for bit."""
        import torch

        first = self.parameters[0]
        return all(torch.equal(a, b) for other in self.parameters[1:] for a, b in zip(first, other, strict=True))

    def summary(self) -> dict[str, Any]:
        return {
            "seconds": self.times_s[-1],
            "loss": statistics.mean(self.losses[-SMOOTHING_STEPS:]),
            "kilobytes_sent_a_step": self.kilobytes_sent,
            "kilobytes_received_a_step": self.kilobytes_received,
            "parameters_identical": self.identical(),
        }


def difference(first: Run, second: Run) -> float:
    """The largest difference of corresponding parameters, relative to the largest of their tensor."""
    pairs = zip(first.parameters[0], second.parameters[0], strict=True)
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)


def draw(runs: Sequence[Run], path: Path, title: str) -> None:
    from matplotlib.figure import Figure

    from wiresum_lab.demos.digits.picture import COLOURS, STYLES

    figure = Figure(figsize=(12, 3.6), dpi=120, layout="constrained")
    loss, progress, traffic = figure.subplots(1, 3)
    for run in runs:
        look = {"color": COLOURS[run.name], "linestyle": STYLES[run.name], "label": run.name}
        windows = [run.losses[max(0, at - SMOOTHING_STEPS) : at + 1] for at in range(len(run.losses))]
        loss.plot([statistics.mean(window) for window in windows], **look)
        progress.plot(range(len(run.times_s)), run.times_s, **look)
    loss.set(title=f"Training loss, mean of {SMOOTHING_STEPS} steps", xlabel="step", ylabel="cross-entropy")
    progress.set(title="Time", xlabel="step", ylabel="s")
    names = [run.name for run in runs]
    for offset, values, label in (
        (-0.2, [run.kilobytes_sent for run in runs], "sent"),
        (0.2, [run.kilobytes_received for run in runs], "received"),
    ):
        bars = traffic.bar([at + offset for at in range(len(runs))], values, width=0.38, label=label)
        traffic.bar_label(bars, fmt="%.0f", fontsize=8)
    traffic.set_xticks(range(len(runs)), names)
    traffic.set(title="On a worker's link, a step", ylabel="kB")
    traffic.margins(y=0.3)  # for the legend
    for axes in (loss, progress, traffic):
        axes.grid(visible=True, alpha=0.25)
        axes.legend(frameon=False)
    figure.suptitle(title)
    figure.savefig(path)


def measure(options: argparse.Namespace) -> list[Run]:
    with (
        TemporaryDirectory() as folder,
        Star(options.workers, Link(options.link_mbit)) as star,
        start_on_star("clicks", star, options.output, "wiresum_lab.demos.clicks_rank") as ranks,
    ):
        return [Run(name, ranks.command("train", name, options.steps, folder), Path(folder)) for name in SYSTEMS]


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--workers", type=int, default=4, help="workers (default: %(default)s)")
    parser.add_argument("--link-mbit", type=float, default=100.0, help="rate of every link (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=200, help="steps of the training (default: %(default)s)")
    parser.add_argument(
        "--output", type=Path, default=Path("build/clicks"), help="folder for clicks.png and clicks.json"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = parse_options(arguments)
    console = Console(highlight=False, soft_wrap=True)
    if not prerequisites_met():
        return 2
    options.output.mkdir(parents=True, exist_ok=True)
    with termination_as_exit():
        runs = measure(options)
    apart = difference(*runs)
    summaries = {run.name: run.summary() for run in runs}
    (options.output / "clicks.json").write_text(json.dumps(summaries | {"difference": apart}, indent=1) + "\n")
    title = f"Click model, 3.2 million parameters, {options.workers} workers, {options.link_mbit:g} Mbit/s"
    draw(runs, options.output / "clicks.png", title)
    for run in runs:
        console.print(
            f"{run.name:8} {run.times_s[-1]:6.1f} s, {run.kilobytes_sent:6.0f} kB sent and "
            f"{run.kilobytes_received:6.0f} kB received a step, loss {summaries[run.name]['loss']:.4f}"
        )
    same = apart <= TOLERANCE and all(run.identical() for run in runs)
    console.print(f"Parameters differ by {apart:.1e} of the largest: {'as rounding does' if same else 'TOO MUCH'}.")
    console.print(str(options.output / "clicks.png"))
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
