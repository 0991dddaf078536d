"""Several workers on each host, every host's link as slow: `make bench NAMES=hosts ARGS=--help`. Needs root.

Theory of operation. Each host is a network namespace of a star (`star.py`), a software switch runs in its middle. Every
worker is one process with a group over each way to sum (`rank.py`), so that all of them sum the very same tensors, in
turns:

    shared  as always: the workers of a host sum in shared memory first, and share one stream to the switch
    apart   each worker has a stream of its own (WIRESUM_SHARE=0)
    gloo    a ring of TCP connections, rank by rank, so that most neighbours are on one host

All ranks begin at the same moment, and the clock runs from the first rank's start to the last rank's end. Every sum is
checked, element by element.

What can be reached: shared, a host's link carries the tensor once each way; apart, once for each worker; a ring carries
2 (N - 1) / N of it. On one host nothing crosses a link, and processors are the bound.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from wiresum_lab.benchmarks.against_gloo_and_mpi.records import physical_bound_mbit, ring_bound_mbit
from wiresum_lab.benchmarks.program import parser_of, run, table_of, take_turns
from wiresum_lab.benchmarks.switches.cases import RANK, SwitchesCase, choice, go
from wiresum_lab.namespaces.links import Link
from wiresum_lab.namespaces.star import STAR_DEVICE, Star
from wiresum_lab.ranks.ranks import GLOO, Ranks, Site

SHARED, APART = "shared", "apart"
GROUPS = (SHARED, APART, GLOO)
WARM_UPS = 2


@dataclass
class Case(SwitchesCase):
    """One way to sum, on so many hosts."""

    hosts: int

    @property
    def shape(self) -> str:
        return f"{self.hosts}x{self.workers // self.hosts}"

    @property
    def bound_mbit(self) -> float:
        """What the links allow, headers counted; infinite where none is crossed, or lets all through at once."""
        bound = ring_bound_mbit(self.dense) if self.group == GLOO else physical_bound_mbit(self.dense)
        crossings = self.workers // self.hosts if self.group == APART else 1
        return bound / crossings if bound and self.hosts > 1 else math.inf


def started(star: Star, per_host: int, logs: Path) -> Ranks:
    def start(ranks: Ranks) -> None:
        switch = ranks.start_switch(star.switch)
        choices = [choice(SHARED, switch=switch), choice(APART, switch=switch, share=False)]
        ranks.start_torch(RANK, STAR_DEVICE, *choices, variables=lambda worker: worker.variables(switch))

    workers = [worker for worker in star.workers for _ in range(per_host)]
    return Ranks("hosts", Site(workers, star.switch, star.manager, mtu=star.link.mtu), logs, start)


def measure(options: argparse.Namespace, console: Console) -> list[Case]:
    cases = []
    for hosts, per_host in options.shapes:
        with Star(hosts, Link(options.link_mbit)) as star, started(star, per_host, options.logs) as ranks:
            for size in options.bytes:
                measured = [Case(group, hosts * per_host, options.link_mbit, size, hosts) for group in GROUPS]
                prepare = partial(ranks.command, "prepare", size // 4, 1, 0.0)
                take_turns(measured, options.repetitions, WARM_UPS, prepare, partial(go, ranks))
                for case in measured:
                    console.print(f"{case.shape}, {size} bytes, {case.group}: {case.seconds * 1e3:.2f} ms")
                cases += measured
    return cases


def record(case: Case) -> dict[str, Any]:
    return case.record() | {"shape": case.shape}


def report(cases: Sequence[Case], options: argparse.Namespace) -> Table:
    table = table_of(
        f"hosts x workers, every host's link {options.link_mbit:g} Mbit/s, fp32; medians",
        ("", "bytes", "", "time", "goodput", "of its bound", "to Gloo", "sent again"),
    )
    for case in cases:
        gloo = next(o for o in cases if (o.group, o.shape, o.bytes) == (GLOO, case.shape, case.bytes))
        table.add_row(
            case.shape,
            str(case.bytes),
            case.group,
            f"{case.seconds * 1e3:.2f} ms",
            f"{case.goodput_mbit:.1f} Mbit/s",
            f"{case.goodput_mbit / case.bound_mbit:.3f}" if case.bound_mbit < math.inf else "-",
            f"{gloo.seconds / case.seconds:.2f}",
            "-" if case.group == GLOO else str(case.retransmissions),
        )
    return table


def shape_of(text: str) -> tuple[int, int]:
    hosts, _, per_host = text.partition("x")
    if not (hosts.isdecimal() and per_host.isdecimal() and int(hosts) and int(per_host)):
        raise argparse.ArgumentTypeError(f"{text!r} is not like 2x4, hosts x workers on each")
    return int(hosts), int(per_host)


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = parser_of(__doc__, records="build/bench/hosts.json", workers=None)
    shapes = [(2, 4), (4, 2), (1, 4)]
    parser.add_argument("--shapes", type=shape_of, nargs="+", default=shapes, help="hosts x workers: 2x4 4x2 1x4")
    sizes = [1000, 4_000_000]
    parser.add_argument("--bytes", type=int, nargs="+", default=sizes, help="bytes of the tensors (1000 4000000)")
    parser.add_argument("--repetitions", type=int, default=9, help="of each case (default: %(default)s)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    return run(parse_options(arguments), measure, record=record, table=report)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
