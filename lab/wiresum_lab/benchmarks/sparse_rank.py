"""One rank of the sparse benchmark: a process with three groups, which sums the same tensor in three ways.

`sparse_bench.py` starts it in a worker's namespace and talks to it over its standard streams, one line a message:

    hello                                                            all groups are there
    prepare ELEMENTS BLOCK PLACEMENT SPARSITY DRAW        -> ready   the tensor's blocks are chosen
    load                                                  -> ready   the tensor holds this rank's values again
    go GROUP AT_NS                                        -> ready   the tensor is summed
    report                                                -> {JSON}  times, wrong elements, bytes, the union's share

Times are CLOCK_MONOTONIC in nanoseconds. Loading and reporting are steps of their own, and all ranks begin at the same
moment AT_NS: ranks share cores, and one that still copied its tensor while others began, or already checked its sum
while others waited for theirs, would be measured as a slow network.

Values are small integers, so that every sum is exact in whatever order it is made.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

import wiresum.torch
from wiresum.join.constants import HEADER_BYTES
from wiresum_lab.ranks.rank_commands import serve

TIMEOUT = timedelta(seconds=300)
LANES = 360  # 32-bit words in a packet at an MTU of 1500
SAMPLED = 32 * 33  # elements and their blocks, that a prologue counts besides

Blocks = npt.NDArray[np.bool_]


def chosen_blocks(count: int, placement: str, sparsity: float, draw: int, rank: int) -> Blocks:
    """The blocks that a rank has: exactly a share of 1 - sparsity, at random; the same at all ranks where aligned."""
    seed = [draw, 0 if placement == "aligned" else 1 + rank]
    present = np.zeros(count, np.bool_)
    present[np.random.default_rng(seed).permutation(count)[: round((1 - sparsity) * count)]] = True
    return present


class Summed(NamedTuple):
    """The last sum, and when this rank made it."""

    group: str
    start_ns: int
    end_ns: int


class Rank:
    """The groups, and the tensor of the current case."""

    def __init__(self, star_device: str) -> None:
        torch.set_num_threads(1)
        dist.init_process_group("wiresum", timeout=TIMEOUT)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        options = wiresum.torch.Options(sparse=False)
        dense = dist.new_group(backend="wiresum", timeout=TIMEOUT, pg_options=options)
        # Wiresum's own Gloo stays on the management network; the one that is measured runs over the star.
        os.environ["GLOO_SOCKET_IFNAME"] = star_device
        self.groups = {
            "sparse": dist.group.WORLD,
            "dense": dense,
            "gloo": dist.new_group(backend="gloo", timeout=TIMEOUT),
        }
        self.own = torch.empty(0)
        self.tensor = torch.empty(0)
        self.expected = torch.empty(0)
        self.union_share = 0.0
        self.bytes_needed = 0
        self.bytes_before = 0
        self.summed = Summed("", 0, 0)

    def prepare(self, elements: int, block: int, placement: str, sparsity: float, draw: int) -> None:
        count = -(-elements // block)
        self.own = torch.zeros(elements)
        self.expected = torch.zeros(elements)
        union = np.zeros(count, np.bool_)
        for rank in range(self.size):
            present = chosen_blocks(count, placement, sparsity, draw, rank)
            union |= present
            values = torch.from_numpy(np.repeat(present, block)[:elements].astype(np.float32) * (rank + 1))
            self.expected += values
            if rank == self.rank:
                self.own = values
                mine = int(present.sum())
        self.tensor = torch.empty(elements)
        self.union_share = float(union.mean())
        self.bytes_needed = bytes_needed(count, int(union.sum()), mine, block, self.size)

    def load(self) -> None:
        self.tensor.copy_(self.own)

    def go(self, name: str, at_ns: int) -> None:
        group = self.groups[name]
        self.bytes_before = self._bytes_sent(name)
        time.sleep(max(0, at_ns - time.monotonic_ns()) / 1e9)
        start_ns = time.monotonic_ns()
        dist.all_reduce(self.tensor, group=group)
        self.summed = Summed(name, start_ns, time.monotonic_ns())

    def report(self) -> dict[str, Any]:
        name = self.summed.group
        return {
            "start_ns": self.summed.start_ns,
            "end_ns": self.summed.end_ns,
            "wrong_elements": int((self.tensor != self.expected).sum()),
            "union_share": self.union_share,
            "bytes_sent": self._bytes_sent(name) - self.bytes_before,
            "bytes_needed": self.bytes_needed if name == "sparse" else 0,
        }

    def _bytes_sent(self, name: str) -> int:
        if name == "gloo":
            return 0
        network = wiresum.torch.stats(self.groups[name]).network
        assert network is not None
        return network.bytes_sent


def bytes_needed(blocks: int, union: int, mine: int, block: int, workers: int) -> int:
    """UDP payload of the blocks that a worker has, the headers of the others, and the prologue (docs/sparse.md). Of
    blocks that are smaller than a packet, those of the union, packed together; what finding them out takes is extra."""
    packet = HEADER_BYTES + 4 * LANES
    counts_per_word = 32 // workers.bit_length()
    chunks = -(-blocks * block // LANES)
    counts = chunks + SAMPLED
    prologue = -(-counts // (counts_per_word * LANES)) * packet
    if block < LANES:
        return -(-union * block // LANES) * packet + prologue
    return mine * packet + (union - mine) * HEADER_BYTES + prologue


def obey(rank: Rank) -> None:
    serve(
        {
            "prepare": lambda elements, block, placement, sparsity, draw: rank.prepare(
                int(elements), int(block), placement, float(sparsity), int(draw)
            ),
            "load": rank.load,
            "go": lambda name, at_ns: rank.go(name, int(at_ns)),
            "report": rank.report,
        }
    )


def main(arguments: list[str]) -> None:
    if len(arguments) != 1:
        sys.exit("usage: sparse_rank.py STAR_DEVICE (sparse_bench.py starts it)")
    obey(Rank(arguments[0]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
