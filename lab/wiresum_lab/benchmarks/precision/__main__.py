"""Measures error and cost of sums of floats by WIRESUM_PRECISION: `make bench NAMES=precision ARGS=--help`. Needs root.

On a star of namespaces (`star.py`) every worker is one process with a group for each precision and a group of Gloo
(`rank.py`), which sum the same tensors, in turns. All ranks begin at the same moment, and the clock runs from the first
rank's start to the last rank's end. With --mpi, MPI programs sum the tensors, too: over plain Open MPI, and over its
component for each precision (docs/mpi.md).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import torch

from wiresum_lab.benchmarks import program
from wiresum_lab.benchmarks.against_gloo_and_mpi.systems import component_missing, start_mpi, start_mpi_over_wiresum
from wiresum_lab.benchmarks.precision.rank import KINDS, PRECISIONS, Draw
from wiresum_lab.benchmarks.program import Case, Record, seconds_of, sum_once, take_turns
from wiresum_lab.namespaces.links import Link
from wiresum_lab.namespaces.star import Star
from wiresum_lab.ranks.ranks import GLOO, Ranks, Site, start_on_star

OPEN_MPI = "openmpi"
MPI: dict[str, Callable[[Ranks], object]] = {
    **{f"mpi-{each}": partial(start_mpi_over_wiresum, precision=each) for each in PRECISIONS},
    OPEN_MPI: start_mpi,
}
WARM_UPS = 1


def measure(options: argparse.Namespace) -> list[Case]:
    measured = []
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
                alike = {"elements": elements, "workers": options.workers, "link_mbit": options.link_mbit}
                some = [Case({"kind": kind, "group": group} | alike) for group in (*PRECISIONS, GLOO, *mpi)]
                prepare = partial(prepare_all, ranks, mpi, kind, elements)
                take_turns(some, options.repetitions, WARM_UPS, prepare, partial(go, ranks, mpi))
                measured += some
    return measured


class MpiRanks(Ranks):
    """Ranks of the program `mpi.c`, which reads its tensors from files."""

    draw: Draw

    def prepare(self, kind: str, elements: int, draw: int) -> None:
        self.draw = Draw(kind, elements, draw, self.size)
        for rank, tensor in enumerate(self.draw.inputs):
            self._file_of(rank, "tensor").write_bytes(tensor.numpy().tobytes())
        self.command("load", self.folder, elements)

    def sum_once(self) -> tuple[float, list[Record]]:
        """The result of `program.sum_once`, except that ranks begin when they get the command, not at a set time."""
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


def go(ranks: Ranks, mpi: Mapping[str, MpiRanks], case: Case) -> Record:
    group = case["group"]
    seconds, reports = mpi[group].sum_once() if group in mpi else sum_once(ranks, group)
    return {"seconds": seconds} | {name: max(r[name] for r in reports) for name in ("error_max", "lost")}


def figures(case: Case, measured: Sequence[Case]) -> Record:
    """The columns of a case. `error_max` is of the worst element, in units of 2^-24 of the sum of magnitudes; `lost` is
    the fraction of elements of which less than one bit is left; `times_X` is the time divided by that of X."""
    found: Record = {name: max(case.all(name)) for name in ("error_max", "lost")} | {"seconds": case.seconds}
    for peer in ("block", GLOO, OPEN_MPI):
        faster = case.times(measured, group=peer)
        found |= {f"times_{peer}": 1 / faster} if faster else {}
    return found


def main(arguments: Sequence[str]) -> int:
    parser = program.Options("precision", __doc__, workers=4)
    parser.add("--kinds", list(KINDS), "kinds of tensors", choices=KINDS)
    parser.add("--elements", [4, 1000, 4096, 500_000], "elements of a tensor")
    parser.add("--repetitions", 5, "repetitions of each case")
    parser.add_argument("--mpi", action="store_true", help="MPI_Allreduce, too, with the component of docs/mpi.md")
    options = parser.parse_args(arguments)
    if options.mpi and (missing := component_missing()) is not None:
        parser.error(missing)
    return program.run(options, measure, figures)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
