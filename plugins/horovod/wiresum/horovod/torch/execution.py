"""Starts agreed requests as collectives of a process group of the wiresum backend.

The group takes a list of tensors as one collective and works in the tensors' memory, so small tensors are fused without
a copy into a buffer. The group passes collectives that the network cannot run on to Gloo.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (
    AllreduceCoalescedOptions,
    AllreduceOptions,
    BroadcastOptions,
    ReduceScatterOptions,
)

from wiresum.horovod.torch.handle import Handle
from wiresum.horovod.torch.negotiation import Response
from wiresum.horovod.torch.request import Op, RequestType
from wiresum.torch.backend import backend_of
from wiresum.torch.names import installed_name
from wiresum.torch.plan import SUMMED, carries

OPERATORS = {
    Op.SUM: dist.ReduceOp.SUM,
    Op.AVERAGE: dist.ReduceOp.AVG,
    Op.MIN: dist.ReduceOp.MIN,
    Op.MAX: dist.ReduceOp.MAX,
    Op.PRODUCT: dist.ReduceOp.PRODUCT,
}
REDUCED_AS = {torch.int16: torch.int32}
"""The wider type in which values are reduced, for each type that neither the network nor Gloo reduces."""

Agreed = tuple[Response, Handle | None]
"""A response, and this rank's handle, which is None if this rank has joined."""


