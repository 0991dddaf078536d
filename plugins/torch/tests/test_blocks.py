"""Dense tensors that are zero in blocks, or nearly everywhere: sums are exact, and zero blocks are not sent. These
tests run over loopback; bmv2_tests runs the same functions on bmv2."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import wiresum.torch
from wiresum.agent import SessionStats
from wiresum.join.constants import HEADER_BYTES
from wiresum_lab.ranks.cluster import Cluster, runs_in
from wiresum_lab.ranks.cluster_worker import lanes

BLOCKS = 1500  # so many that the saving exceeds the cost of the round trips even on a busy machine


def sent_once(before: SessionStats, after: SessionStats, block: int) -> int:
    """Bytes sent between the two, without retransmissions, which a busy machine causes now and then."""
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


TURNING_BLOCKS = 3000


def sums_that_turn_dense(rank: int, size: int) -> None:
    """Sums four tensors of the same size, of which the first is sparse and the later ones dense, with several in
    flight."""
    block = lanes()
    inputs = []
    for call in range(4):
        blocks = torch.zeros(TURNING_BLOCKS, block)
        if call == 0:
            blocks[rank::8] = 1.0 + rank
        else:
            blocks[torch.arange(TURNING_BLOCKS) % 20 != rank] = float(call)
        inputs.append(blocks)
    tensors = [tensor.clone().reshape(-1) for tensor in inputs]
    dist.all_reduce(tensors[0])
    for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors[1:]]:
        work.wait()
    sparse_sum = torch.zeros(TURNING_BLOCKS, block)
    for other in range(size):
        sparse_sum[other::8] += 1.0 + other
    assert torch.equal(tensors[0], sparse_sum.reshape(-1))
    for call, tensor in enumerate(tensors[1:], start=1):
        dense_sum = torch.zeros(TURNING_BLOCKS, block)
        for other in range(size):
            dense_sum[torch.arange(TURNING_BLOCKS) % 20 != other] += float(call)
        wrong = int((tensor != dense_sum.reshape(-1)).sum())
        assert wrong == 0, f"{wrong} elements of call {call} are wrong"


def test_sums_that_turn_dense_while_many_are_in_flight_are_exact(trio: Cluster) -> None:
    for _ in range(3):
        trio.run(sums_that_turn_dense)


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


def rounded_sums(rank: int, size: int) -> list[float]:
    """Sums random numbers, which are rounded: results are close to the true sum, and the same bits at every worker."""
    elements = BLOCKS * 360
    generator = torch.Generator().manual_seed(7)
    there = torch.rand(size, elements, generator=generator) < 0.01
    inputs = torch.randn(size, elements, generator=generator) * there
    sums = []
    for _ in range(3):
        tensor = inputs[rank].clone()
        dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
        everybody = [torch.zeros_like(tensor) for _ in range(size)]
        dist.all_gather(everybody, tensor)
        assert all(torch.equal(other, tensor) for other in everybody)
        assert torch.equal(tensor != 0, there.any(0))
        torch.testing.assert_close(
            tensor, inputs.double().mean(0).float(), rtol=0, atol=1e-7 * float(inputs.abs().max())
        )
        sums.append(float(tensor.double().sum()))
    return sums


def test_rounded_sums_have_the_same_bits_at_all_workers(trio: Cluster) -> None:
    results = trio.run(rounded_sums)
    assert all(sums == results[0] for sums in results)
