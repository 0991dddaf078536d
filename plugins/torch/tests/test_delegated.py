"""Operations that the switch does not do: small all-reduces of other types and operators, which each worker reduces by
itself, and all other operations of torch.distributed, which Gloo does."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
import torch
import torch.distributed as dist

import wiresum.torch
from wiresum.torch.plan import GATHERED_BYTES_MAX, SUMMED
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.ranks.cluster import runs_in
from wiresum_lab.ranks.cluster_worker import world
from wiresum_lab.ranks.network_sum import assert_same_bits

OTHER_TYPES = [torch.float64, torch.int64, torch.int8, torch.uint8]


def went_through_gloo(before: wiresum.torch.GroupStats, name: str) -> None:
    after = wiresum.torch.stats()
    assert after.collectives_gloo[name] > before.collectives_gloo[name]
    assert after.collectives_network == before.collectives_network


@pytest.mark.parametrize("dtype", OTHER_TYPES, ids=str)
@runs_in("trio")
def test_sums_of_types_that_the_network_does_not_add(rank: int, size: int, dtype: torch.dtype) -> None:
    before = wiresum.torch.stats()
    tensor = torch.arange(GATHERED_BYTES_MAX).remainder(30).to(dtype) + rank
    dist.all_reduce(tensor)
    assert torch.equal(tensor, torch.arange(GATHERED_BYTES_MAX).remainder(30).to(dtype) * size + sum(range(size)))
    tensor = torch.full((5,), rank + 1).to(dtype)
    dist.reduce(tensor, dst=1)
    assert rank != 1 or torch.equal(tensor, torch.full((5,), sum(range(1, size + 1))).to(dtype))
    output = torch.zeros(2, dtype=dtype)
    dist.reduce_scatter_tensor(output, torch.arange(2 * size).to(dtype))
    assert torch.equal(output, torch.tensor([2 * rank, 2 * rank + 1]).to(dtype) * size)
    dist.reduce_scatter(output, [torch.full((2,), part).to(dtype) for part in range(size)])
    assert torch.equal(output, torch.full((2,), rank * size).to(dtype))
    went_through_gloo(before, "all_reduce")


INTEGERS = [torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool]
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
OPERATORS = ["SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"]


def numbers(rank: int, dtype: torch.dtype, elements: int = 101) -> torch.Tensor:
    """Numbers of many magnitudes, with the type's extremes."""
    generator = torch.Generator().manual_seed(rank)
    if dtype == torch.bool:
        return torch.randint(0, 2, (elements,), generator=generator).to(dtype)
    if not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        made = torch.randint(max(limits.min, -(2**40)), min(limits.max, 2**40), (elements,), generator=generator)
        made[:2] = torch.tensor([limits.min, limits.max])
        return made.to(dtype)
    exponents = torch.randint(-12, 12, (elements,), generator=generator)
    return (torch.randn(elements, generator=generator, dtype=torch.float64) * torch.exp2(exponents)).to(dtype)


def in_order(values: list[torch.Tensor], name: str) -> torch.Tensor:
    """Sums and products of floats, each rounded to the type before the next, in the order of ranks."""
    rows = [value.double() for value in values]
    total = rows[0]
    for row in rows[1:]:
        total = (total + row if name == "SUM" else total * row).to(values[0].dtype).double()
    return total.to(values[0].dtype)


@pytest.mark.parametrize("name", OPERATORS)
@runs_in("trio")
# R6.2
def test_a_small_all_reduce_of_any_type_gives_what_gloo_gives_and_needs_none(rank: int, size: int, name: str) -> None:
    groups = globals().setdefault("groups", {})  # one for all operators
    gloo = groups.get("gloo") or groups.setdefault("gloo", dist.new_group(backend="gloo"))
    operator = getattr(dist.ReduceOp, name)
    for dtype in [*INTEGERS, *FLOATS, torch.int16]:
        values = [numbers(k, dtype) for k in range(size)]
        theirs, ours, before = values[rank].clone(), values[rank].clone(), wiresum.torch.stats()
        try:
            dist.all_reduce(theirs, operator, group=gloo)
        except RuntimeError:
            with pytest.raises(RuntimeError):
                dist.all_reduce(ours, operator)
            continue
        dist.all_reduce(ours, operator)
        assert wiresum.torch.stats().collectives_gloo == before.collectives_gloo, dtype
        if dtype == torch.bool:
            theirs = theirs.view(torch.uint8) != 0  # Gloo adds bytes
        if not dtype.is_floating_point or name in ("MIN", "MAX"):
            assert torch.equal(ours, theirs), (dtype, ours, theirs)
        elif name == "PRODUCT" or dtype not in SUMMED:
            assert_same_bits(ours, in_order(values, name))


