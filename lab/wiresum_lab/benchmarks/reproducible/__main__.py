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
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from wiresum_lab.benchmarks.gradients.models import TASKS
from wiresum_lab.benchmarks.program import (
    START_DELAY_NS,
    TurnCase,
    add_tensor,
    parser_of,
    run,
    seconds_of,
    table_of,
    take_turns,
)
from wiresum_lab.benchmarks.reproducible.on_one_host import Errors, accumulate, errors_of
from wiresum_lab.benchmarks.reproducible.rank import WAYS
from wiresum_lab.namespaces.links import Link
from wiresum_lab.namespaces.star import Star
from wiresum_lab.ranks.ranks import Ranks, start_on_star

NAMES = {"fp32": "fp32", "1": "1 word", "2": "2 words", "0": "all words"}
WARM_UPS = 1


@dataclass
class Case(TurnCase):
    """One way; `accumulate` is in seconds for a micro-batch, by sums of digits and by add_."""

    elements: int
    accumulate: dict[str, float]
    errors: list[Errors]

    def record(self) -> dict[str, Any]:
        return asdict(self) | {"seconds": self.seconds}


def measure(options: argparse.Namespace, console: Console) -> list[Case]:
    elements = options.bytes // 4
    errors = [each for model in TASKS for each in errors_of(model, options.steps)]
    cases = []
    for way in WAYS:
        times = {} if way == "fp32" else accumulate(int(way), elements)
        cases.append(Case(way, elements, times, [each for each in errors if each.way == NAMES[way]]))
    console.print("measured on one host")
    with (
        Star(options.workers, Link(options.link_mbit)) as star,
        start_on_star("reproducible", star, options.logs, "wiresum_lab.benchmarks.reproducible.rank") as ranks,
    ):
        take_turns(
            cases,
            options.repetitions,
            WARM_UPS,
            lambda draw: ranks.command("prepare", elements, draw),
            lambda case: go(ranks, case.group),
        )
    return cases


def go(ranks: Ranks, way: str) -> dict[str, Any]:
    answers = ranks.command("go", way, time.monotonic_ns() + START_DELAY_NS)
    names = ("cpu_ns", "bytes_sent")
    return {"seconds": seconds_of(answers)} | {name: max(answer[name] for answer in answers) for name in names}


def report(cases: Sequence[Case], options: argparse.Namespace) -> Table:
    table = table_of(
        f"{options.workers} workers, links of {options.link_mbit:g} Mbit/s, {options.bytes:,} bytes of gradients; "
        "medians. Bytes: sent by a worker through the network, for each element. Error: of the worst step's gradient, "
        "as a part of it; lost: elements that became 0",
        ("", "goodput", "of fp32's", "bytes", "CPU", "add, times add_", *(f"{m}: error, lost, words" for m in TASKS)),
    )
    plain = cases[0].seconds
    for case in cases:
        times = case.accumulate
        table.add_row(
            NAMES[case.group],
            f"{32 * case.elements / case.seconds / 1e6:.1f} Mbit/s",
            f"{plain / case.seconds:.2f}",
            f"{case.median('bytes_sent') / case.elements:.2f}",
            f"{case.median('cpu_ns') / 1e6:.0f} ms",
            f"{times['digits'] / times['add_']:.2f}" if times else "-",
            *(f"{each.error_max:.1e}, {each.lost:.2%}, {each.words:.2f}" for each in case.errors),
        )
    return table


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = parser_of(__doc__, records="build/bench/reproducible.json", workers=8)
    add_tensor(parser)
    parser.add_argument("--steps", type=int, default=100, help="of each training (default: %(default)s)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    return run(parse_options(arguments), measure, record=Case.record, table=report)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
