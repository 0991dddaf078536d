"""One job at 1, 2, 4 software switches on shaped links: `make bench NAMES=aggregators ARGS=--help`. Needs root.

Theory of operation. A software switch that is a host like the workers, behind a link like theirs, has to take in what
all N of them send: its link, and not theirs, is what bounds a sum. So the job is spread over K of them. On a star of
namespaces (`star.py`) each aggregator is a namespace with a `wiresum switch`, and every worker is one process with a
group for each K (`rank.py`), so that all of them sum the very same tensors, in turns. All ranks begin at
the same moment, and the clock runs from the first rank's start to the last rank's end. Every sum is checked, element by
element.

What can be reached: a worker's link carries each packet once in each direction, an aggregator's N / K of them, since
results go to each worker (without multicast, which would spare the aggregator's way out and not its way in). So
goodput is at most K / N of what the links allow, and with K = N all of it. Of a sparse tensor the blocks that are not
zero count. Gloo, a ring over the workers' links alone, is beside it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from rich.console import Console
from rich.table import Table

from wiresum.join.constants import AGGREGATORS_MAX
from wiresum_lab.benchmarks.against_gloo_and_mpi.records import Case as DenseCase
from wiresum_lab.benchmarks.against_gloo_and_mpi.records import physical_bound_mbit, ring_bound_mbit
from wiresum_lab.benchmarks.program import BLOCK, add_tensor, parser_of, run, table_of, take_turns
from wiresum_lab.benchmarks.switches.cases import RANK, SwitchesCase, choice, go
from wiresum_lab.namespaces.links import Link
from wiresum_lab.namespaces.star import Star
from wiresum_lab.ranks.ranks import GLOO, start_on_star

# In the first sums of sparse tensors the workers find out that it pays to ask which blocks there are.
WARM_UPS = 3


@dataclass
class Case(SwitchesCase):
    """One number of aggregators, or Gloo, and one kind of tensor. `group`: how many aggregators."""

    sparsity: float
    loss: float

    @property
    def bound_mbit(self) -> float:
        """What the links allow; headers count, the prologue of a sparse sum does not."""
        sent = DenseCase("", self.workers, self.link_mbit, round(self.bytes * (1 - self.sparsity)))
        if self.group == GLOO:
            return float(ring_bound_mbit(self.dense) or 0.0)
        bound = physical_bound_mbit(sent) or 0.0
        return bound * min(1.0, int(self.group) / self.workers) / (1 - self.sparsity)


def measure(options: argparse.Namespace, console: Console) -> list[Case]:
    cases = []
    link = Link(options.link_mbit, loss=options.loss)
    with Star(options.workers, link, aggregators=max(options.aggregators)) as star:
        ends = [host.control_endpoint for host in star.aggregators]
        choices = [choice(str(count), switch="+".join(ends[:count])) for count in options.aggregators]
        with start_on_star("aggregators", star, options.logs, RANK, *choices) as ranks:
            for sparsity in options.sparsities:
                groups = [*map(str, options.aggregators), *([] if options.loss else [GLOO])]
                measured = [
                    Case(group, options.workers, options.link_mbit, options.bytes, sparsity, options.loss)
                    for group in groups
                ]
                prepare = partial(ranks.command, "prepare", options.bytes // 4, BLOCK, sparsity)
                take_turns(measured, options.repetitions, WARM_UPS if sparsity else 1, prepare, partial(go, ranks))
                for case in measured:
                    console.print(line_of(case))
                cases += measured
    return cases


def line_of(case: Case) -> str:
    return f"{name_of(case)}, {case.sparsity:.0%} sparse: {case.goodput_mbit:.1f} Mbit/s"


def name_of(case: Case) -> str:
    return "Gloo" if case.group == GLOO else f"{case.group} aggregator{'s' * (case.group != '1')}"


def report(cases: Sequence[Case], options: argparse.Namespace) -> Table:
    table = table_of(
        f"{options.workers} workers, aggregators on links of {options.link_mbit:g} Mbit/s like theirs, "
        f"{options.loss:.0%} loss, {options.bytes / 1e6:g} MB fp32; medians",
        ("", "sparsity", "time", "goodput", "bound", "of the bound", "to one", "sent again"),
    )
    for case in cases:
        one = next((other for other in cases if (other.group, other.sparsity) == ("1", case.sparsity)), None)
        table.add_row(
            name_of(case),
            f"{case.sparsity:.0%}",
            f"{case.seconds * 1e3:.0f} ms",
            f"{case.goodput_mbit:.1f} Mbit/s",
            f"{case.bound_mbit:.1f} Mbit/s",
            f"{case.goodput_mbit / case.bound_mbit:.3f}",
            f"{one.seconds / case.seconds:.2f}" if one else "-",
            "-" if case.group == GLOO else str(case.retransmissions),
        )
    return table


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = parser_of(__doc__, records="build/bench/aggregators.json", workers=4)
    add_tensor(parser)
    parser.add_argument("--aggregators", type=int, nargs="+", default=[1, 2, 4], help="numbers of them to compare")
    parser.add_argument("--sparsities", type=float, nargs="+", default=[0.0, 0.9], help="fractions of zero blocks")
    parser.add_argument("--loss", type=float, default=0.0, help="in each direction of every link (default: none)")
    options = parser.parse_args(arguments)
    if not all(1 <= count <= AGGREGATORS_MAX for count in options.aggregators):
        parser.error(f"there can be 1 to {AGGREGATORS_MAX} aggregators")
    return options


def main(arguments: Sequence[str]) -> int:
    return run(parse_options(arguments), measure, record=Case.record, table=report)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
