"""Compressed training beside fp32 on shaped links: `make bench NAMES=compress ARGS=--help`. Needs root.

Theory of operation. On a star of namespaces (`star.py`) every worker is one process that trains the same network in
several ways (`rank.py`): fp32 over Gloo; fp32, 16 and 8 bits through the switch, without compression; and methods of
wiresum.compress through the switch. All start from the same parameters and see the same images.

*Time and bytes* are measured on the shaped links, in training steps, forward and backward pass included: the ways take
turns, step by step, and the clock runs from the first rank's start to the last rank's end. Bytes are those that the
workers' interfaces on the star counted, headers, acknowledgements and all.

*Accuracy* does not depend on how fast a link is. So before and after the timed steps the shaping is off, and every way
trains for as many steps. Accuracy over time is then accuracy over steps, each of which takes what it took on the
shaped links. Rate and momentum are the same for all ways. They were chosen by the accuracy on validation images, which
are neither trained on nor tested: `--rate`, `--momentum` and the records show how.

Few cores hide much: with eight workers and a switch on two, what a step computes counts four times.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from wiresum_lab.benchmarks.compress.rank import DENSE_8, DENSE_16, G_TOP_K, INT_DIANA, RATIO, WAYS, WIRESUM
from wiresum_lab.benchmarks.program import parser_of, run, seconds_of, table_of
from wiresum_lab.namespaces.links import Link
from wiresum_lab.namespaces.star import Star
from wiresum_lab.ranks.ranks import GLOO, Ranks, start_on_star

TITLES = {
    GLOO: "fp32, Gloo",
    WIRESUM: "fp32, wiresum",
    DENSE_16: "16-bit sums",
    DENSE_8: "8-bit sums",
    INT_DIANA: "IntDIANA, 8 bits",
    "qsgd": "QSGD, 15 levels",
    "powersgd": "PowerSGD, rank 2",
    "topk": f"Top-k, {RATIO:.0%}",
    "natural": "natural",
    "thc": "THC",
    "randk": "RandK, 10%, DIANA",
    G_TOP_K: f"gTop-k, {RATIO:.0%}, 16-bit values",
}
TEST_IMAGES, VALIDATION_IMAGES = 500, 300
WARM_UP_STEPS = 5
"""IntDIANA's first step has 32 bits, DDP rebuilds its buckets after it, and residuals have to fill."""
MEGABYTE = 1e6


@dataclass
class Way:
    """What one way of training took, and its accuracy."""

    name: str
    seconds: list[float] = field(default_factory=list)
    """Time of each timed step."""
    cpu_seconds: list[float] = field(default_factory=list)
    """In each timed step, of a worker's process: the mean over workers."""
    bytes_sent: list[float] = field(default_factory=list)
    """Likewise."""
    bytes_received: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    """In percent of the test images, after so many steps."""
    validation: list[float] = field(default_factory=list)
    """Likewise, of the validation images."""

    @property
    def step_seconds(self) -> float:
        return statistics.median(self.seconds)

    @property
    def step_megabytes(self) -> tuple[float, float]:
        """Sent and received by a worker."""
        return statistics.mean(self.bytes_sent) / MEGABYTE, statistics.mean(self.bytes_received) / MEGABYTE


def write_digits(path: Path) -> None:
    """The digits of scikit-learn, so that each rank need not import that."""
    from sklearn.datasets import load_digits  # more than a second, and only here

    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(pixels))
    images, labels = (pixels[order] / 16).astype(np.float32), labels[order].astype(np.int64)
    ends = [TEST_IMAGES, TEST_IMAGES + VALIDATION_IMAGES]
    test, validation, training = np.split(images, ends)
    test_labels, validation_labels, training_labels = np.split(labels, ends)
    np.savez(
        path,
        images=training,
        labels=training_labels,
        validation_images=validation,
        validation_labels=validation_labels,
        test_images=test,
        test_labels=test_labels,
    )


