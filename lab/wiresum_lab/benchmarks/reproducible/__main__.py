"""Gradients that are the same for any number of workers, beside plain fp32 ones: `make bench NAMES=reproducible`.

On a star of namespaces (`star.py`) all ranks average a gradient by each way in turn (`rank.py`); without a network,
small models show how far the means are from the exact ones, and a loop how long a micro-batch takes to be added
(`on_one_host.py`). Needs root.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict

from wiresum_lab.benchmarks import program
from wiresum_lab.benchmarks.gradients.models import TASKS
from wiresum_lab.benchmarks.program import START_DELAY_NS, Case, Record, say, seconds_of, take_turns
from wiresum_lab.benchmarks.reproducible.on_one_host import accumulate, errors_of
from wiresum_lab.benchmarks.reproducible.rank import WAYS
from wiresum_lab.namespaces.links import Link
from wiresum_lab.namespaces.star import Star
from wiresum_lab.ranks.ranks import Ranks, start_on_star

NAMES = {"fp32": "fp32", "1": "1 word", "2": "2 words", "0": "all words"}
WARM_UPS = 1


def measure(options: argparse.Namespace) -> list[Case]:
    elements = options.bytes // 4
    errors = [each for model in TASKS for each in errors_of(model, options.steps)]
    alike = {name: getattr(options, name) for name in ("workers", "link_mbit", "bytes")}
    measured = []
    for way in WAYS:
        times = {} if way == "fp32" else accumulate(int(way), elements)
        of_way = [asdict(each) for each in errors if each.way == NAMES[way]]
        measured.append(Case({"group": way} | alike, further={"accumulate": times, "errors": of_way}))
    say("measured on one host")
    with (
        Star(options.workers, Link(options.link_mbit)) as star,
        start_on_star("reproducible", star, options.logs, "wiresum_lab.benchmarks.reproducible.rank") as ranks,
    ):
        take_turns(
            measured,
            options.repetitions,
            WARM_UPS,
            lambda draw: ranks.command("prepare", elements, draw),
            lambda case: go(ranks, case["group"]),
        )
    return measured


def go(ranks: Ranks, way: str) -> Record:
    answers = ranks.command("go", way, time.monotonic_ns() + START_DELAY_NS)
    names = ("cpu_ns", "bytes_sent")
    return {"seconds": seconds_of(answers)} | {name: max(answer[name] for answer in answers) for name in names}


def figures(case: Case, measured: Sequence[Case]) -> Record:
    """Bytes: sent by a worker through the network, for each element. Errors: of the worst step's gradient, as a part of
    it; lost: elements that became 0. `times_add_`: a micro-batch's time, in those of PyTorch's add_."""
    times = case.further["accumulate"]
    return {
        "goodput_mbit": case.goodput_mbit(),
        "over_fp32": case.times(measured, group="fp32"),
        "bytes_sent": 4 * case.median("bytes_sent") / case["bytes"],
        "cpu_ms": case.median("cpu_ns") / 1e6,
        "times_add_": times["digits"] / times["add_"] if times else None,
        **{f"{each['model']} {name}": each[name] for each in case.further["errors"] for name in ("error_max", "lost")},
        **{f"{each['model']} words": each["words"] for each in case.further["errors"]},
    }


def main(arguments: Sequence[str]) -> int:
    parser = program.Options("reproducible", __doc__)
    parser.add("--bytes", 8_000_000, "of the tensor")
    parser.add("--repetitions", 5, "of each case")
    parser.add("--steps", 100, "of each training")
    return program.run(parser.parse_args(arguments), measure, figures)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
