"""One rank of a benchmark that compares switches: a process with a group over each choice of them, and one of Gloo.

`aggregators_bench.py` or `racks_bench.py` starts it in a worker's namespace and talks to it over its standard streams,
one line a message:

    hello                                                 all groups are there
    prepare ELEMENTS BLOCK SPARSITY DRAW       -> ready   the tensor's blocks are chosen, the same at all ranks
    load                                       -> ready   the tensor holds this rank's values again
    go GROUP AT_NS                             -> ready   the tensor is summed
    report                                     -> {JSON}  times, wrong elements, packets

GROUP is a name of its arguments NAME=SWITCH, where SWITCH is as in WIRESUM_SWITCH, or "gloo". Times are CLOCK_MONOTONIC
in nanoseconds. Loading and reporting are steps of their own, and all ranks begin at the same moment AT_NS, since they
share cores. Values are small integers, so that every sum is exact in whatever order it is made.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import wiresum.torch
from wiresum_lab.benchmarks.sparse_rank import chosen_blocks
from wiresum_lab.ranks.rank_commands import serve

TIMEOUT = timedelta(seconds=300)
GLOO = "gloo"


class Rank:
    """The groups, and the tensor of the current case."""

    def __init__(self, star_device: str, choices: list[str]) -> None:
        torch.set_num_threads(1)
        dist.init_process_group("wiresum", timeout=TIMEOUT)
        self.groups: dict[str, dist.ProcessGroup] = {}
        for choice in choices:
            name, _, switch = choice.partition("=")
            options = wiresum.torch.Options(switch=switch)
            self.groups[name] = dist.new_group(backend="wiresum", timeout=TIMEOUT, pg_options=options)
        # Wiresum's own Gloo stays on the management network; the one that is measured runs over the star.
        os.environ["GLOO_SOCKET_IFNAME"] = star_device
        self.groups[GLOO] = dist.new_group(backend="gloo", timeout=TIMEOUT)
        self.own, self.tensor, self.expected = torch.empty(0), torch.empty(0), torch.empty(0)
        self.summed: dict[str, Any] = {}

    def prepare(self, elements: int, block: int, sparsity: float, draw: int) -> None:
        present = chosen_blocks(-(-elements // block), "aligned", sparsity, draw, 0)
        ones = torch.from_numpy(np.repeat(present, block)[:elements].astype(np.float32))
        size = dist.get_world_size()
        self.own, self.expected = ones * (dist.get_rank() + 1), ones * (size * (size + 1) // 2)
        self.tensor = torch.empty(elements)

    def load(self) -> None:
        self.tensor.copy_(self.own)

    def go(self, name: str, at_ns: int) -> None:
        again = self._retransmissions(name)
        time.sleep(max(0, at_ns - time.monotonic_ns()) / 1e9)
        start_ns = time.monotonic_ns()
        dist.all_reduce(self.tensor, group=self.groups[name])
        end_ns = time.monotonic_ns()
        again = self._retransmissions(name) - again
        self.summed = {"start_ns": start_ns, "end_ns": end_ns, "retransmissions": again}

    def report(self) -> dict[str, Any]:
        return self.summed | {"wrong_elements": int((self.tensor != self.expected).sum())}

    def _retransmissions(self, name: str) -> int:
        if name == GLOO:
            return 0
        network = wiresum.torch.stats(self.groups[name]).network
        if network is None:
            raise RuntimeError("the switches have no room for another job")
        return network.retransmissions


def obey(rank: Rank) -> None:
    serve(
        {
            "prepare": lambda elements, block, sparsity, draw: rank.prepare(
                int(elements), int(block), float(sparsity), int(draw)
            ),
            "load": rank.load,
            "go": lambda name, at_ns: rank.go(name, int(at_ns)),
            "report": rank.report,
        }
    )


def main(arguments: list[str]) -> None:
    if len(arguments) < 2:
        sys.exit("usage: groups_rank.py STAR_DEVICE NAME=SWITCH... (a benchmark starts it)")
    obey(Rank(arguments[0], arguments[1:]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
