"""What a sum of floats errs and what it costs, by WIRESUM_PRECISION: `make bench-precision ARGS=--help`. Needs root.

On a star of namespaces (`star.py`) every worker is one process with a group for each way of rounding and one of Gloo
(`precision_rank.py`), so that all of them sum the very same tensors, in turns. All ranks begin at the same moment, and
the clock runs from the first rank's start to the last rank's end.
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

from wiresum_lab.benchmarks.precision_rank import GLOO, KINDS, PRECISIONS
from wiresum_lab.namespaces.links import Link
from wiresum_lab.namespaces.star import Star
from wiresum_lab.ranks.star_ranks import SummingRanks, parser_of, run

GROUPS = (*PRECISIONS, GLOO)
WARM_UPS = 1


@dataclass
class Case:
    """One way of rounding, and one kind and length of tensor."""

    group: str
    kind: str
    elements: int
    repetitions: list[dict[str, Any]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return float(statistics.median(repetition["seconds"] for repetition in self.repetitions))

    @property
    def error_max(self) -> float:
        return max(float(repetition["error_max"]) for repetition in self.repetitions)

    @property
    def lost(self) -> float:
        return max(float(repetition["lost"]) for repetition in self.repetitions)

    def record(self) -> dict[str, Any]:
        return vars(self) | {"seconds": self.seconds, "error_max": self.error_max, "lost": self.lost}


class PrecisionRanks(SummingRanks):
    script = "precision_rank.py"

    def prepare(self, case: Case, draw: int) -> None:
        self._tell(f"prepare {case.kind} {case.elements} {draw}")
        self._expect("ready")

    def go(self, group: str) -> dict[str, Any]:
        seconds, reports = self.sum(group)
        return {"seconds": seconds} | {name: max(r[name] for r in reports) for name in ("error_max", "lost")}


def measure(options: argparse.Namespace, console: Console) -> list[Case]:
    cases = []
    with Star(options.workers, Link(options.link_mbit)) as star, PrecisionRanks(star, options.logs) as ranks:
        for elements in options.elements:
            for kind in options.kinds:
                console.print(f"{kind}, {elements} elements")
                measured = [Case(group, kind, elements) for group in GROUPS]
                for draw in range(-WARM_UPS, options.repetitions):
                    ranks.prepare(measured[0], draw + WARM_UPS)
                    for case in measured:
                        repetition = ranks.go(case.group)
                        if draw >= 0:
                            case.repetitions.append(repetition)
                cases += measured
    return cases


def table_of(cases: Sequence[Case], options: argparse.Namespace) -> Table:
    table = Table(
        title=f"{options.workers} workers, links of {options.link_mbit:g} Mbit/s, fp32. Error of the worst element in "
        "units of 2^-24 of the sum of magnitudes; lost: elements of which less than one bit is left; median times"
    )
    for column in ("", "elements", "error", "lost", "time", "times block's", "times Gloo's"):
        table.add_column(column, justify="right" if column else "left")
    for case in cases:
        same = {other.group: other for other in cases if (other.kind, other.elements) == (case.kind, case.elements)}
        table.add_row(
            f"{case.kind}, {case.group}",
            f"{case.elements:,}",
            f"{case.error_max:.3g}",
            f"{case.lost:.1%}" if case.lost else "-",
            f"{case.seconds * 1e3:.2f} ms",
            f"{case.seconds / same['block'].seconds:.2f}",
            f"{case.seconds / same[GLOO].seconds:.2f}",
        )
    return table


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = parser_of(__doc__, records="build/bench/precision.json", workers=4)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="of tensors")
    parser.add_argument("--elements", type=int, nargs="+", default=[4, 1000, 4096, 500_000], help="of a tensor")
    parser.add_argument("--repetitions", type=int, default=5, help="of each case (default: %(default)s)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    return run(parse_options(arguments), measure, record=Case.record, table=table_of)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
