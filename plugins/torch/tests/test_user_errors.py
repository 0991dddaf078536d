"""A senseless or unsupported call raises an error of that call alone. If a group of Gloo's goes on after it, a group of
the network's does, too, at every rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from wiresum_lab.ranks.cluster import runs_in

Call = Callable[[Any, int, int], object]
"""A function of group, rank and size."""


def ones(elements: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(elements, dtype=dtype)


def many(size: int, elements: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [ones(elements, dtype) for _ in range(size)]


def gathered(dtype: torch.dtype) -> Call:
    return lambda group, rank, size: dist.gather(
        ones(3, dtype), many(size, 3, dtype) if rank == 0 else None, dst=0, group=group
    )


def scattered(dtype: torch.dtype) -> Call:
    return lambda group, rank, size: dist.scatter(
        ones(3, dtype), many(size, 3, dtype) if rank == 0 else None, src=0, group=group
    )


def exchanged(dtype: torch.dtype) -> Call:
    return lambda group, _, size: dist.all_to_all(many(size, 3, dtype), many(size, 3, dtype), group=group)


def exchanged_at_once(
    received: torch.Tensor, sent: torch.Tensor, got: list[int] | None = None, given: list[int] | None = None
) -> Call:
    return lambda group, *_: dist.all_to_all_single(received, sent, got, given, group=group)


def summed(tensor: torch.Tensor, operator: Any = dist.ReduceOp.SUM) -> Call:
    return lambda group, *_: dist.all_reduce(tensor, operator, group=group)


CALLS: dict[str, Call] = {
    **{f"gather of {dtype}": gathered(dtype) for dtype in (torch.int16, torch.quint8)},
    **{f"scatter of {dtype}": scattered(dtype) for dtype in (torch.int16, torch.float8_e4m3fn)},
    **{f"all_to_all of {dtype}": exchanged(dtype) for dtype in (torch.int16, torch.float8_e4m3fn)},
    "all_to_all with too few tensors": lambda group, *_: dist.all_to_all([ones(2)], [ones(2)], group=group),
    "all_to_all of two types": lambda group, _, size: dist.all_to_all(
        many(size, 2), many(size, 2, torch.float64), group=group
    ),
    "all_to_all_single of int16": exchanged_at_once(ones(4, torch.int16), ones(4, torch.int16)),
    "all_to_all_single of two types": exchanged_at_once(ones(4, torch.float64), ones(4)),
    "all_to_all_single, given splits that do not add up": exchanged_at_once(ones(4), ones(4), [2, 2], [1, 1]),
    "all_to_all_single, received splits that do not add up": exchanged_at_once(ones(4), ones(4), [1, 1], [2, 2]),
    "all_to_all_single, splits that do not match": exchanged_at_once(ones(4), ones(4), [1, 3], [2, 2]),
    "all_to_all_single, too few splits": exchanged_at_once(ones(4), ones(4), [4], [4]),
    "all_to_all_single, too many splits": exchanged_at_once(ones(4), ones(4), [1, 1, 2], [1, 1, 2]),
    "all_reduce of int16": summed(ones(3, torch.int16)),
    "all_reduce, MAX of float8": summed(ones(3).to(torch.float8_e4m3fn), dist.ReduceOp.MAX),
    "all_reduce, MAX of complex": summed(ones(3, torch.complex64), dist.ReduceOp.MAX),
    "all_reduce, BAND of floats": summed(ones(3), dist.ReduceOp.BAND),
    "all_reduce, BXOR of floats": summed(ones(3), dist.ReduceOp.BXOR),
    "all_reduce, MAX of sparse": summed(ones(3).to_sparse(), dist.ReduceOp.MAX),
    "all_reduce of integers with a factor": summed(ones(3, torch.int64), dist._make_nccl_premul_sum(2.0)),
    "reduce of int16": lambda group, *_: dist.reduce(ones(3, torch.int16), 0, group=group),
    "reduce, MIN of complex": lambda group, *_: dist.reduce(
        ones(3, torch.complex64), 0, dist.ReduceOp.MIN, group=group
    ),
    "reduce to a rank that is not there": lambda group, *_: dist.reduce(ones(3), 7, group=group),
    "broadcast from a rank that is not there": lambda group, *_: dist.broadcast(ones(3), 7, group=group),
    "broadcast of sparse": lambda group, *_: dist.broadcast(ones(3).to_sparse(), 0, group=group),
    "all_gather with too few tensors": lambda group, *_: dist.all_gather([ones(3)], ones(3), group=group),
    "all_gather into another size": lambda group, _, size: dist.all_gather(many(size, 4), ones(3), group=group),
    "all_gather into another type": lambda group, _, size: dist.all_gather(
        many(size, 3, torch.float64), ones(3), group=group
    ),
    "all_gather of sparse": lambda group, _, size: dist.all_gather(
        [ones(3).to_sparse() for _ in range(size)], ones(3).to_sparse(), group=group
    ),
    "all_gather_into_tensor of another size": lambda group, *_: dist.all_gather_into_tensor(
        ones(5), ones(3), group=group
    ),
    "all_gather_into_tensor of another type": lambda group, *_: dist.all_gather_into_tensor(
        ones(6, torch.float64), ones(3), group=group
    ),
    "reduce_scatter with too few tensors": lambda group, *_: dist.reduce_scatter(ones(3), [ones(3)], group=group),
    "reduce_scatter of int16": lambda group, _, size: dist.reduce_scatter(
        ones(3, torch.int16), many(size, 3, torch.int16), group=group
    ),
    "reduce_scatter_tensor of int16": lambda group, *_: dist.reduce_scatter_tensor(
        ones(3, torch.int16), ones(6, torch.int16), group=group
    ),
    "reduce_scatter_tensor, MAX of complex": lambda group, *_: dist.reduce_scatter_tensor(
        ones(3, torch.complex64), ones(6, torch.complex64), dist.ReduceOp.MAX, group=group
    ),
    "send to itself": lambda group, rank, _: dist.send(ones(3), rank, group=group),
    "receive into sparse": lambda group, rank, _: dist.recv(ones(3).to_sparse(), 1 - rank, group=group),
}


def goes_on(group: Any, rank: int, size: int) -> bool:
    tensor = torch.arange(1000.0) + rank
    dist.all_reduce(tensor, group=group)
    return torch.equal(tensor, torch.arange(1000.0) * size + sum(range(size)))


@pytest.mark.parametrize("name", CALLS)
@runs_in("pair")
def test_what_a_group_of_gloos_survives_the_network_does(rank: int, size: int, name: str) -> None:
    groups = globals().setdefault("groups", {})  # one for all of them
    gloo = groups.get("gloo") or groups.setdefault("gloo", dist.new_group(backend="gloo"))
    for group in (gloo, dist.group.WORLD):
        for _ in range(2):
            with pytest.raises((RuntimeError, ValueError, TypeError)):
                CALLS[name](group, rank, size)
            assert goes_on(group, rank, size)


@runs_in("pair")
def test_a_call_that_is_wrong_at_one_rank_is_made_right_there(rank: int, size: int) -> None:
    for _ in range(2):
        if rank == 0:
            with pytest.raises((RuntimeError, ValueError)):
                dist.scatter(ones(3), many(size - 1, 3), src=0)
        given, received = many(size, 3), torch.zeros(3)
        dist.scatter(received, given if rank == 0 else None, src=0)
        assert torch.equal(received, given[0])
        dist.all_to_all_single(received := torch.zeros(4), ones(4))
        assert torch.equal(received, ones(4))
        assert goes_on(dist.group.WORLD, rank, size)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
@runs_in("trio")
def test_complex_numbers_are_gathered(rank: int, size: int, dtype: torch.dtype) -> None:
    def of(worker: int) -> torch.Tensor:
        return torch.complex(torch.arange(6.0), -torch.arange(6.0) - worker).to(dtype)

    for mine, expected in (
        (of(rank), [of(worker) for worker in range(size)]),
        (of(rank).conj(), [of(worker).conj() for worker in range(size)]),
        (of(rank)[::2], [of(worker)[::2] for worker in range(size)]),
    ):
        outputs = [torch.zeros(2 * len(mine), dtype=dtype)[::2] for _ in range(size)] if rank == 1 else None
        dist.gather(mine, outputs, dst=1)
        assert outputs is None or all(map(torch.equal, outputs, (one.resolve_conj() for one in expected)))
