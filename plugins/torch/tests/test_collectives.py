"""Collectives that run in the network: each result is compared bit for bit with the expected one."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager

import wiresum.torch
from wiresum_lab.ranks import network_sum
from wiresum_lab.ranks.cluster import runs_in
from wiresum_lab.ranks.cluster_worker import lanes, world
from wiresum_lab.ranks.network_sum import assert_same_bits

FLOATS = [torch.float32, torch.float16, torch.bfloat16]
SUMMED = [*FLOATS, torch.int32]
COPIED = [*SUMMED, torch.float64, torch.int64, torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64]
SIZES = [1, 7, 360, 361, 5000, 100_003]


def values(rank: int, elements: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """This rank's contribution: random, with magnitudes that differ greatly from block to block."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    if dtype == torch.bool:
        return torch.randint(0, 2, (elements,), generator=generator).to(dtype)
    if not dtype.is_floating_point and not dtype.is_complex:
        return torch.randint(-100, 100, (elements,), generator=generator).to(dtype)
    plain = torch.randn(elements, generator=generator, dtype=torch.float32)
    magnitudes = torch.exp2(torch.arange(elements, dtype=torch.float32).div(700).floor().remainder(9) - 4)
    return (plain * magnitudes).to(dtype)


def expected_sum(inputs: list[torch.Tensor], *, average: bool = False, bits: int = 32) -> torch.Tensor:
    return network_sum.all_reduce(inputs, lanes=lanes(), bits=bits, average=average)


def went_through_network(before: wiresum.torch.GroupStats, name: str) -> None:
    after = wiresum.torch.stats()
    assert after.collectives_network[name] > before.collectives_network[name]
    assert after.collectives_gloo == before.collectives_gloo


@pytest.mark.parametrize("dtype", SUMMED, ids=str)
@runs_in("trio")
def test_all_reduce_gives_the_exact_integer_sum(rank: int, size: int, dtype: torch.dtype) -> None:
    before = wiresum.torch.stats()
    for seed, elements in enumerate(SIZES):
        inputs = [values(k, elements, dtype, seed) for k in range(size)]
        tensor = inputs[rank].clone()
        dist.all_reduce(tensor)
        assert_same_bits(tensor, expected_sum(inputs))
    went_through_network(before, "all_reduce")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@runs_in("trio")
def test_average_divides_the_exact_sum(rank: int, size: int, dtype: torch.dtype) -> None:
    inputs = [values(k, 3000, dtype) for k in range(size)]
    tensor = inputs[rank].clone()
    dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
    assert_same_bits(tensor, expected_sum(inputs, average=True))


@runs_in("trio")
def test_average_of_integers_rounds_towards_zero(rank: int, size: int) -> None:
    inputs = [values(k, 3000, torch.int32) for k in range(size)]
    tensor = inputs[rank].clone()
    dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
    assert_same_bits(tensor, torch.stack(inputs).sum(0).div(size, rounding_mode="trunc").to(torch.int32))


@runs_in("trio")
def test_int32_wraps_as_in_pytorch(rank: int, size: int) -> None:
    tensor = torch.tensor([2**31 - 1 - rank, -(2**31) + rank, rank], dtype=torch.int32)
    inputs = [torch.tensor([2**31 - 1 - k, -(2**31) + k, k], dtype=torch.int32) for k in range(size)]
    dist.all_reduce(tensor)
    assert_same_bits(tensor, expected_sum(inputs))


@runs_in("trio")
def test_infinity_and_nan_reach_every_worker_and_zeros_stay_zero(rank: int, size: int) -> None:
    blocks = network_sum.EXACT_ELEMENTS_MAX // lanes() + 3
    tensor = torch.ones(blocks * lanes())
    expected = tensor * size
    expected[5], expected[2 * lanes() + 5] = float("inf"), float("nan")
    if rank == 1:
        tensor[5] = float("inf")
        tensor[2 * lanes() + 5] = float("nan")
    dist.all_reduce(tensor)
    torch.testing.assert_close(tensor, expected, rtol=0, atol=0, equal_nan=True)
    zeros = torch.zeros(1000)
    dist.all_reduce(zeros)
    assert_same_bits(zeros, torch.zeros(1000))


