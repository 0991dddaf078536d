"""The error of a sum of floats at each WIRESUM_PRECISION, for ordinary and for adversarial tensors."""

from __future__ import annotations

import io
import logging
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import wiresum.torch
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.ranks import network_sum
from wiresum_lab.ranks.cluster import runs_in
from wiresum_lab.ranks.cluster_worker import lanes as lanes_of
from wiresum_lab.ranks.network_sum import assert_same_bits

FLOATS = [torch.float32, torch.float16, torch.bfloat16]


def inputs_of(size: int, count: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Losses, counts and rates side by side for each worker. The last worker cancels the first, so that the sum is
    small."""
    generator = torch.Generator().manual_seed(count)
    scales = torch.tensor([1.0, 1e9, 1e-6, 1e-30]).repeat(count // 4 + 1)[:count]
    inputs = [(torch.randn(count, generator=generator) * scales).to(dtype) for _ in range(size)]
    inputs[-1][::2] = -inputs[0][::2]
    return inputs


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@runs_in("trio")
def test_short_sums_and_means_are_rounded_once(rank: int, size: int, dtype: torch.dtype) -> None:
    before = wiresum.torch.stats().network.exact_sums
    counts = (1, 700, network_sum.EXACT_ELEMENTS_MAX)
    for count in counts:
        inputs = inputs_of(size, count, dtype)
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
            tensor = inputs[rank].clone()
            dist.all_reduce(tensor, op=op)
            assert_same_bits(tensor, network_sum.exact_sum(inputs, average=op == dist.ReduceOp.AVG))
    assert wiresum.torch.stats().network.exact_sums == before + 2 * len(counts)


@runs_in("trio")
def test_a_longer_tensors_average_is_inf_where_its_sum_is(rank: int, size: int) -> None:
    """Block floating point sums before it divides, see docs/numerics.md."""
    tensor = torch.full((4097,), 3e38)
    dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
    assert tensor.isposinf().all()


@pytest.mark.parametrize("count", [4096, 5000])  # exactly, and in blocks
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@runs_in("trio")
def test_one_inf_in_a_tensor_of_any_length_stays_alone(rank: int, size: int, count: int, dtype: torch.dtype) -> None:
    inputs = [torch.arange(count).remainder(7).to(dtype) + k for k in range(size)]
    inputs[1][count // 2] = float("inf")
    tensor = inputs[rank].clone()
    dist.all_reduce(tensor)
    assert tensor.isinf().nonzero().tolist() == [[count // 2]] and not tensor.isnan().any()
    assert_same_bits(tensor, torch.stack(inputs).float().sum(0).to(dtype))


@runs_in("trio")
def test_every_collective_that_sums_keeps_inf_and_small_numbers(rank: int, size: int) -> None:
    inputs = [torch.full((3 * 3000,), 1e-6 * (k + 1)) for k in range(size)]
    inputs[0][5], inputs[1][7000], inputs[2][8001] = 1e4, float("inf"), float("nan")
    group = dist.new_group(pg_options=wiresum.torch.Options(precision="adaptive"))
    expected = network_sum.exact_sum(inputs)
    whole = [inputs[rank].clone() for _ in range(4)]  # calls that overlap
    for work in [dist.all_reduce(tensor, async_op=True, group=group) for tensor in whole]:
        work.wait()
    for tensor in whole:
        assert_same_bits(tensor.nan_to_num(7.0), expected.nan_to_num(7.0))
    scattered = torch.empty(3000)
    dist.reduce_scatter_tensor(scattered, inputs[rank].clone(), group=group)
    assert_same_bits(scattered.nan_to_num(7.0), expected[rank * 3000 : (rank + 1) * 3000].nan_to_num(7.0))
    reduced = inputs[rank].clone()
    dist.reduce(reduced, 1, group=group)
    assert_same_bits(reduced.nan_to_num(7.0), (expected if rank == 1 else inputs[rank]).nan_to_num(7.0))
    dist.destroy_process_group(group)


def chunk_counts(group: dist.ProcessGroup | None = None) -> tuple[int, int]:
    network = wiresum.torch.stats(group).network
    assert network is not None
    return network.chunks_exact, network.chunks_wide


@runs_in("trio")
def test_stats_count_what_was_summed_again(rank: int, size: int) -> None:
    tensor = torch.ones(5000)
    exact, wide = chunk_counts()
    dist.all_reduce(tensor)
    assert chunk_counts() == (exact, wide)
    tensor[3] = float("nan")
    dist.all_reduce(tensor)
    assert chunk_counts() == (exact + 1, wide)


@runs_in("trio")
def test_in_blocks_lost_digits_are_counted_and_warned_of_once(rank: int, size: int) -> None:
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    logger = logging.getLogger("wiresum.agent.job_membership")
    logger.addHandler(handler)
    for precision in ("auto", "block"):
        group = dist.new_group(pg_options=wiresum.torch.Options(precision=precision))
        tensor = torch.full((5000,), 1e-6)
        tensor[0] = 1e4
        tensor[4999] = float("inf")
        dist.all_reduce(tensor, group=group)
        assert tensor[1] == 0 and tensor[4998] != 0 and tensor.isinf().sum() == 1 and not tensor.isnan().any()
        assert chunk_counts(group) == (1, 1)
        dist.destroy_process_group(group)
    logger.removeHandler(handler)
    assert text.getvalue().count("lost most of their digits") == 1
    assert text.getvalue().count("WIRESUM_PRECISION=adaptive") == 1


@runs_in("trio")
def test_a_group_can_ask_for_exact_sums_of_long_tensors(rank: int, size: int) -> None:
    group = dist.new_group(pg_options=wiresum.torch.Options(precision="exact"))
    inputs = inputs_of(size, 9011)
    tensor = inputs[rank].clone()
    dist.all_reduce(tensor, group=group)
    assert_same_bits(tensor, network_sum.exact_sum(inputs))
    scattered = torch.empty(2500)
    inputs = inputs_of(size, 2500 * size)
    dist.reduce_scatter_tensor(scattered, inputs[rank].clone(), group=group)
    assert_same_bits(scattered, network_sum.exact_sum(inputs)[rank * 2500 : (rank + 1) * 2500])
    dist.destroy_process_group(group)


@runs_in("trio")
def test_a_group_can_ask_for_block_sums_of_short_tensors(rank: int, size: int) -> None:
    group = dist.new_group(pg_options=wiresum.torch.Options(precision="block"))
    lanes = lanes_of(group)
    inputs = inputs_of(size, 1000)
    tensor = inputs[rank].clone()
    dist.all_reduce(tensor, group=group)
    assert_same_bits(tensor, network_sum.block_sum(inputs, lanes=lanes))
    assert wiresum.torch.stats(group).network.exact_sums == 0  # type: ignore[union-attr]
    dist.destroy_process_group(group)


@runs_in("trio")
def test_workers_with_different_precisions_get_an_error(rank: int, size: int) -> None:
    options = wiresum.torch.Options(precision="block" if rank == 1 else "exact")
    with pytest.raises(dist.DistBackendError, match="WIRESUM_PRECISION is "):
        dist.new_group(pg_options=options, timeout=timedelta(seconds=PATIENCE_S))


INDEPENDENT = {
    "exact": (wiresum.torch.Options(precision="exact"), True),
    "int32": (wiresum.torch.Options(), True),
    "fixed": (wiresum.torch.Options(fixed_scale=1024.0), True),
    "auto": (wiresum.torch.Options(precision="auto"), False),
    "block": (wiresum.torch.Options(precision="block"), False),
    "adaptive": (wiresum.torch.Options(precision="adaptive"), False),
    "16 bits": (wiresum.torch.Options(precision="block", bits=16), False),
}
"""True, for each way of rounding, if a sum has the same bits in a batch of any size."""


@pytest.mark.parametrize("way", INDEPENDENT)
@runs_in("trio")
def test_which_sums_do_not_depend_on_the_rest_of_the_batch(rank: int, size: int, way: str) -> None:
    """Sums one request's numbers alone and between larger and smaller ones of others: docs/numerics.md."""
    options, is_independent = INDEPENDENT[way]
    group = dist.new_group(pg_options=options)
    generator = torch.Generator().manual_seed(rank)
    request = torch.randn(700, generator=generator)
    sums = set()
    for before, after in ((0, 0), (3, 0), (0, 9000), (5000, 700), (4097, 13)):
        first, last = (scale * torch.randn(n, generator=generator) for scale, n in ((1e3, before), (1e-3, after)))
        batch = torch.cat([first, request, last])
        batch = (1000 * batch).int() if way == "int32" else batch
        dist.all_reduce(batch, group=group)
        sums.add(tuple(batch[before : before + len(request)].tolist()))
    assert (len(sums) == 1) == is_independent
    dist.destroy_process_group(group)
