"""Compares sparse and dense all-reduce and Gloo on shaped links: `make bench NAMES=sparse ARGS=--help`. Needs root.

Theory of operation. On a star of namespaces (`star.py`) every worker is one process with three groups (`rank.py`),
which sum the same tensors, in turns. A repetition draws new blocks; all ranks begin at the same moment, and the clock
runs from the first rank's start to the last rank's end. Every sum is checked, element by element. The first repetitions
of each case are not counted: in them the workers find out whether a vote on nonzero blocks pays (docs/sparse.md).

The bound: blocks of the union cross each worker's link downwards once, so the time is at least the dense time
multiplied by the union's fraction of all blocks.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from functools import partial

from wiresum_lab.benchmarks import program
from wiresum_lab.benchmarks.program import BLOCK, Case, Record, sum_once, take_turns
from wiresum_lab.namespaces.links import Link
from wiresum_lab.namespaces.star import Star
from wiresum_lab.ranks.ranks import GLOO, Ranks, start_on_star

SPARSE, DENSE = "sparse", "dense"
WARM_UPS = 4


def tensors(options: argparse.Namespace) -> list[Record]:
    """The kinds of tensors. `block` is the number of elements in a block, as many as in a packet, or 1 for scattered
    elements."""
    return [
        {"block": block, "placement": placement, "sparsity": sparsity, "loss": loss}
        for loss in options.losses
        for block, sparsities in ((BLOCK, options.sparsities), (1, options.scattered))
        for placement in ("aligned", "independent")
        for sparsity in sparsities
        if sparsity or placement == "aligned"  # without sparsity, both placements are the same
    ]


def measure(options: argparse.Namespace) -> list[Case]:
    measured = []
    with (
        Star(options.workers, Link(options.link_mbit)) as star,
        start_on_star("sparse", star, options.logs, "wiresum_lab.benchmarks.sparse.rank") as ranks,
    ):
        for tensor in tensors(options):
            star.reshape(Link(options.link_mbit, loss=tensor["loss"]))
            alike = {name: getattr(options, name) for name in ("workers", "link_mbit", "bytes")}
            groups = (SPARSE, DENSE) if tensor["loss"] else (SPARSE, DENSE, GLOO)
            some = [Case({"group": group} | tensor | alike) for group in groups]
            words = (options.bytes // 4, tensor["block"], tensor["placement"], tensor["sparsity"])
            prepare = partial(ranks.command, "prepare", *words)
            for draw in range(WARM_UPS - 1):  # one warm-up is enough for dense sums, which adapt nothing
                prepare(draw)
                sum_once(ranks, SPARSE)
            take_turns(some, options.repetitions, 1, prepare, partial(go, ranks))
            measured += some
    return measured


def go(ranks: Ranks, case: Case) -> Record:
    seconds, reports = sum_once(ranks, case["group"])
    by_rank = {name: [report[name] for report in reports] for name in ("bytes_sent", "bytes_needed")}
    return {"seconds": seconds, "union_fraction": reports[0]["union_fraction"]} | by_rank


def figures(case: Case, measured: Sequence[Case]) -> Record:
    """The columns of a case. `of_bound` is the bound as a fraction of the time, `sent_of_needed` the bytes that a
    worker sent, divided by the bytes of its blocks, headers and prologue."""
    over_dense, union = case.times(measured, group=DENSE) or 0.0, statistics.mean(case.all("union_fraction"))
    found: Record = {"seconds": case.seconds, "over_dense": over_dense, "over_gloo": case.times(measured, group=GLOO)}
    if case["group"] != SPARSE:
        return found
    pairs = [zip(one["bytes_sent"], one["bytes_needed"], strict=True) for one in case.repetitions]
    ratio = statistics.median(sent / needed for of_ranks in pairs for sent, needed in of_ranks)
    return found | {"union_fraction": union, "of_bound": union * over_dense, "sent_of_needed": ratio}


def main(arguments: Sequence[str]) -> int:
    parser = program.Options("sparse", __doc__)
    parser.add("--bytes", 8_000_000, "bytes of the tensor")
    parser.add("--repetitions", 5, "repetitions of each case")
    parser.add("--sparsities", [0.99, 0.9, 0.0], "fractions of zero blocks")
    parser.add("--scattered", [0.99, 0.999], "fractions of zero elements", nargs="*")
    parser.add("--losses", [0.0, 0.01], "fractions of packets lost in each direction of every link")
    return program.run(parser.parse_args(arguments), measure, figures)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
