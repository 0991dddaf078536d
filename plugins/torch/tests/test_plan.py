"""Plans: the regions that a call's tensors become, with each worker's sources and destinations. No test needs a
network."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
import torch.distributed as dist

from wiresum.agent.session import Dtype, Element, Operator, Region
from wiresum.torch import plan as plans
from wiresum.torch.plan import CollectiveKind, CollectivePlan

SIZE = 4


def shapes(plan: CollectivePlan) -> list[tuple[bool, bool, int]]:
    return [(region.source is not None, region.destination is not None, region.elements) for region in plan.regions]


def test_all_reduce_works_on_the_tensor_in_place() -> None:
    tensor = torch.zeros(3, 5)
    (plan,) = plans.all_reduce([tensor])
    assert plan.regions == [Region(tensor.data_ptr(), tensor.data_ptr(), 15)]
    assert plan.dtype == Dtype.F32 and plan.bytes == 60 and not plan.staged


def test_all_reduce_makes_one_plan_for_each_dtype_in_order_of_appearance() -> None:
    tensors = [torch.zeros(n).to(t) for n, t in ((1, torch.int32), (2, torch.bfloat16), (3, torch.int32))]
    by_dtype = plans.all_reduce(tensors)
    assert [plan.dtype for plan in by_dtype] == [Dtype.I32, Dtype.BF16]
    assert [[region.elements for region in plan.regions] for plan in by_dtype] == [[1, 3], [2]]


@pytest.mark.parametrize("rank", range(SIZE))
def test_each_region_of_a_collective_has_the_contributors_that_it_needs(rank: int) -> None:
    whole, part = torch.zeros(SIZE * 6), torch.zeros(6)
    parts = [torch.zeros(6) for _ in range(SIZE)]
    mine = [owner == rank for owner in range(SIZE)]
    assert shapes(plans.broadcast([part], root=2, rank=rank)) == [(rank == 2, rank != 2, 24)]
    assert shapes(plans.reduce(part, root=2, rank=rank)) == [(True, rank == 2, 6)]
    for gather in (
        plans.all_gather([(parts, part)], rank=rank),
        plans.all_gather_single([(whole, part)], rank=rank, size=SIZE),
    ):
        assert shapes(gather) == [(own, True, 24) for own in mine]
    for (scatter,) in (
        plans.reduce_scatter([(part, parts)], rank=rank),
        plans.reduce_scatter_single([(part, whole)], rank=rank, size=SIZE),
    ):
        assert shapes(scatter) == [(True, own, 6) for own in mine]


def test_parts_of_one_tensor_are_consecutive() -> None:
    whole, part = torch.zeros(SIZE * 6, dtype=torch.float16), torch.zeros(6, dtype=torch.float16)
    gather = plans.all_gather_single([(whole, part)], rank=1, size=SIZE)
    first = whole.data_ptr()
    assert [region.destination for region in gather.regions] == [first, first + 12, first + 24, first + 36]
    (scatter,) = plans.reduce_scatter_single([(part, whole)], rank=1, size=SIZE)
    assert [region.source for region in scatter.regions] == [first, first + 12, first + 24, first + 36]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).reshape(3, 4).t(),
        torch.arange(24.0)[::2],
        torch.arange(24.0).reshape(1, 2, 3, 4).contiguous(memory_format=torch.channels_last),
        torch.complex(torch.zeros(12), torch.arange(12.0)).conj().imag,
    ],
    ids=["transposed", "strided", "channels last", "negative bit"],
)
def test_strided_layouts_are_staged_and_copied_back(tensor: torch.Tensor) -> None:
    (plan,) = plans.all_reduce([tensor])
    ((_, memory),) = plan.staged
    assert memory.is_contiguous() and torch.equal(memory, tensor)
    assert plan.regions == [Region(memory.data_ptr(), memory.data_ptr(), tensor.numel())]
    memory.fill_(7.0)
    plan.finish()
    assert (tensor == 7.0).all()


def test_a_broadcast_roots_tensor_is_not_written_back() -> None:
    tensor = torch.arange(12.0).reshape(3, 4).t()
    plan = plans.broadcast([tensor], root=0, rank=0)
    assert not plan.staged and plan.kept


def test_a_plan_is_empty_only_without_elements() -> None:
    assert plans.broadcast([torch.zeros(0)], root=0, rank=0).empty
    assert plans.all_reduce([torch.zeros(0), torch.zeros(0, 3)])[0].empty
    assert not plans.all_reduce([torch.zeros(0), torch.zeros(1)])[0].empty
    assert not plans.barrier().empty


def reduced(elements: int, dtype: torch.dtype, operator: str) -> CollectivePlan:
    todo = plans.all_reduce_of([torch.zeros(elements, dtype=dtype)], getattr(dist.ReduceOp, operator), SIZE)
    assert todo is not None and len(todo) == 1
    return todo[0]


def test_signatures_agree_between_workers_and_tell_calls_apart() -> None:
    types = (torch.int64, torch.float64)

    def signatures(rank: int) -> list[int]:
        calls = [
            *plans.all_reduce([torch.zeros(6)]),
            *plans.all_reduce([torch.zeros(3), torch.zeros(3)]),
            *plans.all_reduce([torch.zeros(6, dtype=torch.int32)]),
            plans.reduce(torch.zeros(6), root=0, rank=rank),
            plans.reduce(torch.zeros(6), root=1, rank=rank),
            plans.broadcast([torch.zeros(6)], root=0, rank=rank),
            plans.all_gather_single([(torch.zeros(SIZE * 6), torch.zeros(6))], rank=rank, size=SIZE),
            plans.barrier(),
            *(reduced(6, dtype, operator) for dtype, operator in itertools.product(types, ("MIN", "MAX"))),
            reduced(5, torch.int64, "MAX"),
        ]
        return [
            *(call.signature(bits=32, average=False) for call in calls),
            calls[0].signature(bits=16, average=False),
            calls[0].signature(bits=32, average=True),
            calls[0].signature(bits=32, average=False, fixed_scale=2.0),
        ]

    assert all(signatures(rank) == signatures(0) for rank in range(SIZE))
    assert len(set(signatures(0))) == len(signatures(0))
    assert all(0 <= signature < 2**16 for signature in signatures(0))


@pytest.mark.parametrize(
    ("tensors", "operator"),
    [
        ([torch.zeros(3, dtype=torch.int16)], "MAX"),
        ([torch.zeros(3, dtype=torch.int64), torch.zeros(3, dtype=torch.complex64)], "SUM"),
        ([torch.zeros(3)], "BOR"),
        ([torch.zeros(3, dtype=torch.bool)], "AVG"),
        ([torch.zeros(plans.GATHERED_BYTES_MAX // SIZE + 1, dtype=torch.uint8)], "SUM"),
        ([torch.zeros(2, 2).to_sparse()], "SUM"),
    ],
)
def test_gloo_does_what_workers_cannot_reduce_by_themselves(tensors: list[torch.Tensor], operator: str) -> None:
    assert plans.all_reduce_of(tensors, getattr(dist.ReduceOp, operator), SIZE) is None


def test_a_reduction_of_several_tensors_is_one_operation_for_each_type() -> None:
    tensors = [torch.zeros(n, dtype=t) for n, t in ((3, torch.int64), (5, torch.bool), (2, torch.int64))]
    todo = plans.all_reduce_of(tensors, dist.ReduceOp.BOR, SIZE) or []
    assert [[region.elements for region in plan.regions] for plan in todo] == [[24, 16], [5]]
    assert [plan.reduction for plan in todo] == [(Element.I64, Operator.BOR), (Element.BOOL, Operator.BOR)]
    assert not any(plan.sums or plan.is_copied for plan in todo)


def test_signatures_of_different_sizes_collide_as_rarely_as_16_bits_allow() -> None:
    draw = random.Random(0)
    sizes = {draw.randrange(1, 10**7) for _ in range(300)}
    signatures = {
        CollectivePlan(CollectiveKind.ALL_REDUCE, Dtype.F32, regions=[Region(1, 1, size)]).signature(
            bits=32, average=False
        )
        for size in sizes
    }
    assert len(signatures) >= len(sizes) - 5  # 0.7 collisions are expected


def test_the_network_carries_any_dense_tensor_and_sums_four_types() -> None:
    assert all(plans.carries([torch.zeros(1, dtype=dtype)], summed=True) for dtype in plans.SUMMED)
    for tensor in (torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.int64)):
        assert plans.carries([tensor], summed=False) and not plans.carries([tensor], summed=True)
    assert not plans.carries([torch.zeros(2, 2).to_sparse()], summed=False)


@pytest.mark.parametrize(
    "call",
    [
        lambda: plans.all_gather([([torch.zeros(2)] * SIZE, torch.zeros(3))], rank=0),
        lambda: plans.all_gather([([torch.zeros(2)] * SIZE, torch.zeros(2, dtype=torch.int32))], rank=0),
        lambda: plans.all_gather_single([(torch.zeros(9), torch.zeros(2))], rank=0, size=SIZE),
        lambda: plans.reduce_scatter([(torch.zeros(3), [torch.zeros(2)] * SIZE)], rank=0),
        lambda: plans.reduce_scatter_single([(torch.zeros(2), torch.zeros(9))], rank=0, size=SIZE),
    ],
)
def test_tensors_that_do_not_fit_together_are_refused(call: object) -> None:
    with pytest.raises(ValueError, match=r"all-gather|reduce-scatter"):
        call()  # type: ignore[operator]