def reduced(tensor: torch.Tensor, operator: Any, rank: int, size: int) -> torch.Tensor:
    """Reduces a copy of the tensor, and checks that all ranks get the same bits."""
    dist.all_reduce(tensor, operator)
    everybody = [torch.empty_like(tensor) for _ in range(size)]
    dist.all_gather(everybody, tensor)
    for other in everybody:
        assert_same_bits(other, tensor)
    return tensor


@runs_in("trio")
def test_small_minima_and_maxima_have_the_same_bits_everywhere(rank: int, size: int) -> None:
    nan, zeros = float("nan"), [(-1.0) ** k * 0.0 for k in range(67)]
    for dtype in FLOATS:
        mine = torch.tensor([nan if rank == 1 else 2.0, float(rank), *(zero * (-1.0) ** rank for zero in zeros)])
        for operator, expected in ((dist.ReduceOp.MIN, 0.0), (dist.ReduceOp.MAX, size - 1.0)):
            found = reduced(mine.to(dtype, copy=True), operator, rank, size)
            assert found[0].isnan() and found[1].item() == expected and not found[2:].any()


@runs_in("trio")
def test_small_all_reduces_of_any_layout_in_all_ways(rank: int, size: int) -> None:
    before, whole = wiresum.torch.stats(), torch.arange(12).reshape(3, 4)
    expected = whole + size - 1
    strided = torch.zeros(4, 6, dtype=torch.int64)[:, ::2].t()
    for tensor in ((whole + rank).t().contiguous().t(), strided.copy_(whole + rank), (whole + rank).expand(1, 3, 4)):
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        assert torch.equal(tensor.reshape(3, 4), expected)
    works = [dist.all_reduce(torch.tensor(rank + k), dist.ReduceOp.MIN, async_op=True) for k in range(20)]
    assert [work.get_future().wait()[0].item() for work in reversed(works)] == list(reversed(range(20)))
    both = [torch.full((3,), rank, dtype=torch.int64), torch.full((5,), rank == 1)]
    world().allreduce_coalesced(both, coalesced(dist.ReduceOp.BOR)).wait()
    assert both[0].tolist() == [3] * 3 and both[1].all()
    dist.all_reduce(empty := torch.zeros(0, dtype=torch.int64), dist.ReduceOp.MAX)
    assert not empty.numel() and wiresum.torch.stats().collectives_gloo == before.collectives_gloo


def coalesced(operator: Any) -> dist.AllreduceCoalescedOptions:
    options = dist.AllreduceCoalescedOptions()
    options.reduceOp = operator
    return options


