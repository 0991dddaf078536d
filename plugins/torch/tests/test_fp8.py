"""Sums of fp8 are exact, rounded once to the format: docs/numerics.md."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

import wiresum.torch
from wiresum_lab.ranks import network_sum
from wiresum_lab.ranks.cluster import runs_in

FP8 = [torch.float8_e4m3fn, torch.float8_e5m2]
AVERAGE = dist.ReduceOp.AVG


def of(bits: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return bits.to(torch.uint8).view(dtype)


def random_bytes(rank: int, elements: int, dtype: torch.dtype) -> torch.Tensor:
    """All 256 values, also Inf and NaN."""
    return of(torch.randint(0, 256, (elements,), generator=torch.Generator().manual_seed(1000 + rank)), dtype)


def assert_same(found: torch.Tensor, expected: torch.Tensor) -> None:
    """The same bits, but any NaN is as good as another."""
    assert found.dtype == expected.dtype and found.shape == expected.shape
    missing = found.isnan()
    assert torch.equal(missing, expected.isnan())
    assert torch.equal(found.view(torch.uint8)[~missing], expected.view(torch.uint8)[~missing])


def by_fractions(inputs: list[torch.Tensor], *, average: bool = False) -> torch.Tensor:
    return network_sum.exact_sum(inputs, average=average)


@pytest.mark.parametrize("dtype", FP8, ids=str)
@runs_in("trio")
def test_all_reduces_are_rounded_once_whatever_the_length_and_the_settings(
    rank: int, size: int, dtype: torch.dtype
) -> None:  # R5.29
    coarse = dist.new_group(pg_options=wiresum.torch.Options(precision="block", bits=8))
    scaled = dist.new_group(pg_options=wiresum.torch.Options(fixed_scale=3.0))
    before = wiresum.torch.stats()
    for elements in (1, 360, 5000):
        inputs = [random_bytes(k, elements, dtype) for k in range(size)]
        for op in (dist.ReduceOp.SUM, AVERAGE):
            expected = by_fractions(inputs, average=op == AVERAGE)
            for group in (None, coarse, scaled):
                tensor = inputs[rank].clone()
                dist.all_reduce(tensor, op, group=group)
                assert_same(tensor, expected)
            strided = torch.stack([inputs[rank].view(torch.uint8)] * 2, dim=-1).view(dtype)[..., 0]
            dist.all_reduce(strided, op)  # not by the direct path
            assert_same(strided.contiguous(), expected)
    after = wiresum.torch.stats()
    assert after.collectives_gloo == before.collectives_gloo
    assert after.network is not None and before.network is not None
    assert after.network.exact_sums == before.network.exact_sums + 12
    for group in (coarse, scaled):
        dist.destroy_process_group(group)


@pytest.mark.parametrize("dtype", FP8, ids=str)
@runs_in("trio")
def test_each_worker_gets_its_part_of_the_rounded_sum(rank: int, size: int, dtype: torch.dtype) -> None:
    elements = 4501
    inputs = [random_bytes(k, size * elements, dtype) for k in range(size)]
    for op in (dist.ReduceOp.SUM, AVERAGE):
        expected = by_fractions(inputs, average=op == AVERAGE)
        single, listed = (torch.zeros(elements).to(dtype) for _ in range(2))
        dist.reduce_scatter_tensor(single, inputs[rank], op)
        dist.reduce_scatter(listed, list(inputs[rank].clone().chunk(size)), op)
        for part in (single, listed):
            assert_same(part, expected[rank * elements : (rank + 1) * elements])
        reduced = inputs[rank].clone()
        dist.reduce(reduced, 1, op)
        assert_same(reduced, expected if rank == 1 else inputs[rank])


@pytest.mark.parametrize("dtype", FP8, ids=str)
@runs_in("trio")
def test_rank_0_gathers_the_bytes_of_all(rank: int, size: int, dtype: torch.dtype) -> None:
    inputs = [random_bytes(k, 100, dtype) for k in range(size)]
    gathered = [torch.zeros(100).to(dtype) for _ in range(size)] if rank == 0 else None
    dist.gather(inputs[rank], gathered)
    for part, expected in zip(gathered or [], inputs, strict=False):
        assert torch.equal(part.view(torch.uint8), expected.view(torch.uint8))


@pytest.mark.parametrize("dtype", FP8, ids=str)
@runs_in("trio")
def test_what_rounds_beyond_the_format_is_infinite_or_the_largest_number(
    rank: int, size: int, dtype: torch.dtype
) -> None:
    largest = torch.finfo(dtype).max
    terms = torch.tensor(
        [
            [largest, largest, largest, -largest, 0.0, -0.0, float("nan"), 1.0],
            [largest / 28, largest / 14, largest, -largest, 0.0, -0.0, 1.0, -1.0],
            [0.0, 0.0, -largest, -largest, 0.0, -0.0, 1.0, 0.0],
        ]
    )
    tensor = terms[rank].to(dtype)
    inputs = [row.to(dtype) for row in terms]
    dist.all_reduce(tensor)
    exact = torch.stack(inputs).float().sum(0)
    if dtype == torch.float8_e4m3fn:  # as PyTorch 2.13 does by itself
        exact = exact.clamp(-largest, largest)
    assert_same(tensor, exact.to(dtype))
    assert_same(tensor, by_fractions(inputs))
    assert not tensor[4:6].view(torch.uint8).any(), "zeros are +0"
    tensor = inputs[rank].clone()
    dist.all_reduce(tensor, AVERAGE)
    assert tensor[2].float() == torch.tensor(largest / 3).to(dtype).float(), "finite, although a partial sum is not"


@runs_in("trio")
def test_other_sums_of_fp8_are_refused_at_all_workers_and_change_nothing(rank: int, size: int) -> None:
    e4m3 = torch.ones(10).to(FP8[0])
    sparse = torch.sparse_coo_tensor(torch.tensor([[1]]), e4m3[:1], (3,), check_invariants=False)
    for tensor, op in (
        (e4m3, dist.ReduceOp.MAX),
        (torch.ones(10).to(torch.float8_e4m3fnuz), dist.ReduceOp.SUM),
        (torch.ones(10).to(torch.float8_e5m2fnuz), AVERAGE),
        (sparse, dist.ReduceOp.SUM),
    ):
        with pytest.raises(TypeError, match="convert the tensors to float32"):
            dist.all_reduce(tensor, op)
        if tensor is not sparse:  # PyTorch has no reduce of these
            with pytest.raises(TypeError, match="convert the tensors to float32"):
                dist.reduce(tensor, 0, op)
    with pytest.raises(TypeError, match="16 bits or more"):
        dist.all_reduce(e4m3, dist._make_nccl_premul_sum(2.0))  # type: ignore[attr-defined]
    dist.all_reduce(e4m3)
    assert (e4m3.float() == size).all()


@runs_in("trio")
def test_calls_with_two_types_of_fp8_do_not_match(rank: int, size: int) -> None:
    group = dist.new_group()
    tensor = torch.ones(5000).to(FP8[rank % 2])
    with pytest.raises(dist.DistBackendError, match="float8_e5m2"):
        dist.all_reduce(tensor, group=group)
    dist.destroy_process_group(group)


@runs_in("trio")
def test_a_group_of_one_worker_has_sums_of_any_fp8(rank: int, size: int) -> None:
    groups = [dist.new_group([member]) for member in range(size)]
    for dtype in [*FP8, torch.float8_e4m3fnuz]:
        given = random_bytes(rank, 100, dtype)
        for op in (dist.ReduceOp.SUM, AVERAGE):
            tensor, part = given.clone(), torch.zeros(100).to(dtype)
            dist.all_reduce(tensor, op, group=groups[rank])
            dist.reduce_scatter_tensor(part, given, op, group=groups[rank])
            assert torch.equal(tensor.view(torch.uint8), given.view(torch.uint8))
            assert torch.equal(part.view(torch.uint8), given.view(torch.uint8))


@runs_in("trio")
def test_fp8_and_other_types_in_one_call(rank: int, size: int) -> None:
    tensors = [torch.full((700,), rank + 1.0).to(dtype) for dtype in (torch.float32, *FP8)]
    options = dist.AllreduceCoalescedOptions()
    dist.group.WORLD.allreduce_coalesced(tensors, options).wait()  # type: ignore[union-attr]
    assert all((tensor.float() == 6).all() for tensor in tensors)


def as_mxfp8(rank: int, blocks: int) -> torch.Tensor:
    """Numbers of random MXFP8 blocks: 32 of e4m3, times a power of two (OCP Microscaling Formats, version 1.0)."""
    elements = random_bytes(rank, 32 * blocks, torch.float8_e4m3fn).float().nan_to_num(0.0).reshape(-1, 32)
    scales = torch.randint(-30, 30, (blocks, 1), generator=torch.Generator().manual_seed(rank))
    return torch.ldexp(elements, scales).reshape(-1)


def as_nvfp4(rank: int, blocks: int) -> torch.Tensor:
    """Numbers of random NVFP4 blocks, without the tensor's own scale: 16 of e2m1, times one of e4m3."""
    e2m1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    bits = torch.randint(0, 16, (blocks, 16), generator=torch.Generator().manual_seed(rank))
    scales = random_bytes(rank, blocks, torch.float8_e4m3fn).float().nan_to_num(0.0).abs()
    return (e2m1[bits & 7] * (1 - 2 * (bits >> 3)) * scales[:, None]).reshape(-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("numbers_of", [as_mxfp8, as_nvfp4])
@runs_in("trio")
def test_sums_of_block_scaled_numbers_are_rounded_once(
    rank: int, size: int, numbers_of: Any, dtype: torch.dtype
) -> None:
    exact = dist.new_group(pg_options=wiresum.torch.Options(precision="exact"))
    numbers = [numbers_of(k, 200) for k in range(size)]
    inputs = [each.to(dtype) for each in numbers]
    assert all(torch.equal(each.float(), number) for each, number in zip(inputs, numbers, strict=True))
    tensor = inputs[rank].clone()
    dist.all_reduce(tensor, group=exact)
    expected = network_sum.exact_sum(inputs)
    assert torch.equal(tensor, expected)
    dist.destroy_process_group(exact)
