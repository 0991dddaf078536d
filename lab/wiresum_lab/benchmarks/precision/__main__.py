"""Error and cost of a sum of floats, by WIRESUM_PRECISION: `make bench NAMES=precision ARGS=--help`. Needs root.

On a star of namespaces (`star.py`) every worker is one process with a group for each way of rounding and one of Gloo
(`rank.py`), so that all of them sum the very same tensors, in turns. All ranks begin at the same moment, and
the clock runs from the first rank's start to the last rank's end. With --mpi, MPI programs sum them, too: over plain
Open MPI, and over its component for each way of rounding (docs/mpi.md).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from wiresum_lab.benchmarks.against_gloo_and_mpi.systems import component_missing, start_mpi, start_mpi_over_wiresum
from wiresum_lab.benchmarks.precision.rank import KINDS, PRECISIONS, Draw
from wiresum_lab.benchmarks.program import TurnCase, parser_of, run, seconds_of, sum_once, table_of, take_turns
from wiresum_lab.namespaces.links import Link
from wiresum_lab.namespaces.star import Star
from wiresum_lab.ranks.ranks import GLOO, Ranks, Site, start_on_star

GROUPS = (*PRECISIONS, GLOO)
MPI: dict[str, Callable[[Ranks], object]] = {
    **{f"mpi-{each}": partial(start_mpi_over_wiresum, precision=each) for each in PRECISIONS},
    "openmpi": start_mpi,
}
WARM_UPS = 1


@dataclass
class Case(TurnCase):
    """One way of rounding, and one kind and length of tensor."""

    kind: str
    elements: int

    @property
    def error_max(self) -> float:
        return max(float(repetition["error_max"]) for repetition in self.repetitions)

    @property
    def lost(self) -> float:
        return max(float(repetition["lost"]) for repetition in self.repetitions)

    def record(self) -> dict[str, Any]:
        return vars(self) | {"seconds": self.seconds, "error_max": self.error_max, "lost": self.lost}


def measure(options: argparse.Namespace, console: Console) -> list[Case]:
    cases = []
    with (
        Star(options.workers, Link(options.link_mbit)) as star,
        start_on_star("precision", star, options.logs, "wiresum_lab.benchmarks.precision.rank") as ranks,
        ExitStack() as stack,
    ):
        mpi = {
            name: stack.enter_context(MpiRanks(name, Site.of_star(star), options.logs, start))
            for name, start in (MPI if options.mpi else {}).items()
        }
        for elements in options.elements:
            for kind in options.kinds:
                console.print(f"{kind}, {elements} elements")
                measured = [Case(group, kind, elements) for group in (*GROUPS, *mpi)]
                prepare = partial(prepare_all, ranks, mpi, kind, elements)
                take_turns(measured, options.repetitions, WARM_UPS, prepare, partial(go, ranks, mpi))
                cases += measured
    return cases


class MpiRanks(Ranks):
    """Of the program `mpi.c`, which finds its tensors in files."""

    draw: Draw

    def prepare(self, kind: str, elements: int, draw: int) -> None:
        self.draw = Draw(kind, elements, draw, self.size)
        for rank, tensor in enumerate(self.draw.inputs):
            self._file_of(rank, "tensor").write_bytes(tensor.numpy().tobytes())
        self.command("load", self.folder, elements)

    def sum_once(self) -> tuple[float, list[dict[str, Any]]]:
        """As `program.sum_once`, but all begin when they are told."""
        seconds = seconds_of(self.command("go"))
        self.command("store", self.folder)
        sums = [bytearray(self._file_of(rank, "sum").read_bytes()) for rank in range(self.size)]
        return seconds, [self.draw.report(torch.frombuffer(found, dtype=torch.float32)) for found in sums]

    def _file_of(self, rank: int, name: str) -> Path:
        return self.folder / f"{rank}.{name}"


def prepare_all(ranks: Ranks, mpi: Mapping[str, MpiRanks], kind: str, elements: int, draw: int) -> None:
    ranks.command("prepare", kind, elements, draw)
    for others in mpi.values():
        others.prepare(kind, elements, draw)


def go(ranks: Ranks, mpi: Mapping[str, MpiRanks], case: Case) -> dict[str, Any]:
    seconds, reports = mpi[case.group].sum_once() if case.group in mpi else sum_once(ranks, case.group)
    return {"seconds": seconds} | {name: max(r[name] for r in reports) for name in ("error_max", "lost")}


def report(cases: Sequence[Case], options: argparse.Namespace) -> Table:
    table = table_of(
        f"{options.workers} workers, links of {options.link_mbit:g} Mbit/s, fp32. Error of the worst element in "
        "units of 2^-24 of the sum of magnitudes; lost: elements of which less than one bit is left; median times",
        (
            "",
            "elements",
            "error",
            "lost",
            "time",
            "times block's",
            "times Gloo's",
            *(["times Open MPI's"] if options.mpi else []),
        ),
    )
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
            *([f"{case.seconds / same['openmpi'].seconds:.2f}"] if options.mpi else []),
        )
    return table


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = parser_of(__doc__, records="build/bench/precision.json", workers=4)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="of tensors")
    parser.add_argument("--elements", type=int, nargs="+", default=[4, 1000, 4096, 500_000], help="of a tensor")
    parser.add_argument("--repetitions", type=int, default=5, help="of each case (default: %(default)s)")
    parser.add_argument("--mpi", action="store_true", help="MPI_Allreduce, too, with the component of docs/mpi.md")
    options = parser.parse_args(arguments)
    if options.mpi and (missing := component_missing()) is not None:
        parser.error(missing)
    return options


def main(arguments: Sequence[str]) -> int:
    return run(parse_options(arguments), measure, record=Case.record, table=report)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