def measure(options: argparse.Namespace, console: Console) -> list[Way]:
    data = options.json.parent / "digits.npz"
    write_digits(data)
    ways = [Way(name) for name in options.ways]
    with (
        Star(options.workers, Link()) as star,
        start_on_star("compress", star, options.logs, "wiresum_lab.benchmarks.compress.rank") as ranks,
    ):
        names = ",".join(options.ways)
        ranks.command("prepare", data.resolve(), names, options.hidden, options.steps, options.rate, options.momentum)
        for way in ways:
            ranks.command("train", way.name, WARM_UP_STEPS)
        star.reshape(Link(options.link_mbit))
        for _ in range(options.timed):
            for way in ways:
                record(way, ranks.command("train", way.name, 1))
        star.reshape(Link())
        for way in ways:
            console.print(f"{TITLES[way.name]}: {way.step_seconds * 1e3:.0f} ms a step")
            finish(way, ranks, WARM_UP_STEPS + options.timed, options)
    return ways


def record(way: Way, answers: Sequence[dict[str, Any]]) -> None:
    way.seconds.append(seconds_of(answers))
    for name in ("cpu_seconds", "bytes_sent", "bytes_received"):
        getattr(way, name).append(statistics.mean(answer[name] for answer in answers))


def finish(way: Way, ranks: Ranks, step: int, options: argparse.Namespace) -> None:
    """Trains to the end, and looks at the accuracy now and then."""
    while True:
        way.steps.append(step)
        accuracy = ranks.command("accuracy", way.name)[0]
        way.accuracy.append(accuracy["test"])
        way.validation.append(accuracy["validation"])
        if step >= options.steps:
            return
        some = min(options.every, options.steps - step)
        ranks.command("train", way.name, some)
        step += some


def parameters(hidden: int) -> int:
    return 64 * hidden + 2 * hidden * hidden + 10 * hidden + 3 * hidden + 10


def report(ways: Sequence[Way], options: argparse.Namespace) -> Table:
    title = (
        f"{options.workers} workers, {options.link_mbit:g} Mbit/s, {parameters(options.hidden) / 1e6:.1f} million "
        f"parameters; median of {options.timed} steps"
    )
    columns = ["", "step", "faster than Gloo", "CPU of a worker", "sent, MB", "received, MB"]
    table = table_of(title, [*columns, f"test, {options.steps} steps", "validation"])
    gloo_s = ways[0].step_seconds
    for way in ways:
        sent, received = way.step_megabytes
        table.add_row(
            TITLES[way.name],
            f"{way.step_seconds * 1e3:.0f} ms",
            f"{gloo_s / way.step_seconds:.1f}",
            f"{statistics.mean(way.cpu_seconds) * 1e3:.0f} ms",
            f"{sent:.2f}",
            f"{received:.2f}",
            f"{way.accuracy[-1]:.1f}%",
            f"{way.validation[-1]:.1f}%",
        )
    return table


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = parser_of(__doc__, records="build/bench/compress.json", workers=8)
    parser.add_argument("--hidden", type=int, default=1024, help="units of a hidden layer (default: %(default)s)")
    parser.add_argument("--timed", type=int, default=9, help="steps on shaped links (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=200, help="steps of each training (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=0.2, help="learning rate of all ways (default: %(default)s)")
    parser.add_argument("--momentum", type=float, default=0.8, help="likewise (default: %(default)s)")
    parser.add_argument("--every", type=int, default=20, help="steps between accuracies (default: %(default)s)")
    parser.add_argument(
        "--ways", nargs="+", choices=WAYS, default=WAYS, metavar="WAY", help=f"some of: {', '.join(WAYS)}"
    )
    parsed = parser.parse_args(arguments)
    parsed.ways = [way for way in WAYS if way == GLOO or way in parsed.ways]  # all are compared with Gloo
    return parsed


def draw(ways: Sequence[Way], options: argparse.Namespace) -> None:
    derived = [
        {"title": TITLES[way.name], "step_seconds": way.step_seconds, "received_megabytes": way.step_megabytes[1]}
        for way in ways
    ]
    from wiresum_lab.benchmarks.compress import chart  # which imports matplotlib

    chart.draw(
        [vars(way) | more for way, more in zip(ways, derived, strict=True)],
        options.json.with_suffix(".png"),
        title=f"{options.workers} workers on links of {options.link_mbit:g} Mbit/s",
    )


def main(arguments: Sequence[str]) -> int:
    return run(parse_options(arguments), measure, record=vars, table=report, draw=draw)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
