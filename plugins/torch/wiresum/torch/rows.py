"""Sums of `torch.sparse_coo` tensors: keys and values, aligned over the workers.

A sparse tensor is a set of rows, each with a key: in an embedding's gradient, the numbers of the words that a batch
used. Workers have different keys, and the network adds elements at the same position. So the workers first agree on the
*union* of their keys. Each lays out its rows in the order of the union, with zeros for keys that it does not have, and
that memory is summed like any other tensor (a block that is zero at a worker costs it a header). The result is sparse
again: the keys of the union and the summed rows, with the same bits at every worker.

There are two ways to find the union: an all-gather of keys, which costs as much as there are keys, or an all-reduce
that counts the workers that have each possible key, in 8 bits each (16 from 128 workers on). The numbers of keys, which
are exchanged first, decide which is cheaper. Later collectives wait until the union is known.

What comes back is checked before it becomes a size or a position: other machines have made it.

Source: OmniReduce (SIGCOMM'21), section 5, "sparse formats"; the alignment through a union replaces its merging of
sorted key lists in the aggregator, which a switch cannot do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TypeAlias

import torch

from wiresum.agent.errors import ImpossibleSumError
from wiresum.agent.session import Dtype, Region
from wiresum.torch.plan import SUMMED, CollectiveKind, CollectivePlan, call_signature, is_fp8

KEY_BYTES = 8
KEYS_MAX = 2**31 - 1

Rows: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""Keys and rows, as `rows_of` returns them."""


@dataclass
class ExchangePlan(CollectivePlan):
    """An exchange before the sum. `answer` is the memory in which its result will be."""

    answer: torch.Tensor = field(default_factory=lambda: torch.empty(0, device="cpu"))
    call: int = 0

    @property
    def may_be_sparse(self) -> bool:
        return self.dtype is Dtype.I32

    def signature(self, *, bits: int, average: bool, fixed_scale: float | None = None) -> int:
        return self.call


@dataclass
class RowPlan(CollectivePlan):
    """The sum of the union's rows. `finish` stores it in the caller's tensor."""

    tensor: torch.Tensor = field(default_factory=lambda: torch.empty(0, device="cpu"))
    keys: torch.Tensor = field(default_factory=lambda: torch.empty(0, device="cpu"))
    rows: torch.Tensor = field(default_factory=lambda: torch.empty(0, device="cpu"))
    integer_divisor: int = 1
    """The divisor of an average of integers, which is rounded towards zero, as in dense tensors."""

    @property
    def may_be_sparse(self) -> bool:
        """False: some worker has each row, and sizes differ from call to call, so there is nothing to learn."""
        return False

    def finish(self) -> None:
        if self.integer_divisor != 1:
            self.rows.div_(self.integer_divisor, rounding_mode="trunc")
        write_rows(self.tensor, self.keys, self.rows)


def is_row_sparse(tensor: torch.Tensor) -> bool:
    """True for a sparse tensor that the network can sum."""
    return tensor.layout is torch.sparse_coo and tensor.dtype in SUMMED and not is_fp8(tensor)


def rows_of(tensor: torch.Tensor) -> Rows:
    """The keys of a sparse tensor, int64 in ascending order, and its rows (keys x the dense part's elements).

    A key is the row-major number of the sparse dimensions' indices.
    """
    whole = tensor.detach().coalesce()
    sizes = whole.shape[: whole.sparse_dim()]
    strides = [math.prod(sizes[dimension + 1 :]) for dimension in range(len(sizes))]
    keys = (whole.indices() * torch.tensor(strides, dtype=torch.int64, device="cpu").reshape(-1, 1)).sum(0)
    return keys, whole.values().reshape(len(keys), row_elements(tensor))


def row_elements(tensor: torch.Tensor) -> int:
    return math.prod(tensor.shape[tensor.sparse_dim() :])


def keys_possible(tensor: torch.Tensor) -> int:
    return math.prod(tensor.shape[: tensor.sparse_dim()])


def write_rows(tensor: torch.Tensor, keys: torch.Tensor, rows: torch.Tensor) -> None:
    """Makes `tensor` hold these rows under these keys, and nothing else."""
    sizes = tensor.shape[: tensor.sparse_dim()]
    indices = torch.empty(len(sizes), len(keys), dtype=torch.int64, device="cpu")
    rest = keys
    for dimension in reversed(range(len(sizes))):
        indices[dimension] = rest % sizes[dimension]
        rest = rest // sizes[dimension]
    values = rows.reshape(len(keys), *tensor.shape[tensor.sparse_dim() :])
    result = torch.sparse_coo_tensor(indices, values, tensor.shape, is_coalesced=True, check_invariants=False)
    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        tensor.copy_(result)  # not of detach(), which has a shape and a number of rows of its own


