"""Dense tensors that are zero in blocks, or nearly everywhere: sums are exact, and zero blocks are not sent."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import wiresum.torch
from wiresum.agent import SessionStats
from wiresum.join.constants import HEADER_BYTES
from wiresum_lab.ranks.cluster import runs_in
from wiresum_lab.ranks.cluster_worker import lanes

BLOCKS = 1500  # so many that the saving exceeds the cost of the round trips even on a busy machine


def sent_once(before: SessionStats, after: SessionStats, block: int) -> int:
    """Bytes sent between two snapshots, without retransmissions, which a busy machine causes now and then."""
    sent = after.bytes_sent - before.bytes_sent
    sent -= (after.retransmissions - before.retransmissions) * (4 * block + HEADER_BYTES)
    return sent - (after.questions - before.questions) * HEADER_BYTES


def contribution(draw: int, block: int, *, rank: int, aligned: bool) -> torch.Tensor:
    """A tensor in which one block in 16 is not zero, with small integers, whose sum is exact."""
    seed = 1000 * draw + (0 if aligned else 1 + rank)
    chosen = torch.randperm(BLOCKS, generator=torch.Generator().manual_seed(seed))[: BLOCKS // 16]
    blocks = torch.zeros(BLOCKS, block)
    blocks[chosen] = torch.arange(block, dtype=torch.float32) % 100 - 50 + rank
    return blocks.reshape(-1)[: BLOCKS * block - 3]


@runs_in("trio")
def test_block_sparse_sums_are_exact_and_skip_zero_blocks(rank: int, size: int) -> None:
    group = dist.group.WORLD
    block = lanes(group)
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
    assert sent_once(before, after, block) < calls * BLOCKS * (4 * block + HEADER_BYTES) / 4


def scattered(draw: int, *, rank: int, elements: int, density: float, dtype: torch.dtype) -> torch.Tensor:
    """Small whole numbers, mostly zero, whose sums every element type represents exactly."""
    generator = torch.Generator().manual_seed(1000 * draw + rank)
    values = torch.randint(-20, 21, (elements,), generator=generator).to(dtype)
    return values * (torch.rand(elements, generator=generator) < density)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32])
@runs_in("trio")
def test_scattered_sums_are_exact_and_skip_zero_blocks(rank: int, size: int, dtype: torch.dtype) -> None:
    """Sparse and dense tensors alternate, all in flight at once."""
    block = lanes()
    elements = BLOCKS * block - 7
    densities = [0.002, 1.0, 0.002, 0.0002, 1.0, 0.002]
    inputs = [
        [scattered(draw, rank=other, elements=elements + draw, density=density, dtype=dtype) for other in range(size)]
        for draw, density in enumerate(densities)
    ]
    before = wiresum.torch.stats().network
    tensors = [contributions[rank].clone() for contributions in inputs]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in works:
        work.wait()
    after = wiresum.torch.stats().network
    for tensor, contributions in zip(tensors, inputs, strict=True):
        assert torch.equal(tensor, torch.stack(contributions).sum(0, dtype=dtype))
        assert not torch.signbit(tensor[tensor == 0]).any()
    assert after.sparse.refined - before.sparse.refined == 4
    assert after.sparse.refinements - before.sparse.refinements >= 4
    dense = 2 * BLOCKS * (4 * block + HEADER_BYTES)
    assert sent_once(before, after, block) < 1.3 * dense
