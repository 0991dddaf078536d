"""Measures a job at 1, 2, 4 software switches on shaped links: `make bench NAMES=aggregators ARGS=--help`. Needs root.

Theory of operation. A software switch on a host like the workers', behind a link like theirs, receives the packets of
all N workers: its link, and not theirs, bounds a sum. So the job is spread over K switches. On a star of namespaces
(`star.py`) each aggregator is a namespace with a `wiresum switch`, and every worker is one process with a group for
each K (`rank.py`); the groups sum the same tensors, in turns. All ranks begin at the same moment, and the clock runs
from the first rank's start to the last rank's end. Every sum is checked, element by element.

The bound: a worker's link carries each packet once in each direction, an aggregator's link N / K packets, since results
go to each worker (multicast would relieve only the direction of results). So goodput is at most K / N of the links'
bound, and all of it with K = N. Only nonzero blocks of a sparse tensor count. Gloo, a ring over the workers' links
alone, is measured for comparison.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from wiresum.join.constants import AGGREGATORS_MAX
from wiresum_lab.benchmarks import program
from wiresum_lab.benchmarks.bounds import network_mbit, ring_mbit
from wiresum_lab.benchmarks.program import BLOCK, Case, Record, take_turns
from wiresum_lab.benchmarks.switches import cases
from wiresum_lab.namespaces.links import Link
from wiresum_lab.namespaces.star import Star
from wiresum_lab.ranks.ranks import GLOO, start_on_star

# In the first sums of sparse tensors the workers find out that a vote on nonzero blocks pays.
WARM_UPS = 3


def bound_mbit(case: Case) -> float | None:
    """The goodput that the links allow. Headers count; the prologue of a sparse sum does not."""
    if case["group"] == GLOO:
        return ring_mbit(case["bytes"], case["link_mbit"], case["workers"])
    density = float(1 - case["sparsity"])
    bound = network_mbit(round(case["bytes"] * density), case["link_mbit"]) or 0.0
    return bound * min(1.0, int(case["group"]) / int(case["workers"])) / density


def measure(options: argparse.Namespace) -> list[Case]:
    measured = []
    link = Link(options.link_mbit, loss=options.loss)
    with Star(options.workers, link, aggregators=max(options.aggregators)) as star:
        ends = [host.control_endpoint for host in star.aggregators]
        choices = [cases.choice(str(count), switch="+".join(ends[:count])) for count in options.aggregators]
        with start_on_star("aggregators", star, options.logs, cases.RANK, *choices) as ranks:
            for sparsity in options.sparsities:
                alike = {name: getattr(options, name) for name in ("workers", "link_mbit", "bytes", "loss")}
                groups = [*map(str, options.aggregators), *([] if options.loss else [GLOO])]
                some = [Case({"group": group, "sparsity": sparsity} | alike) for group in groups]
                prepare = partial(ranks.command, "prepare", options.bytes // 4, BLOCK, sparsity)
                take_turns(some, options.repetitions, WARM_UPS if sparsity else 1, prepare, partial(cases.go, ranks))
                measured += some
    return measured


def figures(case: Case, measured: Sequence[Case]) -> Record:
    return cases.figures(case, bound_mbit(case)) | {"over_one": case.times(measured, group="1")}


def main(arguments: Sequence[str]) -> int:
    parser = program.Options("aggregators", __doc__, workers=4)
    parser.add("--bytes", 8_000_000, "bytes of the tensor")
    parser.add("--repetitions", 5, "repetitions of each case")
    parser.add(
        "--aggregators", [1, 2, 4], "numbers of switches to compare", choices=range(1, AGGREGATORS_MAX + 1), metavar="N"
    )
    parser.add("--sparsities", [0.0, 0.9], "fractions of zero blocks")
    parser.add("--loss", 0.0, "fraction of packets lost in each direction of every link")
    return program.run(parser.parse_args(arguments), measure, figures)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