@pytest.mark.parametrize("dtype", COPIED, ids=str)
@runs_in("trio")
def test_broadcast_copies_every_bit(rank: int, size: int, dtype: torch.dtype) -> None:
    before = wiresum.torch.stats()
    for root in range(size):
        tensor = values(rank, 4001, dtype, root)
        dist.broadcast(tensor, src=root)
        assert_same_bits(tensor, values(root, 4001, dtype, root))
    went_through_network(before, "broadcast")


@runs_in("trio")
def test_broadcast_keeps_nan_payloads(rank: int, size: int) -> None:
    bits = torch.randint(0, 256, (4096,), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    tensor = bits.view(torch.float32).clone() if rank == 0 else torch.zeros(1024)
    dist.broadcast(tensor, src=0)
    assert torch.equal(tensor.view(torch.uint8), bits)


@pytest.mark.parametrize("dtype", COPIED, ids=str)
@runs_in("trio")
def test_all_gather_copies_every_bit(rank: int, size: int, dtype: torch.dtype) -> None:
    before = wiresum.torch.stats()
    expected = [values(k, 1003, dtype) for k in range(size)]
    outputs = [torch.zeros(1003, dtype=dtype) for _ in range(size)]
    dist.all_gather(outputs, expected[rank].clone())
    for output, want in zip(outputs, expected, strict=True):
        assert_same_bits(output, want)
    together = torch.zeros(size * 1003, dtype=dtype)
    dist.all_gather_into_tensor(together, expected[rank].clone())
    assert_same_bits(together, torch.cat(expected))
    in_place = torch.zeros(size, 1003, dtype=dtype)
    in_place[rank] = expected[rank]
    dist.all_gather_into_tensor(in_place, in_place[rank])
    assert_same_bits(in_place.reshape(-1), torch.cat(expected))
    went_through_network(before, "all_gather")


@runs_in("trio")
def test_all_gather_takes_contributions_of_different_sizes(rank: int, size: int) -> None:
    expected = [values(k, 100 * k, torch.float32) for k in range(size)]  # rank 0 contributes nothing
    outputs = [torch.zeros(100 * k) for k in range(size)]
    dist.all_gather(outputs, expected[rank])
    for output, want in zip(outputs, expected, strict=True):
        assert_same_bits(output, want)


@runs_in("trio")
def test_coalesced_all_gathers(rank: int, size: int) -> None:
    mine = [values(rank, 10, torch.float32), values(rank, 20, torch.int64)]
    outputs = [[torch.zeros(10), torch.zeros(20, dtype=torch.int64)] for _ in range(size)]
    world().allgather_coalesced(outputs, mine).wait()
    for k in range(size):
        assert_same_bits(outputs[k][0], values(k, 10, torch.float32))
        assert_same_bits(outputs[k][1], values(k, 20, torch.int64))
    wholes = [torch.zeros(size * 10), torch.zeros(size * 5)]
    parts = [values(rank, 10, torch.float32), values(rank, 5, torch.float32)]
    with _coalescing_manager():
        for whole, part in zip(wholes, parts, strict=True):
            dist.all_gather_into_tensor(whole, part)
    for whole, elements in zip(wholes, (10, 5), strict=True):
        assert_same_bits(whole, torch.cat([values(k, elements, torch.float32) for k in range(size)]))


@pytest.mark.parametrize("dtype", SUMMED, ids=str)
@runs_in("trio")
def test_reduce_writes_the_sum_at_the_root_only(rank: int, size: int, dtype: torch.dtype) -> None:
    before = wiresum.torch.stats()
    for root in range(size):
        inputs = [values(k, 2500, dtype, root) for k in range(size)]
        tensor = inputs[rank].clone()
        dist.reduce(tensor, dst=root)
        assert_same_bits(tensor, expected_sum(inputs) if rank == root else inputs[rank])
    went_through_network(before, "reduce")


@pytest.mark.parametrize("elements", [1301, 4501])
@pytest.mark.parametrize("dtype", SUMMED, ids=str)
@runs_in("trio")
def test_reduce_scatter_gives_each_worker_its_part_of_the_sum(
    rank: int, size: int, dtype: torch.dtype, elements: int
) -> None:
    before = wiresum.torch.stats()
    parts = [[values(k, elements, dtype, seed=part) for part in range(size)] for k in range(size)]
    expected = expected_sum([parts[k][rank] for k in range(size)])
    output = torch.zeros(elements, dtype=dtype)
    contribution = [part.clone() for part in parts[rank]]
    dist.reduce_scatter(output, contribution)
    assert_same_bits(output, expected)
    for tensor, want in zip(contribution, parts[rank], strict=True):
        assert_same_bits(tensor, want)
    output = torch.zeros(elements, dtype=dtype)
    dist.reduce_scatter_tensor(output, torch.cat(parts[rank]))
    assert_same_bits(output, expected)
    whole = torch.cat(parts[rank])
    dist.reduce_scatter_tensor(whole.view(size, -1)[rank], whole)
    assert_same_bits(whole.view(size, -1)[rank], expected)
    went_through_network(before, "reduce_scatter")


@runs_in("trio")
def test_coalesced_reduce_scatters(rank: int, size: int) -> None:
    outputs = [torch.zeros(10), torch.zeros(20)]
    inputs = [values(rank, 10 * size, torch.float32, 1), values(rank, 20 * size, torch.float32, 2)]
    with _coalescing_manager():
        for output, contribution in zip(outputs, inputs, strict=True):
            dist.reduce_scatter_tensor(output, contribution, op=dist.ReduceOp.AVG)
    for seed, output in enumerate(outputs, start=1):
        n = output.numel()
        everybody = [values(k, n * size, torch.float32, seed)[rank * n : (rank + 1) * n] for k in range(size)]
        assert_same_bits(output, expected_sum(everybody, average=True))


@runs_in("trio")
def test_coalesced_all_reduces_of_different_sizes_and_types(rank: int, size: int) -> None:
    kinds = [(5, torch.float32), (700, torch.int32), (0, torch.float32), (900, torch.float32), (3, torch.bfloat16)]
    tensors = [values(rank, n, dtype, seed) for seed, (n, dtype) in enumerate(kinds)]
    world().allreduce_coalesced(tensors).wait()
    for seed, ((n, dtype), tensor) in enumerate(zip(kinds, tensors, strict=True)):
        assert_same_bits(tensor, expected_sum([values(k, n, dtype, seed) for k in range(size)]))
    tensors = [values(rank, n, torch.float32, n) for n in (4, 800)]
    with _coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    for tensor in tensors:
        n = tensor.numel()
        assert_same_bits(tensor, expected_sum([values(k, n, torch.float32, n) for k in range(size)]))


@runs_in("trio")
def test_barrier_runs_in_the_network(rank: int, size: int) -> None:
    before = wiresum.torch.stats()
    for _ in range(3):
        dist.barrier()
    work = dist.barrier(async_op=True)
    assert work.wait()
    went_through_network(before, "barrier")


@runs_in("trio")
def test_any_memory_layout_gives_the_same_sum_even_if_workers_differ(rank: int, size: int) -> None:
    def check(view: torch.Tensor, inputs: list[torch.Tensor]) -> None:
        dist.all_reduce(view)
        assert torch.equal(view, torch.stack(inputs).sum(0))

    grids = [torch.arange(48.0).reshape(6, 8) + k for k in range(size)]
    check(grids[rank].clone().t(), [grid.t() for grid in grids])
    storage = torch.zeros(6, 16)
    storage[:, ::2] = grids[rank]
    check(storage[:, ::2], grids)
    assert (storage[:, 1::2] == 0).all()
    images = [torch.arange(48.0).reshape(1, 3, 4, 4) * (k + 1) for k in range(size)]
    memory_format = torch.channels_last if rank == 1 else torch.contiguous_format
    check(images[rank].clone(memory_format=memory_format), images)
    check(torch.tensor(float(rank)), [torch.tensor(float(k)) for k in range(size)])


@runs_in("trio")
def test_copies_and_scatters_of_strided_tensors(rank: int, size: int) -> None:
    target = torch.zeros(10, 4, dtype=torch.int64).t() if rank else torch.arange(40).reshape(4, 10)
    dist.broadcast(target, src=0)
    assert torch.equal(target, torch.arange(40).reshape(4, 10))
    outputs = [torch.zeros(10, 4).t() for _ in range(size)]
    dist.all_gather(outputs, (torch.arange(40.0).reshape(10, 4) + rank).t())
    for k, output in enumerate(outputs):
        assert torch.equal(output, (torch.arange(40.0).reshape(10, 4) + k).t())
    output = torch.zeros(5, 4).t()
    dist.reduce_scatter(output, [(torch.arange(20.0).reshape(5, 4) * part + rank).t() for part in range(size)])
    assert torch.equal(output, (torch.arange(20.0).reshape(5, 4) * rank * size + sum(range(size))).t())
    flipped = torch.complex(torch.zeros(8), torch.full((8,), float(rank + 1))).conj().imag  # negative bit set
    written = flipped.resolve_neg()
    dist.all_reduce(written)
    assert torch.equal(written, torch.full((8,), -float(sum(range(1, size + 1)))))
    dist.all_reduce(flipped)  # PyTorch gives any backend a resolved copy
    assert torch.equal(flipped, torch.full((8,), -float(rank + 1)))


@runs_in("trio")
def test_empty_tensors_complete_at_once(rank: int, size: int) -> None:
    empty = torch.zeros(0)
    dist.all_reduce(empty)
    dist.broadcast(empty, src=1)
    dist.reduce(empty, dst=0)
    dist.all_gather([torch.zeros(0) for _ in range(size)], empty)
    dist.reduce_scatter(empty, [torch.zeros(0) for _ in range(size)])
    assert dist.all_reduce(empty, async_op=True).get_future().wait()[0] is empty
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert torch.equal(tensor, torch.full((3,), float(size)))


@runs_in("trio")
def test_a_leaf_that_requires_gradients_can_be_summed(rank: int, size: int) -> None:
    leaf = torch.ones(100, requires_grad=True)
    with torch.no_grad():
        dist.all_reduce(leaf)
    assert (leaf == size).all() and leaf.requires_grad


@runs_in("trio")
def test_sizes_that_do_not_fit_raise_before_anything_is_sent(rank: int, size: int) -> None:
    with pytest.raises(ValueError, match="must have"):
        dist.all_gather_into_tensor(torch.zeros(size * 3 + 1), torch.zeros(3))
    with pytest.raises(ValueError, match="elements"):
        dist.all_gather([torch.zeros(4) for _ in range(size)], torch.zeros(3))
    for parts in (size - 1, size + 1):
        with pytest.raises(ValueError, match=f"each of the {size} workers, and has {parts}"):
            dist.all_gather([torch.zeros(3) for _ in range(parts)], torch.zeros(3))
        with pytest.raises(ValueError, match=f"each of the {size} workers, and has {parts}"):
            dist.reduce_scatter(torch.zeros(3), [torch.zeros(3) for _ in range(parts)])
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert (tensor == size).all()


@pytest.mark.parametrize("root", [-1, 3])
@runs_in("trio")
def test_a_root_that_is_not_there_raises_before_anything_is_sent(rank: int, size: int, root: int) -> None:
    tensor = torch.ones(3)
    with pytest.raises(ValueError, match=f"broadcast: the root is rank {root}"):
        dist.broadcast(tensor, root)
    with pytest.raises(ValueError, match=f"reduce: the root is rank {root}"):
        dist.reduce(tensor, root)
    assert (tensor == 1).all()
    dist.all_reduce(tensor)
    assert (tensor == size).all()


@runs_in("trio")
def test_functional_collectives_reach_the_network(rank: int, size: int) -> None:
    import torch.distributed._functional_collectives as functional_collectives

    group = world()
    before = wiresum.torch.stats()
    tensor = functional_collectives.all_reduce(torch.full((10,), rank + 1.0), "sum", group)
    assert (tensor + 0 == sum(range(1, size + 1))).all()
    gathered = functional_collectives.all_gather_tensor(torch.full((2,), float(rank)), 0, group)
    assert (gathered + 0).tolist() == [float(k) for k in range(size) for _ in range(2)]
    scattered = functional_collectives.reduce_scatter_tensor(torch.ones(2 * size), "sum", 0, group)
    assert (scattered + 0).tolist() == [float(size)] * 2
    went_through_network(before, "all_reduce")
