"""Compares compressed training with fp32 on shaped links: `make bench NAMES=compress ARGS=--help`. Needs root.

Theory of operation. On a star of namespaces (`star.py`) every worker is one process that trains the same network in
several ways (`rank.py`): fp32 over Gloo; fp32, 16 and 8 bits through the switch, without compression; and methods of
wiresum.compress through the switch. All start from the same parameters and see the same images.

*Time and bytes* are measured on the shaped links, in training steps, forward and backward pass included: the ways take
turns, step by step, and the clock runs from the first rank's start to the last rank's end. The workers' interfaces on
the star count the bytes, headers and acknowledgements included.

*Accuracy* does not depend on the rate of a link. So before and after the timed steps the shaping is off, and every way
trains for as many steps. Accuracy over time is then accuracy over steps, each of which takes as long as on the shaped
links. Learning rate and momentum are the same for all ways. They were chosen by the accuracy on validation images,
which are neither trained on nor tested: `--rate`, `--momentum` and the records show how.

Few cores hide much: with eight workers and a switch on two cores, the computation of a step counts four times.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from wiresum_lab.benchmarks import program
from wiresum_lab.benchmarks.compress import memory
from wiresum_lab.benchmarks.compress.rank import DENSE_8, DENSE_16, G_TOP_K, INT_DIANA, RATIO, WAYS, WIRESUM
from wiresum_lab.benchmarks.program import Case, Record, seconds_of, take_turns
from wiresum_lab.namespaces.links import Link
from wiresum_lab.namespaces.star import Star
from wiresum_lab.ranks.ranks import GLOO, Ranks, start_on_star

TITLES = {
    GLOO: "fp32, Gloo",
    WIRESUM: "fp32, wiresum",
    DENSE_16: "16-bit sums",
    DENSE_8: "8-bit sums",
    INT_DIANA: "IntDIANA, 8 bits",
    "int-diana-estimate": "IntDIANA, 8 bits, estimate",
    "qsgd": "QSGD, 15 levels",
    "powersgd": "PowerSGD, rank 2",
    "topk": f"Top-k, {RATIO:.0%}",
    "natural": "natural",
    "randk": "RandK, 10%, DIANA",
    G_TOP_K: f"gTop-k, {RATIO:.0%}, 16-bit values",
}
TEST_IMAGES, VALIDATION_IMAGES = 500, 300
WARM_UP_STEPS = 5
"""Untimed steps before the timed ones: IntDIANA's first step has 32 bits, DDP rebuilds its buckets after the first
step, and residuals have to fill."""


def write_digits(path: Path) -> None:
    """Writes scikit-learn's digits to a file, so that ranks need not import scikit-learn."""
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


def measure(options: argparse.Namespace) -> list[Case]:
    data = options.json.parent / "digits.npz"
    write_digits(data)
    alike = {name: getattr(options, name) for name in ("workers", "link_mbit", "hidden", "rate", "momentum")}
    measured = [Case({"way": way} | alike) for way in options.ways]
    with (
        Star(options.workers, Link()) as star,
        start_on_star("compress", star, options.logs, "wiresum_lab.benchmarks.compress.rank") as ranks,
    ):
        names = ",".join(options.ways)
        ranks.command("prepare", data.resolve(), names, options.hidden, options.steps, options.rate, options.momentum)
        for case in measured:
            ranks.command("train", case["way"], WARM_UP_STEPS)
        star.reshape(Link(options.link_mbit))
        take_turns(measured, options.timed, 0, lambda _: None, lambda case: timed(ranks, case["way"]))
        star.reshape(Link())
        for case in measured:
            case.further |= trained(case["way"], ranks, WARM_UP_STEPS + options.timed, options)
    return measured


def timed(ranks: Ranks, way: str) -> Record:
    """Runs and times one step. The figures but `seconds` are means over workers."""
    answers = ranks.command("train", way, 1)
    names = ("cpu_seconds", "bytes_sent", "bytes_received")
    return {"seconds": seconds_of(answers)} | {
        name: statistics.mean(answer[name] for answer in answers) for name in names
    }


def trained(way: str, ranks: Ranks, step: int, options: argparse.Namespace) -> Record:
    """Trains to the end, and records the accuracy every `--every` steps, in percent of test and validation images."""
    found: dict[str, list[float]] = {"steps": [], "accuracy": [], "validation": []}
    while True:
        accuracy = ranks.command("accuracy", way)[0]
        for name, value in (("steps", step), ("accuracy", accuracy["test"]), ("validation", accuracy["validation"])):
            found[name].append(value)
        if step >= options.steps:
            return found
        some = min(options.every, options.steps - step)
        ranks.command("train", way, some)
        step += some


def figures(case: Case, measured: Sequence[Case]) -> Record:
    return {
        "title": TITLES[case["way"]],
        "seconds": case.seconds,
        "over_gloo": case.times(measured, way=GLOO),
        "cpu_seconds": statistics.mean(case.all("cpu_seconds")),
        "sent_megabytes": statistics.mean(case.all("bytes_sent")) / 1e6,
        "received_megabytes": statistics.mean(case.all("bytes_received")) / 1e6,
        "test_percent": case.further["accuracy"][-1],
        "validation_percent": case.further["validation"][-1],
    }


def draw(records: Sequence[Record], options: argparse.Namespace) -> None:
    from wiresum_lab.benchmarks.compress import chart  # which imports matplotlib

    title = f"{options.workers} workers on links of {options.link_mbit:g} Mbit/s"
    chart.draw(records, options.json.with_suffix(".png"), title=title)


def main(arguments: Sequence[str]) -> int:
    parser = program.Options("compress", __doc__)
    parser.add("--hidden", 1024, "units of a hidden layer")
    parser.add("--timed", 9, "steps on shaped links")
    parser.add("--steps", 200, "steps of each training")
    parser.add("--rate", 0.2, "learning rate of all ways")
    parser.add("--momentum", 0.8, "momentum of all ways")
    parser.add("--every", 20, "steps between accuracies")
    parser.add("--ways", list(WAYS), "ways to train", choices=WAYS)
    parser.add_argument("--memory", action="store_true", help="instead measure each method's memory, without root")
    options = parser.parse_args(arguments)
    if options.memory:
        program.keep(options.json.with_name("compress-memory.json"), memory.records(options.workers))
        return 0
    options.ways = [way for way in WAYS if way == GLOO or way in options.ways]  # every way is compared with Gloo
    return program.run(options, measure, figures, draw)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