@runs_in("trio")
def test_what_is_small_depends_on_the_bytes_of_all_ranks(rank: int, size: int) -> None:
    for elements, goes_through_gloo in ((GATHERED_BYTES_MAX // size, False), (GATHERED_BYTES_MAX // size + 1, True)):
        before, tensor = wiresum.torch.stats(), torch.full((elements,), 1 << rank, dtype=torch.uint8)
        dist.all_reduce(tensor, dist.ReduceOp.BXOR)
        after = wiresum.torch.stats()
        assert (tensor == 2**size - 1).all()
        assert (after.collectives_gloo["all_reduce"] > before.collectives_gloo["all_reduce"]) == goes_through_gloo
    assert after.bytes_by_way["copied"] - before.bytes_by_way["copied"] == 0


def all_sums(given: torch.Tensor, operator: Any, rank: int, size: int) -> list[torch.Tensor]:
    """The result of each collective that reduces."""
    single, listed = (torch.full((given.numel() // size,), float("nan"), dtype=given.dtype) for _ in range(2))
    strided = torch.stack([given, given], dim=-1)[..., 0]
    dist.reduce_scatter_tensor(single, given, operator)
    dist.reduce_scatter(listed, list(given.chunk(size)), operator)
    dist.reduce(rooted := given.clone(), 1, operator)
    for tensor in (everywhere := given.clone(), strided):
        dist.all_reduce(tensor, operator)
    return [single, listed, rooted if rank == 1 else single, everywhere, strided.contiguous()]


@pytest.mark.parametrize("factor", [0.3, torch.tensor([0.3])], ids=["number", "tensor"])
@runs_in("trio")
def test_a_factor_is_applied_to_each_contribution_which_is_rounded_to_its_type(
    rank: int, size: int, factor: float | torch.Tensor
) -> None:
    operator = dist._make_nccl_premul_sum(factor)
    for dtype in FLOATS:
        for elements in (size, GATHERED_BYTES_MAX // 8):
            given = numbers(rank, dtype, size * elements)
            kept = given.clone()
            multiplied = (given.double() * float(factor)).to(dtype)
            if dtype == torch.float32:  # multiplied by the factor in this type
                multiplied = given * torch.tensor(0.3)
            found, expected = (
                all_sums(given, operator, rank, size),
                all_sums(multiplied, dist.ReduceOp.SUM, rank, size),
            )
            for one, other in zip(found, expected, strict=True):
                assert_same_bits(one, other)
            assert_same_bits(given, kept)


@runs_in("trio")
def test_average_of_types_that_the_network_does_not_add(rank: int, size: int) -> None:
    tensor = torch.tensor([1.0 + rank, 10.0], dtype=torch.float64)
    dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
    assert torch.equal(tensor, torch.tensor([1.0 + (size - 1) / 2, 10.0], dtype=torch.float64))
    work = dist.all_reduce(tensor, op=dist.ReduceOp.AVG, async_op=True)
    assert torch.equal(work.get_future().wait()[0], torch.tensor([1.0 + (size - 1) / 2, 10.0], dtype=torch.float64))
    integers = torch.tensor([-1 - rank, 7], dtype=torch.int64)
    dist.all_reduce(integers, op=dist.ReduceOp.AVG)
    assert integers.tolist() == [-2, 7]
    small = torch.tensor([100, -100], dtype=torch.int8)  # the sums are 300 and -300
    dist.all_reduce(small, op=dist.ReduceOp.AVG)
    assert small.tolist() == [14, -14], "they wrapped, to 44 and -44"
    root = torch.tensor([float(rank)], dtype=torch.float64)
    dist.reduce(root, dst=0, op=dist.ReduceOp.AVG)
    assert rank != 0 or root.item() == (size - 1) / 2
    part = torch.zeros(1, dtype=torch.float64)
    dist.reduce_scatter_tensor(part, torch.arange(size, dtype=torch.float64) + rank, op=dist.ReduceOp.AVG)
    assert part.item() == rank + (size - 1) / 2


@runs_in("trio")
def test_other_operators(rank: int, size: int) -> None:  # R6.2
    for operator, expected in (
        (dist.ReduceOp.MIN, [1.0, -float(size)]),
        (dist.ReduceOp.MAX, [float(size), -1.0]),
        (dist.ReduceOp.PRODUCT, [6.0, -6.0]),
    ):
        tensor = torch.tensor([rank + 1.0, -rank - 1.0])
        dist.all_reduce(tensor, op=operator)
        assert tensor.tolist() == expected
    for operator, bits in ((dist.ReduceOp.BAND, 0), (dist.ReduceOp.BOR, 7), (dist.ReduceOp.BXOR, 7)):
        tensor = torch.tensor([1 << rank], dtype=torch.int32)
        dist.all_reduce(tensor, op=operator)
        assert tensor.item() == bits


@runs_in("trio")
def test_complex_numbers(rank: int, size: int) -> None:
    for dtype in (torch.complex64, torch.complex128):
        tensor = torch.tensor([complex(rank, -rank)], dtype=dtype)
        dist.all_reduce(tensor)
        assert tensor.item() == complex(sum(range(size)), -sum(range(size)))


@runs_in("trio")
def test_sparse_tensors(rank: int, size: int) -> None:
    tensor = torch.sparse_coo_tensor(torch.tensor([[rank, 4]]), torch.tensor([1.0, float(rank)]), (5,))
    dist.all_reduce(tensor)
    assert tensor.to_dense().tolist() == [1.0, 1.0, 1.0, 0.0, float(sum(range(size)))]


@runs_in("trio")
def test_gather_and_scatter(rank: int, size: int) -> None:  # R6.2
    gathered = [torch.zeros(3) for _ in range(size)] if rank == 1 else None
    dist.gather(torch.full((3,), float(rank)), gathered, dst=1)
    assert gathered is None or [tensor[0].item() for tensor in gathered] == [0.0, 1.0, 2.0]
    part = torch.zeros(2)
    dist.scatter(part, [torch.full((2,), float(k)) for k in range(size)] if rank == 2 else None, src=2)
    assert part.tolist() == [float(rank)] * 2


@runs_in("trio")
def test_all_to_all(rank: int, size: int) -> None:  # R6.2
    outputs = [torch.zeros(2) for _ in range(size)]
    try:
        dist.all_to_all(outputs, [torch.full((2,), 10.0 * rank + k) for k in range(size)])
    except RuntimeError as error:
        assert "alltoall" in str(error)  # this PyTorch's Gloo has only all_to_all_single
    else:
        assert [tensor[0].item() for tensor in outputs] == [10.0 * k + rank for k in range(size)]
    output = torch.zeros(size)
    dist.all_to_all_single(output, torch.arange(size, dtype=torch.float32) + 10 * rank)
    assert output.tolist() == [10.0 * k + rank for k in range(size)]
    sent = torch.full((sum(range(1, size + 1)),), float(rank))
    received = torch.zeros(size * (rank + 1))
    dist.all_to_all_single(received, sent, [rank + 1] * size, list(range(1, size + 1)))
    assert received.tolist() == [float(k) for k in range(size) for _ in range(rank + 1)]


@runs_in("trio")
def test_send_and_receive_with_tags(rank: int, size: int) -> None:
    if rank == 0:
        sends = [dist.isend(torch.tensor([value]), dst=1, tag=tag) for value, tag in ((1.0, 7), (2.0, 8))]
        for work in sends:
            assert work is not None and work.wait()
    elif rank == 1:
        second, first = torch.zeros(1), torch.zeros(1)
        dist.recv(second, src=0, tag=8)
        dist.recv(first, src=0, tag=7)
        assert (first.item(), second.item()) == (1.0, 2.0)
    ring = torch.zeros(4)
    sending = dist.isend(torch.full((4,), float(rank)), dst=(rank + 1) % size)
    receiving = dist.irecv(ring, src=(rank - 1) % size)
    assert sending is not None and receiving is not None
    sending.wait()
    receiving.wait()
    assert ring[0].item() == (rank - 1) % size
    operations = [
        dist.P2POp(dist.isend, torch.full((1,), float(rank)), (rank + 1) % size),
        dist.P2POp(dist.irecv, ring[:1], (rank - 1) % size),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


@runs_in("trio")
def test_receive_from_any_source_tells_the_source(rank: int, size: int) -> None:
    if rank == 0:
        senders = []
        for _ in range(size - 1):
            tensor = torch.zeros(1)
            senders.append(dist.recv(tensor))
            assert tensor.item() == senders[-1]
        assert sorted(senders) == list(range(1, size))
    else:
        dist.send(torch.tensor([float(rank)]), dst=0)


@runs_in("trio")
def test_object_collectives(rank: int, size: int) -> None:
    mine = {"rank": rank, "text": "x" * (10 * rank)}
    everything = [None] * size
    dist.all_gather_object(everything, mine)
    assert [entry["rank"] for entry in everything] == list(range(size))  # type: ignore[index]
    received = [f"from {rank}", rank]
    dist.broadcast_object_list(received, src=2)
    assert received == ["from 2", 2]
    gathered = [None] * size if rank == 0 else None
    dist.gather_object(mine, gathered, dst=0)
    assert gathered is None or [entry["rank"] for entry in gathered] == list(range(size))  # type: ignore[index]
    scattered = [None]
    dist.scatter_object_list(scattered, [f"to {k}" for k in range(size)] if rank == 1 else None, src=1)
    assert scattered == [f"to {rank}"]
    if rank == 0:
        dist.send_object_list([mine], dst=1)
    elif rank == 1:
        incoming = [None]
        dist.recv_object_list(incoming, src=0)
        assert incoming[0]["rank"] == 0  # type: ignore[index]


@runs_in("trio")
def test_monitored_barrier(rank: int, size: int) -> None:
    world().monitored_barrier(datetime.timedelta(seconds=PATIENCE_S))


@runs_in("trio")
def test_collectives_of_the_network_and_of_gloo_overlap(rank: int, size: int) -> None:
    for step in range(30):
        exact = torch.full((10_000,), float(step), dtype=torch.float64)
        fast = torch.full((1000,), float(step))
        works = [dist.all_reduce(exact, async_op=True), dist.all_reduce(fast, async_op=True)]
        for work in works:
            work.wait()
        assert (exact == step * size).all() and (fast == step * size).all()


@runs_in("trio")
def test_strided_tensors_that_gloo_would_sum_wrongly(rank: int, size: int) -> None:
    grid = torch.arange(12.0).reshape(4, 3)
    turned = torch.zeros(3, 4).t()
    dist.scatter(turned, [grid * (k + 1) for k in range(size)] if rank == 0 else None, src=0)
    assert torch.equal(turned, grid * (rank + 1))
    dist.scatter(turned, [(grid.t() * (k + 1)).t() for k in range(size)] if rank == 0 else None, src=0)
    assert torch.equal(turned, grid * (rank + 1))
    gathered = [torch.zeros(3, 4).t() for _ in range(size)] if rank == 1 else None
    dist.gather((grid.t().contiguous() + rank).t(), gathered, dst=1)
    assert gathered is None or all(torch.equal(tensor, grid + k) for k, tensor in enumerate(gathered))
    every_other = torch.zeros(size, 4)[:, ::2]
    dist.all_to_all_single(every_other, (torch.arange(2.0 * size).reshape(2, size) + 10 * rank).t())
    assert torch.equal(every_other, torch.tensor([[10.0 * k + rank, 10.0 * k + rank + size] for k in range(size)]))
    for tensor in (grid.double().t().contiguous().t(), grid.double()):
        dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
        assert torch.equal(tensor, grid.double())
        dist.reduce(tensor, dst=2)
        assert rank != 2 or torch.equal(tensor, grid.double() * size)
    if rank == 0:
        dist.send(grid.t().contiguous().t(), dst=1)
    elif rank == 1:
        turned.zero_()
        dist.recv(turned, src=0)
        assert torch.equal(turned, grid)


@runs_in("trio")
def test_an_operation_that_gloo_lacks_raises_and_the_group_goes_on(rank: int, size: int) -> None:
    with pytest.raises(dist.DistBackendError, match="Invalid scalar type"):
        dist.all_reduce(torch.ones(2, dtype=torch.int16))
    with pytest.raises(dist.DistBackendError, match=r"all_reduce\(AVG, int16\[2\]\).*Invalid scalar type"):
        dist.all_reduce(torch.ones(2, dtype=torch.int16), op=dist.ReduceOp.AVG)
    with pytest.raises(dist.DistBackendError, match="BAND"):
        dist.all_reduce(torch.ones(2), op=dist.ReduceOp.BAND)
    with pytest.raises(TypeError, match="PREMUL_SUM is for dense tensors of floats"):
        dist.all_reduce(torch.ones(2, dtype=torch.int32), op=dist._make_nccl_premul_sum(2.0))
    flags = torch.tensor([rank == 0, False])
    with pytest.raises(TypeError, match="all_reduce: bool has no mean"):
        dist.all_reduce(flags, op=dist.ReduceOp.AVG)
    assert flags.tolist() == [rank == 0, False]
    exact, fast = torch.ones(2, dtype=torch.float64), torch.ones(2)
    dist.all_reduce(exact)
    dist.all_reduce(fast)
    assert (exact == size).all() and (fast == size).all()
