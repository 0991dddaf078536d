"""One rank of the sparse benchmark: a process with three groups that sum the same tensor.

    prepare ELEMENTS BLOCK PLACEMENT SPARSITY DRAW      chooses the tensor's blocks, the same for every group

and the commands of `SummingRank`. Groups are "sparse" (wiresum by default), "dense" (wiresum without a search for
zeros) and "gloo".
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

import wiresum.torch
from wiresum.join.constants import HEADER_BYTES
from wiresum.join.lanes import lanes_of_mtu
from wiresum_lab.namespaces.links import MTU_BYTES
from wiresum_lab.ranks.rank import SummingRank, main

LANES = lanes_of_mtu(MTU_BYTES)
SAMPLED = 32 * 33  # sampled elements and their blocks, which a prologue counts, too

Blocks = npt.NDArray[np.bool_]


def chosen_blocks(count: int, placement: str, sparsity: float, draw: int, rank: int) -> Blocks:
    """The random nonzero blocks of a rank: a fraction of exactly 1 - sparsity, the same at all ranks if aligned."""
    seed = [draw, 0 if placement == "aligned" else 1 + rank]
    present = np.zeros(count, np.bool_)
    present[np.random.default_rng(seed).permutation(count)[: round((1 - sparsity) * count)]] = True
    return present


class Rank(SummingRank):
    def __init__(self, device: str) -> None:
        super().__init__(device, dense=wiresum.torch.Options(sparse=False))
        self.groups["sparse"] = dist.group.WORLD
        self.union_fraction = 0.0
        self.bytes_needed = 0

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
        self.union_fraction = float(union.mean())
        self.bytes_needed = bytes_needed(count, int(union.sum()), mine, block, self.size)

    def report(self) -> dict[str, Any]:
        return super().report() | {
            "union_fraction": self.union_fraction,
            "bytes_sent": self._counted("bytes_sent"),
            "bytes_needed": self.bytes_needed if self.summed["group"] == "sparse" else 0,
        }


def bytes_needed(blocks: int, union: int, mine: int, block: int, workers: int) -> int:
    """UDP payload of a worker's blocks, of the headers of the other blocks, and of the prologue (docs/sparse.md).
    Blocks smaller than a packet are packed together with the union's. The vote on blocks is not counted."""
    packet = HEADER_BYTES + 4 * LANES
    counts_per_word = 32 // workers.bit_length()
    chunks = -(-blocks * block // LANES)
    counts = chunks + SAMPLED
    prologue = -(-counts // (counts_per_word * LANES)) * packet
    if block < LANES:
        return -(-union * block // LANES) * packet + prologue
    return mine * packet + (union - mine) * HEADER_BYTES + prologue


if __name__ == "__main__":
    main(Rank)
