"""Compares gradients that are the same for any number of workers with fp32 ones: `make bench NAMES=reproducible`.

On a star of namespaces (`star.py`) all ranks average a gradient in each way in turn (`rank.py`). Without a network,
small models show the error of the means, and a loop shows the time to add a micro-batch (`on_one_host.py`). Needs root.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict

from wiresum_lab.benchmarks import program
from wiresum_lab.benchmarks.models import TASKS
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
    """The columns of a case. `bytes_sent` is of a worker, for each element. `error_max` is the relative error of the
    worst step's gradient, `lost` the fraction of elements that became 0. `times_add_` is the time to add a micro-batch,
    divided by that of PyTorch's add_."""
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
    parser.add("--bytes", 8_000_000, "bytes of the tensor")
    parser.add("--repetitions", 5, "repetitions of each case")
    parser.add("--steps", 100, "steps of each training")
    return program.run(parser.parse_args(arguments), measure, figures)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
