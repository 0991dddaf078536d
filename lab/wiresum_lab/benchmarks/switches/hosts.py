"""Measures several workers on each host, on equal links: `make bench NAMES=hosts ARGS=--help`. Needs root.

Theory of operation. Each host is a network namespace of a star (`star.py`), with a software switch in its centre. Every
worker is one process with a group over each way to sum (`rank.py`); the groups sum the same tensors, in turns:

    shared  the default: the workers of a host sum in shared memory first, and share one stream to the switch; a job on
            one host needs no switch (WIRESUM_SWITCH=local)
    checked as `shared`, with check words (WIRESUM_CHECK_WORD)
    8bits   as `shared`, with lanes of 8 bits (WIRESUM_BITS)
    apart   each worker has a stream of its own (WIRESUM_SHARE=0)
    gloo    a ring of TCP connections, rank by rank, so that most neighbours are on one host

All ranks begin at the same moment, and the clock runs from the first rank's start to the last rank's end. Every sum is
checked, element by element.

With --loss, `apart` and `gloo` are left out, since they take long. --groups leaves out others.

The bound: with `shared` a host's link carries the tensor once each way; with `apart`, once for each worker; with a
ring, 2 (N - 1) / N of the tensor. On one host nothing crosses a link, and processors are the bound.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from wiresum_lab.benchmarks import program
from wiresum_lab.benchmarks.bounds import network_mbit, ring_mbit
from wiresum_lab.benchmarks.program import Case, Record, take_turns
from wiresum_lab.benchmarks.switches import cases
from wiresum_lab.namespaces.links import Link
from wiresum_lab.namespaces.star import STAR_DEVICE, Star
from wiresum_lab.ranks.ranks import GLOO, Ranks, Site

SHARED, CHECKED, NARROW, APART = "shared", "checked", "8bits", "apart"
LOSSY_GROUPS = (SHARED, CHECKED, NARROW)
GROUPS = (*LOSSY_GROUPS, APART, GLOO)
WARM_UPS = 2


def bound_mbit(case: Case) -> float | None:
    """The goodput that the links allow, headers counted. None if no link is crossed, or the links do not limit."""
    if case["hosts"] == 1:
        return None
    if case["group"] == GLOO:
        return ring_mbit(case["bytes"], case["link_mbit"], case["workers"])
    bound = network_mbit(case["bytes"], case["link_mbit"], bits=8 if case["group"] == NARROW else 32)
    return bound and bound / (case["workers"] // case["hosts"] if case["group"] == APART else 1)


def started(star: Star, per_host: int, logs: Path) -> Ranks:
    def start(ranks: Ranks) -> None:
        switch = ranks.start_switch(star.switch)
        shared = "local" if len(star.workers) == 1 else switch
        choices = [
            cases.choice(SHARED, switch=shared),
            cases.choice(CHECKED, switch=shared, check_word="1"),
            cases.choice(NARROW, switch=shared, bits=8),
            cases.choice(APART, switch=switch, share=False),
        ]
        ranks.start_torch(cases.RANK, STAR_DEVICE, *choices, variables=lambda worker: worker.variables(switch))

    workers = [worker for worker in star.workers for _ in range(per_host)]
    return Ranks("hosts", Site(workers, star.switch, star.manager, mtu=star.link.mtu), logs, start)


def measure(options: argparse.Namespace) -> list[Case]:
    measured = []
    for hosts, per_host in options.shapes:
        with Star(hosts, Link(options.link_mbit, options.loss)) as star, started(star, per_host, options.logs) as ranks:
            for size in options.bytes:
                alike = {"hosts": hosts, "workers": hosts * per_host, "bytes": size}
                alike |= {"link_mbit": options.link_mbit, "loss": options.loss}
                possible = LOSSY_GROUPS if options.loss else GROUPS
                some = [Case({"group": group} | alike) for group in options.groups if group in possible]
                prepare = partial(ranks.command, "prepare", size // 4, 1, 0.0)
                take_turns(some, options.repetitions, WARM_UPS, prepare, partial(cases.go, ranks))
                measured += some
    return measured


def figures(case: Case, measured: Sequence[Case]) -> Record:
    over = {f"over_{peer}": case.times(measured, group=peer) for peer in (SHARED, GLOO)}
    return cases.figures(case, bound_mbit(case)) | over


def shape_of(text: str) -> tuple[int, int]:
    hosts, _, per_host = text.partition("x")
    if not (hosts.isdecimal() and per_host.isdecimal() and int(hosts) and int(per_host)):
        raise argparse.ArgumentTypeError(f"{text!r} is not like 2x4, hosts x workers on each")
    return int(hosts), int(per_host)


def main(arguments: Sequence[str]) -> int:
    parser = program.Options("hosts", __doc__, workers=None)
    parser.add("--shapes", [(2, 4), (4, 2), (1, 4)], "hosts x workers on each, like 2x4", type=shape_of)
    parser.add("--bytes", [1000, 4_000_000], "bytes of the tensors")
    parser.add("--groups", list(GROUPS), "ways to sum", choices=GROUPS)
    parser.add("--loss", 0.0, "fraction of packets lost in each direction of every link")
    parser.add("--repetitions", 9, "repetitions of each case")
    return program.run(parser.parse_args(arguments), measure, figures)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
