"""Sparse all-reduce, dense all-reduce and Gloo on shaped links: `make bench NAMES=sparse ARGS=--help`. Needs root.

Theory of operation. On a star of namespaces (`star.py`) every worker is one process with three groups
(`rank.py`), so that all three ways sum the very same tensors, in turns. A repetition draws new blocks; all ranks
begin at the same moment, and the clock runs from the first rank's start to the last rank's end. Every sum is checked,
element by element. The first repetitions of each case are not counted: in them the workers find out whether it pays
to ask which blocks there are (docs/sparse.md).

The bound: blocks of the union cross each worker's link downwards once, so the time is at least the dense time
multiplied by the union's fraction of all blocks.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from wiresum_lab.benchmarks.program import BLOCK, add_tensor, parser_of, run, sum_once, table_of
from wiresum_lab.namespaces.links import Link
from wiresum_lab.namespaces.star import Star
from wiresum_lab.ranks.ranks import GLOO, Ranks, start_on_star

GROUPS = ("sparse", "dense", GLOO)
WARM_UPS = 4
BYTES = ("bytes_sent", "bytes_needed")


@dataclass
class Case:
    """One kind of tensor. `records` are by group, one for each repetition."""

    placement: str
    sparsity: float
    loss: float
    block: int = BLOCK
    """Elements of a block: what a packet carries, or 1 where elements are scattered."""
    records: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {group: [] for group in GROUPS})

    def seconds(self, group: str) -> float:
        return float(statistics.median(record["seconds"] for record in self.records[group]))

    def union_fraction(self) -> float:
        """The fraction of blocks that some worker had."""
        return float(statistics.mean(record["union_fraction"] for record in self.records["sparse"]))

    def bound_fraction(self) -> float:
        """The bound, as a fraction of the time that the sum took."""
        return self.union_fraction() * self.seconds("dense") / self.seconds("sparse")

    def bytes_ratio(self) -> float:
        """Bytes that a worker sent, divided by those of its blocks, headers and prologue."""
        ratios = [
            sent / needed
            for record in self.records["sparse"]
            for sent, needed in zip(record["bytes_sent"], record["bytes_needed"], strict=True)
        ]
        return float(statistics.median(ratios))


def cases_of(options: argparse.Namespace) -> list[Case]:
    cases = []
    for loss in options.losses:
        for block, sparsities in ((BLOCK, options.sparsities), (1, options.scattered)):
            for placement in ("aligned", "independent"):
                for sparsity in sparsities:
                    if sparsity == 0 and placement == "independent":
                        continue  # the same as aligned
                    cases.append(Case(placement, sparsity, loss, block))
    return cases


def measure(options: argparse.Namespace, console: Console) -> list[Case]:
    cases = cases_of(options)
    with (
        Star(options.workers, Link(options.link_mbit)) as star,
        start_on_star("sparse", star, options.logs, "wiresum_lab.benchmarks.sparse.rank") as ranks,
    ):
        for case in cases:
            star.reshape(Link(options.link_mbit, loss=case.loss))
            repeat(ranks, case, options.bytes // 4, options.repetitions)
            console.print(line_of(case))
    return cases


def repeat(ranks: Ranks, case: Case, elements: int, repetitions: int) -> None:
    for repetition in range(WARM_UPS + repetitions):
        ranks.command("prepare", elements, case.block, case.placement, case.sparsity, repetition)
        for group in GROUPS:
            is_warm_up = repetition < WARM_UPS
            # Dense sums find out nothing, so one warm-up is enough.
            if group != "sparse" and (repetition < WARM_UPS - 1 or (group == GLOO and case.loss)):
                continue
            record = go(ranks, group)
            if not is_warm_up:
                case.records[group].append(record)


def go(ranks: Ranks, group: str) -> dict[str, Any]:
    seconds, reports = sum_once(ranks, group)
    by_rank = {name: [report[name] for report in reports] for name in BYTES}
    return {"seconds": seconds, "union_fraction": reports[0]["union_fraction"]} | by_rank


def name_of(case: Case) -> str:
    return case.placement if case.block == BLOCK else f"scattered, {case.placement}"


def line_of(case: Case) -> str:
    return f"{name_of(case)}, {case.sparsity:.1%} sparse, {case.loss:.0%} loss: {case.seconds('sparse') * 1e3:.1f} ms"


def report(cases: Sequence[Case], options: argparse.Namespace) -> Table:
    columns = ["blocks", "sparsity", "loss", "union", "sparse", "dense", "Gloo"]
    columns += ["faster than dense", "of the bound", "bytes / needed"]
    title = f"{options.workers} workers, {options.link_mbit:g} Mbit/s, {options.bytes / 1e6:g} MB fp32; medians"
    table = table_of(title, columns)
    for case in cases:
        sparse_s, dense_s = case.seconds("sparse"), case.seconds("dense")
        gloo = f"{case.seconds(GLOO) * 1e3:.1f} ms" if case.records[GLOO] else "-"
        table.add_row(
            name_of(case),
            f"{case.sparsity:.1%}",
            f"{case.loss:.0%}",
            f"{case.union_fraction():.1%}",
            f"{sparse_s * 1e3:.1f} ms",
            f"{dense_s * 1e3:.1f} ms",
            gloo,
            f"{dense_s / sparse_s:.2f}",
            f"{case.bound_fraction():.2f}",
            f"{case.bytes_ratio():.3f}",
        )
    return table


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = parser_of(__doc__, records="build/bench/sparse.json", workers=8)
    add_tensor(parser)
    parser.add_argument(
        "--sparsities", type=float, nargs="+", default=[0.99, 0.9, 0.0], help="fractions of zero blocks"
    )
    parser.add_argument("--scattered", type=float, nargs="*", default=[0.99, 0.999], help="fractions of zero elements")
    parser.add_argument("--losses", type=float, nargs="+", default=[0.0, 0.01], help="in each direction of every link")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    return run(parse_options(arguments), measure, record=vars, table=report)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
