"""Dense tensors that are zero in blocks: exact sums, and only what is there is sent. Over loopback; bmv2_tests runs the
same functions on bmv2."""

from __future__ import annotations

import torch
import torch.distributed as dist
from cluster import Cluster

import wiresum.torch

BLOCKS = 80  # enough that a tensor may be sparse
HEADER_BYTES = 24


def contribution(draw: int, block: int, *, rank: int, aligned: bool) -> torch.Tensor:
    """One block in 16 is there, with small integers, whose sum is exact."""
    seed = 1000 * draw + (0 if aligned else 1 + rank)
    chosen = torch.randperm(BLOCKS, generator=torch.Generator().manual_seed(seed))[: BLOCKS // 16]
    blocks = torch.zeros(BLOCKS, block)
    blocks[chosen] = torch.arange(block, dtype=torch.float32) % 100 - 50 + rank
    return blocks.reshape(-1)[: BLOCKS * block - 3]


def block_sparse_sums(rank: int, size: int) -> None:
    group = dist.group.WORLD
    block = group.block_elements
    before = wiresum.torch.stats().network
    calls = 4
    for draw in range(calls):
        inputs = [contribution(draw, block, rank=other, aligned=draw % 2 == 0) for other in range(size)]
        tensor = inputs[rank].clone()
        dist.all_reduce(tensor)
        assert torch.equal(tensor, torch.stack(inputs).sum(0))
    after = wiresum.torch.stats().network
    assert after.sparse.streams - before.sparse.streams == calls
    assert after.sparse.blocks_skipped - before.sparse.blocks_skipped >= calls * BLOCKS // 2
    sent = (
        after.bytes_sent
        - before.bytes_sent
        - (after.retransmissions - before.retransmissions) * (4 * block + HEADER_BYTES)
    )
    assert sent < calls * BLOCKS * (4 * block + HEADER_BYTES) / 4


def test_block_sparse_sums_are_exact_and_leave_out_what_nobody_has(trio: Cluster) -> None:
    trio.run(block_sparse_sums)