class Execution:
    """Runs the collectives of one process set; `fusion_bytes_max` limits the bytes that are fused into one."""

    def __init__(self, group: Any, *, fusion_bytes_max: int) -> None:
        self._group = group
        self._rank: int = group.rank()
        self._size: int = group.size()
        self._fusion_bytes_max = fusion_bytes_max
        backend = backend_of(group)
        self._in_network = backend is not None and backend.network is not None

    def sum_words(self, words: Sequence[int]) -> list[int]:
        vector = torch.tensor(words, dtype=torch.int32, device="cpu")
        self._group.allreduce([vector]).wait()
        summed: list[int] = vector.tolist()
        return summed

    def exchange(self, message: bytes, sizes: Sequence[int]) -> list[bytes]:
        nothing = torch.empty(0, dtype=torch.uint8, device="cpu")
        mine = torch.frombuffer(bytearray(message), dtype=torch.uint8) if message else nothing
        gathered = torch.empty(sum(sizes), dtype=torch.uint8, device="cpu")
        for work in self._gather(gathered, mine, sizes):
            work.wait()
        return [part.numpy().tobytes() for part in gathered.split(list(sizes))]

    def launch(self, agreed: Sequence[Agreed]) -> list[dist.Work]:
        """Starts all agreed requests, in the same order at all ranks. Returns the works."""
        works: list[dist.Work] = []
        for bucket in self._fused([pair for pair in agreed if pair[0].kind is RequestType.ALLREDUCE]):
            works += self._allreduce(bucket)
        one_by_one: dict[RequestType, Callable[[Response, Handle], list[dist.Work]]] = {
            RequestType.SPARSE_ALLREDUCE: lambda outcome, handle: self._allreduce([(outcome, handle)]),
            RequestType.ALLGATHER: self._allgather,
            RequestType.BROADCAST: self._broadcast,
            RequestType.ALLTOALL: self._alltoall,
            RequestType.REDUCESCATTER: self._reducescatter,
        }
        for outcome, handle in agreed:
            if outcome.kind in one_by_one:
                assert handle is not None, "only all-reduces are agreed on without a rank that has joined"
                works += one_by_one[outcome.kind](outcome, handle)
            elif outcome.kind is not RequestType.ALLREDUCE and handle is not None:
                handle.launch((), outcome.number)
        return works

    def _fused(self, agreed: Sequence[Agreed]) -> Iterator[list[Agreed]]:
        """Groups of consecutive all-reduces to fuse: they have the same operator and types that the network sums, and
        stay within the limit. Any other all-reduce is a group of its own."""
        bucket: list[Agreed] = []
        bytes_so_far = 0
        for pair in agreed:
            request = pair[0].request
            dtypes = {dtype_of(name) for name in request.dtypes}
            size = sum(math.prod(shape) for shape in request.shapes) * max(dtype.itemsize for dtype in dtypes)
            fusible = self._in_network and all(dtype in SUMMED for dtype in dtypes)
            fits = bytes_so_far + size <= self._fusion_bytes_max
            if bucket and not (fusible and fits and bucket[0][0].request.op is request.op):
                yield bucket
                bucket, bytes_so_far = [], 0
            if fusible:
                bucket.append(pair)
                bytes_so_far += size
            else:
                yield [pair]
        if bucket:
            yield bucket

    def _allreduce(self, bucket: Sequence[Agreed]) -> list[dist.Work]:
        op = bucket[0][0].request.op
        tensors: list[torch.Tensor] = []
        for outcome, handle in bucket:
            tensors += handle.buffers if handle else _zeros(outcome)
        works = self._reduce(tensors, op)
        for _, handle in bucket:
            if handle is not None:
                handle.launch(works)
        return works

    def _reduce(self, tensors: Sequence[torch.Tensor], op: Op) -> list[dist.Work]:
        if self._in_network and op in (Op.SUM, Op.AVERAGE) and carries(tensors, summed=True):
            options = _options(AllreduceCoalescedOptions, op)
            return [self._group.allreduce_coalesced(list(tensors), options)]
        return [self._group.allreduce([tensor], _options(AllreduceOptions, op)) for tensor in tensors]

    def _allgather(self, outcome: Response, handle: Handle) -> list[dist.Work]:
        works: list[dist.Work] = []
        results = []
        for position, buffer in enumerate(handle.buffers):
            sizes = [request.shapes[position][0] for request in outcome.requests if request is not None]
            gathered = torch.empty((sum(sizes), *buffer.shape[1:]), dtype=buffer.dtype, device="cpu")
            works += self._gather(gathered, buffer, sizes)
            results.append(gathered)
        handle.launch(works, results)
        return works

    def _gather(self, gathered: torch.Tensor, mine: torch.Tensor, sizes: Sequence[int]) -> list[dist.Work]:
        parts = [_as_bytes(part) for part in gathered.split(list(sizes))]
        if self._in_network:
            return [self._group.allgather([parts], [_as_bytes(mine)])]
        parts[self._rank].copy_(_as_bytes(mine))  # Gloo's all-gather wants equal sizes
        return [self._broadcast_from(rank, part) for rank, part in enumerate(parts) if part.numel()]

    def _broadcast(self, outcome: Response, handle: Handle) -> list[dist.Work]:
        root = outcome.request.root
        works = [self._broadcast_from(root, buffer) for buffer in handle.buffers]
        handle.launch(works)
        return works

    def _broadcast_from(self, root: int, tensor: torch.Tensor) -> dist.Work:
        options = BroadcastOptions()
        options.rootRank = root
        in_place = tensor.is_contiguous() and not self._in_network
        work: dist.Work = self._group.broadcast([_as_bytes(tensor) if in_place else tensor], options)
        return work

    def _alltoall(self, outcome: Response, handle: Handle) -> list[dist.Work]:
        (buffer,) = handle.buffers
        received = [request.splits[self._rank] for request in outcome.requests if request is not None]
        gathered = torch.empty((sum(received), *buffer.shape[1:]), dtype=buffer.dtype, device="cpu")
        row_bytes = math.prod(buffer.shape[1:]) * buffer.element_size()
        work: dist.Work = getattr(self._group, installed_name("all_to_all_single"))(
            _as_bytes(gathered),
            _as_bytes(buffer),
            [rows * row_bytes for rows in received],
            [rows * row_bytes for rows in handle.request.splits],
        )
        handle.launch([work], (gathered, received))
        return [work]

    def _reducescatter(self, outcome: Response, handle: Handle) -> list[dist.Work]:
        op = outcome.request.op
        works: list[dist.Work] = []
        results: list[torch.Tensor] = []
        for buffer in handle.buffers:
            parts = list(buffer.split(scattered(buffer.shape[0], self._size)))
            if self._in_network and op in (Op.SUM, Op.AVERAGE) and carries(parts, summed=True):
                result = torch.empty_like(parts[self._rank])
                works.append(self._group.reduce_scatter([result], [parts], _options(ReduceScatterOptions, op)))
            else:  # Gloo's reduce-scatter wants equal sizes
                result = parts[self._rank]
                works += self._reduce([buffer], op)
            results.append(result)
        handle.launch(works, results)
        return works


def scattered(rows: int, size: int) -> list[int]:
    """The numbers of rows in `size` parts that are as equal as possible; the first parts get one more."""
    return [rows // size + (rank < rows % size) for rank in range(size)]


def scale(tensor: torch.Tensor, factor: float) -> None:
    """Multiplies a tensor in place; integers are truncated."""
    if factor == 1.0:
        return
    exact = tensor.is_floating_point() or tensor.is_complex()
    with torch.no_grad():
        tensor.mul_(factor) if exact else tensor.copy_(tensor.double() * factor)


def dtype_of(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise RuntimeError(f"a rank has a tensor of type {name!r}, which this version of PyTorch lacks")
    return dtype


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _zeros(outcome: Response) -> list[torch.Tensor]:
    request = outcome.request
    return [
        torch.zeros(shape, dtype=dtype_of(dtype), device="cpu")
        for shape, dtype in zip(request.shapes, request.dtypes, strict=True)
    ]


def _options(kind: Any, op: Op) -> Any:
    options = kind()
    options.reduceOp = OPERATORS[op]
    return options


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A view of the tensor's memory as bytes, since Gloo does not copy every type."""
    assert tensor.is_contiguous(), "buffers are made contiguous"
    return tensor.reshape(-1).view(torch.uint8)