def sizes_plan(tensor: torch.Tensor, keys: torch.Tensor, *, rank: int, size: int) -> ExchangePlan:
    """Finds how many keys each worker has: a sum in which each worker fills its own number. All fit one packet."""
    if len(keys) > KEYS_MAX:
        raise ValueError(f"a sparse tensor of {len(keys)} rows at one worker, and {KEYS_MAX} is the most; split it")
    counts = torch.zeros(size, dtype=torch.int32, device="cpu")
    counts[rank] = len(keys)
    return _exchange_plan(tensor, counts)


def require_sizes(counts: torch.Tensor, keys: torch.Tensor, possible: int, *, rank: int) -> None:
    """Raises ImpossibleSumError unless the sum of `sizes_plan` has this worker's number, and possible numbers only."""
    if int(counts[rank]) != len(keys) or int(counts.min()) < 0 or int(counts.max()) > min(possible, KEYS_MAX):
        raise _impossible(f"the workers' numbers of rows came back as {counts.tolist()}, of {possible} rows")


def counting_is_cheaper(counts: torch.Tensor, possible: int) -> bool:
    return possible < KEY_BYTES * int(counts.sum())


def presence_plan(tensor: torch.Tensor, keys: torch.Tensor, *, size: int) -> ExchangePlan:
    """Finds the union by counting, with 32-bit numbers in memory, and on the wire as few bits as hold the number of
    workers."""
    presence = torch.zeros(keys_possible(tensor), dtype=torch.int32, device="cpu")
    presence[keys] = 1
    return _exchange_plan(tensor, presence, bits=8 if size < 2**7 else 16)


def keys_plan(tensor: torch.Tensor, keys: torch.Tensor, counts: torch.Tensor, *, rank: int) -> ExchangePlan:
    """Finds the union by all-gather: all keys, worker by worker."""
    numbers: list[int] = counts.tolist()
    everybody = torch.empty(sum(numbers), dtype=torch.int64, device="cpu")
    plan = ExchangePlan(CollectiveKind.SPARSE_ALL_REDUCE, Dtype.RAW, answer=everybody, call=_call_of(tensor))
    for owner, part in enumerate(everybody.split(numbers)):
        is_mine = owner == rank
        if is_mine:
            part.copy_(keys)
        address = part.data_ptr()
        plan.regions.append(Region(address if is_mine else None, None if is_mine else address, len(part) * KEY_BYTES))
    return plan


def places_in(union: torch.Tensor, keys: torch.Tensor, possible: int) -> torch.Tensor:
    """The positions of this worker's keys in the union; both ascend. Raises ImpossibleSumError if the union lacks a
    key, or has keys that no tensor of this shape has."""
    places = torch.searchsorted(union, keys)
    is_possible = len(union) == 0 or (int(union[0]) >= 0 and int(union[-1]) < possible)
    if not is_possible or (places == len(union)).any() or not torch.equal(union[places], keys):
        raise _impossible(f"the workers' rows came back as none of {possible}, or without this worker's")
    return places


def _impossible(what: str) -> ImpossibleSumError:
    return ImpossibleSumError(f"in a sum of sparse tensors {what}: {ImpossibleSumError.WHY}")


def _exchange_plan(tensor: torch.Tensor, counts: torch.Tensor, *, bits: int = 32) -> ExchangePlan:
    """A sum of integers, in place."""
    region = Region(counts.data_ptr(), counts.data_ptr(), len(counts))
    kind, call = CollectiveKind.SPARSE_ALL_REDUCE, _call_of(tensor)
    return ExchangePlan(kind, Dtype.I32, integer_bits=bits, regions=[region], answer=counts, call=call)


def _call_of(tensor: torch.Tensor) -> int:
    """A signature of the whole call, with the shapes, which must agree, and which regions do not show."""
    return call_signature(
        (int(CollectiveKind.SPARSE_ALL_REDUCE), str(tensor.dtype), tensor.sparse_dim(), tuple(tensor.shape))
    )


def sum_plan(
    tensor: torch.Tensor, keys: torch.Tensor, rows: torch.Tensor, union: torch.Tensor, *, integer_divisor: int
) -> RowPlan:
    """The sum of rows in the order of the union's keys. `integer_divisor` is for tensors of integers. Raises
    ImpossibleSumError if no such union is possible."""
    places = places_in(union, keys, keys_possible(tensor))
    memory = torch.zeros(len(union), row_elements(tensor), dtype=tensor.dtype, device="cpu")
    memory[places] = rows
    plan = RowPlan(
        CollectiveKind.ALL_REDUCE,
        SUMMED[tensor.dtype],
        kept=[memory],
        tensor=tensor,
        keys=union,
        rows=memory,
        integer_divisor=1 if tensor.is_floating_point() else integer_divisor,
    )
    plan.regions.append(Region(memory.data_ptr(), memory.data_ptr(), memory.numel()))
    return plan
