"""How exact a sum of floats is, by WIRESUM_PRECISION, for ordinary and for adversarial tensors."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable
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


def normal(generator: torch.Generator, count: int) -> torch.Tensor:
    return torch.randn(count, generator=generator)


def heavy_tailed(generator: torch.Generator, count: int) -> torch.Tensor:
    return torch.randn(count, generator=generator) / torch.randn(count, generator=generator) ** 3


def mixed(generator: torch.Generator, count: int) -> torch.Tensor:
    """A loss, a count and a rate side by side."""
    scales = torch.tensor([1.0, 1e9, 1e-6, 1e-30])
    return torch.randn(count, generator=generator) * scales.repeat(count // 4 + 1)[:count]


def adversarial(generator: torch.Generator, count: int) -> torch.Tensor:
    """Random bits of finite floats: all exponents, both signs."""
    bits = torch.randint(-(2**31), 2**31, (count,), generator=generator, dtype=torch.int64).to(torch.int32)
    values = bits.view(torch.float32)
    return torch.where(values.isfinite(), values, torch.tensor(1e-38))


KINDS: dict[str, Callable[[torch.Generator, int], torch.Tensor]] = {
    kind.__name__: kind for kind in (normal, heavy_tailed, mixed, adversarial)
}


def inputs_of(kind: str, size: int, count: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """One tensor for each worker. With three or more, the last cancels the first, so that the sum is small."""
    generator = torch.Generator().manual_seed(count)
    inputs = [KINDS[kind](generator, count).clamp(-3e38, 3e38).to(dtype) for _ in range(size)]
    if size > 2:
        inputs[-1][::2] = -inputs[0][::2]
    return inputs


@runs_in("trio")
def test_loss_count_and_metric_in_one_tensor(rank: int, size: int) -> None:
    tensor = torch.tensor([2.3456789, 123456789.0, 0.001, 1.0])
    expected = network_sum.exact_sum([tensor] * size)
    dist.all_reduce(tensor)
    assert_same_bits(tensor, expected)
    assert torch.allclose(tensor, size * torch.tensor([2.3456789, 123456789.0, 0.001, 1.0]), rtol=2e-7, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@runs_in("trio")
def test_short_sums_are_rounded_once_whatever_else_the_tensor_holds(rank: int, size: int, kind: str) -> None:
    before = wiresum.torch.stats().network.exact_sums
    counts = [(dtype, count) for dtype in FLOATS for count in (1, 4, 700)]
    counts.append((torch.float32, network_sum.EXACT_ELEMENTS_MAX))
    for dtype, count in counts:
        inputs = inputs_of(kind, size, count, dtype)
        for average in (False, True):
            tensor = inputs[rank].clone()
            dist.all_reduce(tensor, op=dist.ReduceOp.AVG if average else dist.ReduceOp.SUM)
            assert_same_bits(tensor, network_sum.exact_sum(inputs, average=average))
    assert wiresum.torch.stats().network.exact_sums == before + 2 * len(counts)


@pytest.mark.parametrize("kind", KINDS)
@runs_in("trio")
def test_the_error_is_within_that_of_one_addition(rank: int, size: int, kind: str) -> None:
    """The error is measured in units of 2^-24 of the sum of magnitudes; one rounding costs at most 1."""
    inputs = [torch.clamp(tensor, -1e37, 1e37) for tensor in inputs_of(kind, size, 2000, torch.float32)]
    tensor = inputs[rank].clone()
    dist.all_reduce(tensor)
    exact, magnitudes = sum(x.double() for x in inputs), sum(x.double().abs() for x in inputs)
    bound = 2.0**-24 * magnitudes * (1 + 2.0**-20) + 2.0**-149
    assert ((tensor.double() - exact).abs() <= bound).all()


@runs_in("trio")
def test_infinity_and_nan_stay_where_they_are(rank: int, size: int) -> None:
    inputs = [torch.arange(6.0) + k for k in range(size)]
    inputs[0][1], inputs[1][2], inputs[2][3] = float("inf"), float("nan"), float("-inf")
    inputs[0][4], inputs[1][4] = float("inf"), float("-inf")
    tensor = inputs[rank].clone()
    dist.all_reduce(tensor)
    expected = torch.stack(inputs).sum(0)
    assert torch.equal(tensor.nan_to_num(123.0), expected.nan_to_num(123.0))
    assert tensor.isnan().tolist() == [False, False, True, False, True, False]


@runs_in("trio")
def test_an_average_that_fits_is_finite_though_the_sum_is_not(rank: int, size: int) -> None:
    for dtype, most in ((torch.float32, 3e38), (torch.bfloat16, 3e38), (torch.float16, 60000.0)):
        tensor = torch.full((3,), most, dtype=dtype)
        dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
        assert_same_bits(tensor, torch.full((3,), most, dtype=dtype))


@runs_in("trio")
def test_a_longer_tensors_average_is_inf_where_its_sum_is(rank: int, size: int) -> None:
    """Block floating point sums before it divides, see docs/numerics.md."""
    tensor = torch.full((4097,), 3e38)
    dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
    assert tensor.isposinf().all()


LENGTHS = [100, 4096, 4097, 5000]  # the last two are summed in blocks


@pytest.mark.parametrize("count", LENGTHS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@runs_in("trio")
def test_one_inf_in_a_tensor_of_any_length_stays_alone(rank: int, size: int, count: int, dtype: torch.dtype) -> None:
    inputs = [torch.arange(count).remainder(7).to(dtype) + k for k in range(size)]
    inputs[1][count // 2] = float("inf")
    tensor = inputs[rank].clone()
    dist.all_reduce(tensor)
    assert tensor.isinf().nonzero().tolist() == [[count // 2]] and not tensor.isnan().any()
    assert_same_bits(tensor, torch.stack(inputs).float().sum(0).to(dtype))


@pytest.mark.parametrize("count", LENGTHS)
@runs_in("trio")
def test_a_mask_of_minus_infinity_is_kept(rank: int, size: int, count: int) -> None:
    mask = torch.zeros(count)
    mask[::3] = float("-inf")
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
        tensor = mask.clone()
        dist.all_reduce(tensor, op=op)
        assert_same_bits(tensor, mask)


@pytest.mark.parametrize("count", LENGTHS)
@runs_in("trio")
def test_adaptive_keeps_a_small_number_beside_a_large_one_at_any_length(rank: int, size: int, count: int) -> None:
    group = dist.new_group(pg_options=wiresum.torch.Options(precision="adaptive"))
    values = torch.full((count,), 1e-6)
    values[::50] = 1e4
    tensor = values.clone()
    dist.all_reduce(tensor, group=group)
    assert_same_bits(tensor, network_sum.exact_sum([values] * size))
    dist.destroy_process_group(group)


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


@pytest.mark.slow
@runs_in("trio")
def test_a_group_can_ask_for_exact_sums_of_long_tensors(rank: int, size: int) -> None:
    group = dist.new_group(pg_options=wiresum.torch.Options(precision="exact"))
    for kind in KINDS:
        inputs = inputs_of(kind, size, 9011, torch.float32)
        tensors = [inputs[rank].clone() for _ in range(3)]
        works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
        for work in works:
            work.wait()
        expected = network_sum.exact_sum(inputs)
        for tensor in tensors:
            assert_same_bits(tensor, expected)
    scattered = torch.empty(2500)
    inputs = inputs_of("mixed", size, 2500 * size, torch.float32)
    dist.reduce_scatter_tensor(scattered, inputs[rank].clone(), group=group)
    assert_same_bits(scattered, network_sum.exact_sum(inputs)[rank * 2500 : (rank + 1) * 2500])
    dist.destroy_process_group(group)


@runs_in("trio")
def test_a_group_can_ask_for_block_sums_of_short_tensors(rank: int, size: int) -> None:
    group = dist.new_group(pg_options=wiresum.torch.Options(precision="block"))
    lanes = lanes_of(group)
    inputs = inputs_of("mixed", size, 1000, torch.float32)
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
