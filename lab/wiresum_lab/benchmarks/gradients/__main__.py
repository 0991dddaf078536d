"""Real gradients, by WIRESUM_PRECISION: `make bench NAMES=gradients ARGS=--help`. Needs root.

On a star of namespaces (`star.py`) all ranks train a small model again and again from the same start (`rank.py`), each
time with gradients that are summed in another way: in blocks, in blocks with exact sums where blocks lose too much,
exactly, and in fp32 over Gloo. Counted is how often blocks lose too much, and what summing these chunks again costs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from wiresum_lab.benchmarks.gradients.models import TASKS
from wiresum_lab.benchmarks.gradients.rank import PRECISIONS
from wiresum_lab.benchmarks.program import BLOCK, parser_of, run, table_of
from wiresum_lab.namespaces.links import Link
from wiresum_lab.namespaces.star import Star
from wiresum_lab.ranks.ranks import GLOO, start_on_star

GROUPS = (GLOO, *PRECISIONS)
LAST_STEPS = 10


@dataclass
class Case:
    """A model, trained with one way of summing."""

    model: str
    group: str
    losses: list[float]
    """The mean of all workers, by step."""
    chunks: int
    """In all steps."""
    counted: dict[str, int]
    """Of all workers; nothing for Gloo."""

    @property
    def last_loss(self) -> float:
        return statistics.fmean(self.losses[-LAST_STEPS:])

    def distance(self, other: Case) -> float:
        """The largest difference of two losses at one step."""
        return max(abs(mine - theirs) for mine, theirs in zip(self.losses, other.losses, strict=True))


def measure(options: argparse.Namespace, console: Console) -> list[Case]:
    cases = []
    with (
        Star(options.workers, Link(options.link_mbit)) as star,
        start_on_star("gradients", star, options.logs, "wiresum_lab.benchmarks.gradients.rank") as ranks,
    ):
        for model in options.models:
            for group in GROUPS:
                console.print(f"{model}, {group}")
                cases.append(case_of(model, group, options.steps, ranks.command("train", model, group, options.steps)))
    return cases


def case_of(model: str, group: str, steps: int, answers: Sequence[dict[str, Any]]) -> Case:
    losses = [statistics.fmean(step) for step in zip(*(answer["losses"] for answer in answers), strict=True)]
    names = answers[0].keys() - {"losses", "parameters"}
    return Case(
        model,
        group,
        losses,
        steps * -(-answers[0]["parameters"] // BLOCK),
        {name: sum(answer[name] for answer in answers) for name in names},
    )


def report(cases: Sequence[Case], options: argparse.Namespace) -> Table:
    table = table_of(
        f"{options.workers} workers, {options.steps} steps. Loss: mean of the last {LAST_STEPS} steps; from Gloo's: "
        "largest difference at any step. Chunks that blocks cannot carry, as a part of all; bytes that workers sent",
        ("", "loss", "from Gloo's", "such chunks", "bytes, times block's"),
    )
    for case in cases:
        same = {other.group: other for other in cases if other.model == case.model}
        # All workers count a chunk that is summed again; with `block` those count it whose elements they are.
        lost = (case.counted.get("chunks_exact", 0) or case.counted.get("chunks_wide", 0)) / options.workers
        sent = case.counted["bytes_sent"] / same["block"].counted["bytes_sent"] if case.counted else None
        table.add_row(
            f"{case.model}, {case.group}",
            f"{case.last_loss:.5f}",
            f"{case.distance(same[GLOO]):.2g}",
            f"{lost / case.chunks:.2%}" if case.group in ("block", "adaptive") else "-",
            "-" if sent is None else f"{sent:.3f}",
        )
    return table


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = parser_of(__doc__, records="build/bench/gradients.json", workers=4)
    parser.add_argument("--models", nargs="+", choices=TASKS, default=list(TASKS), help="to train")
    parser.add_argument("--steps", type=int, default=150, help="of each training (default: %(default)s)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    return run(parse_options(arguments), measure, record=vars, table=report)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
