"""Tensors whose memory is gone, wholly or in part: every call refuses them before anything is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from wiresum_lab.ranks.cluster import runs_in

Made = Callable[[int, Any], torch.Tensor]
"""A function that makes a tensor of so many elements without memory, on a device."""


def freed(elements: int, device: Any) -> torch.Tensor:
    """A tensor freed as FSDP frees its flat parameters."""
    tensor = torch.ones(elements, device=device)
    tensor.untyped_storage().resize_(0)
    return tensor


def shortened(elements: int, device: Any) -> torch.Tensor:
    tensor = torch.ones(elements, device=device)
    tensor.untyped_storage().resize_(4 * elements - 1)
    return tensor


def view_of_freed(elements: int, device: Any) -> torch.Tensor:
    """A freed tensor whose address is no null pointer."""
    whole = torch.ones(elements + 16, device=device)
    view = whole[16:]
    whole.untyped_storage().resize_(0)
    return view


def strided_and_freed(elements: int, device: Any) -> torch.Tensor:
    whole = torch.ones(elements, 3, device=device)
    view = whole[:, 0]
    whole.untyped_storage().resize_(4 * 3 * (elements - 1))  # all but the last element
    return view


MADE: list[Made] = [freed, shortened, view_of_freed, strided_and_freed]


def calls(lost: torch.Tensor, rank: int, size: int, device: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Every collective with a tensor that has lost its memory, as input and as output."""
    elements = lost.numel()

    def there(times: int = 1) -> torch.Tensor:
        return torch.ones(times * elements, device=device)

    def list_with_it() -> list[torch.Tensor]:
        return [lost if owner == 0 else there() for owner in range(size)]

    yield "all_reduce", lambda: dist.all_reduce(lost)
    yield "all_reduce, asynchronous", lambda: dist.all_reduce(lost, async_op=True)
    yield "all_reduce, mean", lambda: dist.all_reduce(lost, dist.ReduceOp.AVG)
    yield "all_reduce, maximum", lambda: dist.all_reduce(lost, dist.ReduceOp.MAX)
    yield "all_reduce_coalesced", lambda: dist.all_reduce_coalesced([there(), lost])
    for root in range(size):
        yield f"reduce to {root}", lambda root=root: dist.reduce(lost, root)
        yield f"broadcast from {root}", lambda root=root: dist.broadcast(lost, root)
    yield "all_gather of it", lambda: dist.all_gather([there() for _ in range(size)], lost)
    yield "all_gather into it", lambda: dist.all_gather(list_with_it(), there())
    yield "all_gather_into_tensor", lambda: dist.all_gather_into_tensor(there(size), lost)
    yield "reduce_scatter of it", lambda: dist.reduce_scatter(there(), list_with_it())
    yield "reduce_scatter into it", lambda: dist.reduce_scatter(lost, [there() for _ in range(size)])
    yield "reduce_scatter_tensor", lambda: dist.reduce_scatter_tensor(lost, there(size))
    yield "gather", lambda: dist.gather(lost, [there() for _ in range(size)] if rank == 0 else None)
    yield "scatter", lambda: dist.scatter(lost, [there() for _ in range(size)] if rank == 0 else None)
    yield "all_to_all", lambda: dist.all_to_all([there() for _ in range(size)], list_with_it())
    yield "all_to_all_single", lambda: dist.all_to_all_single(there(), lost, [elements, 0], [elements, 0])
    yield "send", lambda: dist.send(lost, 1 - rank)
    yield "recv", lambda: dist.recv(lost, 1 - rank)


def each_is_refused_and_the_group_goes_on(made: Made, rank: int, size: int, device: Any) -> None:
    for elements in (3, 5000):
        for name, call in calls(made(elements, device), rank, size, device):
            with pytest.raises(ValueError, match=r"needs \d+ bytes of its storage, which has \d+"):
                pytest.fail(f"{name} of {elements}: {call()}")
    tensor = torch.full((5000,), rank + 1.0, device=device)
    dist.all_reduce(tensor)
    assert (tensor == size * (size + 1) / 2).all()


@pytest.mark.parametrize("number", range(len(MADE)))
def test_every_call_refuses_it(pair: Any, number: int) -> None:
    pair.run(refuses, number)


def refuses(rank: int, size: int, number: int) -> None:
    each_is_refused_and_the_group_goes_on(MADE[number], rank, size, "cpu")


@runs_in("duo")
def test_every_call_refuses_it_on_an_accelerator(rank: int, size: int) -> None:
    for made in MADE:
        each_is_refused_and_the_group_goes_on(made, rank, size, torch.accelerator.current_accelerator())


@runs_in("pair")
def test_a_sparse_tensor_needs_the_memory_of_both_its_parts(rank: int, size: int) -> None:
    for part in range(2):
        indices, values = torch.tensor([[1, 4]]), torch.ones(2)
        tensor = torch.sparse_coo_tensor(indices, values, (9,), is_coalesced=True)
        (tensor._indices(), tensor._values())[part].untyped_storage().resize_(0)
        with pytest.raises(ValueError, match="bytes of its storage, which has 0"):
            dist.all_reduce(tensor)
    tensor = torch.sparse_coo_tensor(torch.tensor([[1, 4]]), torch.ones(2), (9,))
    dist.all_reduce(tensor)
    assert tensor.to_dense().tolist() == [0, size, 0, 0, size, 0, 0, 0, 0]


@runs_in("pair")
def test_tensors_without_elements_need_no_memory(rank: int, size: int) -> None:
    empty = torch.ones(4)[2:2]
    empty.untyped_storage().resize_(0)
    dist.all_reduce(empty)
    dist.broadcast(empty, 0)
    sums = [torch.ones(3), empty]
    dist.all_reduce_coalesced(sums)
    assert sums[0].tolist() == [size] * 3
