"""The collectives, under Horovod's names: blocking, `_async`, in place (`_`), and of groups of tensors.

Each is keyed by its name: ranks may call in any order, from any thread. Calls without a name are matched in the order
in which each rank makes them. An asynchronous call returns a `Handle`. Tensors are in host memory, of any layout.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeAlias, TypeVar

import torch

from wiresum.horovod.torch import runtime
from wiresum.horovod.torch.compression import Compression, Compressor
from wiresum.horovod.torch.execution import REDUCED_AS, name_of, scale
from wiresum.horovod.torch.handle import Handle, HorovodInternalError
from wiresum.horovod.torch.process_sets import ProcessSet, global_process_set
from wiresum.horovod.torch.request import Op, Request, RequestType

Average, Sum, Adasum = Op.AVERAGE, Op.SUM, Op.ADASUM
Min, Max, Product = Op.MIN, Op.MAX, Op.PRODUCT

_Tensors: TypeAlias = Sequence[torch.Tensor]
_Scales: TypeAlias = tuple[float, float]
"""Of the values, and of the result."""
_Compressor: TypeAlias = type[Compressor]

P = ParamSpec("P")
R = TypeVar("R")


def _signed_as(model: Callable[P, object]) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """For a function that takes what `model` takes: people and type checkers see `model`'s parameters."""

    def signed(function: Callable[..., R]) -> Callable[P, R]:
        @functools.wraps(function)
        def form(*arguments: P.args, **options: P.kwargs) -> R:
            return function(*arguments, **options)

        own = inspect.signature(function)
        form.__signature__ = inspect.signature(model).replace(  # type: ignore[attr-defined]
            return_annotation=own.return_annotation
        )
        return form

    return signed


# All-reduce.


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Op | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """The sum, mean (the default), minimum, maximum or product over all ranks, in a new tensor.

    `prescale_factor` multiplies each rank's values, `postscale_factor` the result. `average` is the older way to say
    `op`. Raises a `ValueError` for a tensor that is not in host memory, and for Adasum.
    """
    return _reduce_async(
        [tensor], False, average, name, op, prescale_factor, postscale_factor, process_set, single=True
    )


@_signed_as(allreduce_async)
def allreduce_async_(tensor: torch.Tensor, *arguments: Any, **options: Any) -> Handle:
    """As `allreduce_async`, in place."""
    return _reduce_async([tensor], True, *arguments, single=True, **options)


def grouped_allreduce_async(
    tensors: _Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: Op | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """As `allreduce_async`, of tensors that become ready together. The result is a list."""
    return _reduce_async(tensors, False, average, name, op, prescale_factor, postscale_factor, process_set)


@_signed_as(grouped_allreduce_async)
def grouped_allreduce_async_(tensors: _Tensors, *arguments: Any, **options: Any) -> Handle:
    """As `grouped_allreduce_async`, in place."""
    return _reduce_async(tensors, True, *arguments, **options)


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, op: Op, name: Any, scales: _Scales, process_set: ProcessSet, *tensors: Any) -> Any:
        ctx.arguments = op, *scales, process_set
        return tuple(synchronize(grouped_allreduce_async(tensors, None, name, *ctx.arguments)))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        handle = grouped_allreduce_async(gradients, None, None, *ctx.arguments)
        return None, None, None, None, *synchronize(handle)


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: _Compressor = Compression.none,
    op: Op | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """As `allreduce_async`, waits for the result. Gradients flow through it."""
    (result,) = grouped_allreduce(
        [tensor], average, name, compression, op, prescale_factor, postscale_factor, process_set
    )
    return result


def grouped_allreduce(
    tensors: _Tensors,
    average: bool | None = None,
    name: str | None = None,
    compression: _Compressor = Compression.none,
    op: Op | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """As `grouped_allreduce_async`, waits for the result. Gradients flow through it."""
    scales = (prescale_factor, postscale_factor)
    compressed = [compression.compress(tensor) for tensor in tensors]
    results = _Allreduce.apply(  # type: ignore[no-untyped-call]
        _operator(op, average), name, scales, process_set, *(tensor for tensor, _ in compressed)
    )
    return _decompressed(compression, results, compressed)


@_signed_as(allreduce_async_)
def allreduce_(*arguments: Any, **options: Any) -> torch.Tensor:
    """As `allreduce_async_`, waits for the result."""
    result: torch.Tensor = synchronize(allreduce_async_(*arguments, **options))
    return result


@_signed_as(grouped_allreduce_async_)
def grouped_allreduce_(*arguments: Any, **options: Any) -> list[torch.Tensor]:
    """As `grouped_allreduce_async_`, waits for the result."""
    results: list[torch.Tensor] = synchronize(grouped_allreduce_async_(*arguments, **options))
    return results


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None, op: Op | None, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """The sum or mean of sparse tensors, of one shape and any indices. Returns a function that waits for the result.

    Unlike Horovod's, the result has each index once: the ranks agree on the union of their indices, and the network
    adds the values, where Horovod gathers what all ranks have.
    """
    op = _operator(op, None)
    if op not in (Sum, Average):
        raise ValueError(f"sparse tensors are reduced with op=Sum or op=Average, not {op.value}")
    if not tensor.is_sparse:
        raise ValueError(f"sparse_allreduce_async is for sparse tensors, not for one with layout {tensor.layout}")
    buffer = tensor.detach().coalesce().clone()
    request = _request(RequestType.SPARSE_ALLREDUCE, name, [buffer], process_set, op=op)
    handle = _submit(Handle(request, [buffer], lambda _: buffer.coalesce()), process_set)

    def wait() -> torch.Tensor:
        result: torch.Tensor = synchronize(handle)
        return result

    return wait


# All-gather.


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """The ranks' tensors one after the other. Shapes may differ in the first dimension."""
    return _gather_async([tensor], True, name, process_set)


def grouped_allgather_async(
    tensors: _Tensors, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """As `allgather_async`, of tensors that become ready together. The result is a list."""
    return _gather_async(tensors, False, name, process_set)


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str | None, process_set: ProcessSet, *tensors: torch.Tensor) -> Any:
        ctx.rows = [tensor.shape[0] for tensor in tensors]
        ctx.process_set = process_set
        return tuple(synchronize(grouped_allgather_async(tensors, name, process_set)))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        reduced = grouped_allreduce(gradients, op=Average, process_set=ctx.process_set)
        everybody = allgather(torch.tensor([ctx.rows], dtype=torch.int64), process_set=ctx.process_set)
        begins = everybody[: ctx.process_set.rank()].sum(0).tolist()
        mine = [
            gradient.narrow(0, begin, rows) for gradient, begin, rows in zip(reduced, begins, ctx.rows, strict=True)
        ]
        return None, None, *mine


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """As `allgather_async`, waits for the result. Gradients flow through it."""
    (result,) = grouped_allgather([tensor], name, process_set)
    return result


def grouped_allgather(
    tensors: _Tensors, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[torch.Tensor]:
    """As `grouped_allgather_async`, waits for the result. Gradients flow through it."""
    return list(
        _Allgather.apply(  # type: ignore[no-untyped-call]
            name, process_set, *tensors
        )
    )


# Broadcast.


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """The root's tensor, in a new one. `root_rank` is among all ranks, also of a process set."""
    copy = tensor.detach().clone(memory_format=torch.contiguous_format)
    return _broadcast_async(copy, copy, root_rank, name, process_set)


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """As `broadcast_async`, in place."""
    return _broadcast_async(tensor.detach(), tensor, root_rank, name, process_set)


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root: int, name: str | None, process_set: ProcessSet) -> Any:
        ctx.root, ctx.process_set = root, process_set
        return synchronize(broadcast_async(tensor, root, name, process_set))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        reduced = allreduce(gradients[0], op=Average, process_set=ctx.process_set)
        if runtime.current().place.rank != ctx.root:
            reduced = torch.zeros_like(reduced)
        return reduced, None, None, None


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """As `broadcast_async`, waits for the result. Gradients flow to the root."""
    result: torch.Tensor = _Broadcast.apply(  # type: ignore[no-untyped-call]
        tensor, root_rank, name, process_set
    )
    return result


@_signed_as(broadcast_async_)
def broadcast_(*arguments: Any, **options: Any) -> torch.Tensor:
    """As `broadcast_async_`, waits for the result."""
    result: torch.Tensor = synchronize(broadcast_async_(*arguments, **options))
    return result


# All-to-all.


def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Rows of each rank's tensor to each rank: `splits[k]` to rank k, or equally many if it is None.

    The result is what came, in order of ranks, and how many rows came from each.
    """
    size = runtime.current().coordinator(process_set.process_set_id).group.size()
    buffer = tensor.detach().clone(memory_format=torch.contiguous_format)
    rows = _rows("all-to-all", [buffer])
    if splits is None:
        if rows % size:
            raise ValueError(
                f"an all-to-all without splits divides the first dimension, which is {rows}, equally among {size} ranks"
            )
        mine = [rows // size] * size
    else:
        mine = _splits(splits, rows, size)
    request = _request(RequestType.ALLTOALL, name, [buffer], process_set, splits=tuple(mine))

    def complete(result: tuple[torch.Tensor, list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        gathered, received = result
        return gathered, torch.tensor(received, dtype=torch.int32)

    return _submit(Handle(request, [buffer], complete), process_set)


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, splits: Any, name: str | None, process_set: ProcessSet) -> Any:
        gathered, received = synchronize(alltoall_async(tensor, splits, name, process_set))
        ctx.process_set, ctx.received = process_set, received
        ctx.mark_non_differentiable(received)
        return gathered, received

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        gradient, _ = alltoall(gradients[0], ctx.received, process_set=ctx.process_set)
        return gradient, None, None, None


def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """As `alltoall_async`, waits; without `splits`, the result is the tensor alone. Gradients flow through it."""
    gathered, received = _Alltoall.apply(  # type: ignore[no-untyped-call]
        tensor, splits, name, process_set
    )
    return gathered if splits is None else (gathered, received)


# Reduce-scatter.


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: Op = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """This rank's rows of the sum or mean. If rows do not divide by ranks, the first ranks get one more."""
    return _scatter_async([tensor], True, name, op, process_set, prescale_factor, postscale_factor)


def grouped_reducescatter_async(
    tensors: _Tensors,
    name: str | None = None,
    op: Op = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """As `reducescatter_async`, of tensors that become ready together. The result is a list."""
    return _scatter_async(tensors, False, name, op, process_set, prescale_factor, postscale_factor)


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, name: str | None, op: Op, process_set: ProcessSet, scales: _Scales, *tensors: torch.Tensor
    ) -> Any:
        ctx.factor = scales[0] * scales[1]
        if op is Sum:
            ctx.factor *= runtime.current().coordinator(process_set.process_set_id).group.size()
        ctx.process_set = process_set
        return tuple(synchronize(grouped_reducescatter_async(tensors, name, op, process_set, *scales)))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        scaled = [gradient * ctx.factor for gradient in gradients]
        return None, None, None, None, *grouped_allgather(scaled, process_set=ctx.process_set)


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: _Compressor = Compression.none,
    op: Op = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """As `reducescatter_async`, waits for the result. Gradients flow through it."""
    (result,) = grouped_reducescatter([tensor], name, compression, op, process_set, prescale_factor, postscale_factor)
    return result


def grouped_reducescatter(
    tensors: _Tensors,
    name: str | None = None,
    compression: _Compressor = Compression.none,
    op: Op = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """As `grouped_reducescatter_async`, waits for the result. Gradients flow through it."""
    scales = (prescale_factor, postscale_factor)
    compressed = [compression.compress(tensor) for tensor in tensors]
    results = _Reducescatter.apply(  # type: ignore[no-untyped-call]
        name, op, process_set, scales, *(tensor for tensor, _ in compressed)
    )
    return _decompressed(compression, results, compressed)


# What is not about tensors.


def poll(handle: Handle) -> bool:
    """Would `synchronize` return at once?"""
    return handle.done()


def synchronize(handle: Handle) -> Any:
    """Waits for the result. Raises a `HorovodInternalError` that says why there is none."""
    return handle.wait()


def join(device: int = -1) -> int:
    """For a rank that has no more data: adds zeros to the all-reduces of the others until all have joined.

    What this rank called before is done first. Returns the rank that was the last to join. `device` is Horovod's, and
    means nothing here.
    """
    last: int = synchronize(runtime.current().coordinator(runtime.GLOBAL).join())
    return last


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns when all ranks have called it."""
    synchronize(_submit(Handle(_request(RequestType.BARRIER, None, [], process_set)), process_set))


# How requests come to be.


def _reduce_async(
    tensors: _Tensors,
    in_place: bool,
    average: bool | None = None,
    name: str | None = None,
    op: Op | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    single: bool = False,
) -> Handle:
    op = _operator(op, average)
    buffers = _reduction_buffers(tensors, in_place, prescale_factor)
    scales = {"prescale": prescale_factor, "postscale": postscale_factor}
    request = _request(RequestType.ALLREDUCE, name, buffers, process_set, op=op, **scales)

    def complete(_: object) -> object:
        results = []
        for tensor, buffer in zip(tensors, buffers, strict=True):
            scale(buffer, postscale_factor)
            result = tensor if in_place else buffer.to(tensor.dtype)
            if in_place and buffer.data_ptr() != tensor.data_ptr():
                result.detach().copy_(buffer)
            results.append(result)
        return results[0] if single else results

    return _submit(Handle(request, buffers, complete), process_set)


def _scatter_async(
    tensors: _Tensors,
    single: bool,
    name: str | None,
    op: Op,
    process_set: ProcessSet,
    prescale: float,
    postscale: float,
) -> Handle:
    op = _operator(op, None)
    buffers = _reduction_buffers(tensors, False, prescale)
    _rows("reduce-scatter", buffers)
    request = _request(
        RequestType.REDUCESCATTER, name, buffers, process_set, op=op, prescale=prescale, postscale=postscale
    )

    def complete(parts: list[torch.Tensor]) -> object:
        for part in parts:
            scale(part, postscale)
        results = [part.to(tensor.dtype) for part, tensor in zip(parts, tensors, strict=True)]
        return results[0] if single else results

    return _submit(Handle(request, buffers, complete), process_set)


def _gather_async(tensors: _Tensors, single: bool, name: str | None, process_set: ProcessSet) -> Handle:
    buffers = [tensor.detach().clone(memory_format=torch.contiguous_format) for tensor in tensors]
    _rows("all-gather", buffers)
    request = _request(RequestType.ALLGATHER, name, buffers, process_set)
    return _submit(Handle(request, buffers, lambda gathered: gathered[0] if single else gathered), process_set)


def _broadcast_async(
    buffer: torch.Tensor, result: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet
) -> Handle:
    members = runtime.current().sets.get(process_set.process_set_id or 0, ())
    if root_rank not in members:
        raise ValueError(f"broadcast received invalid root rank {root_rank}: the process set has ranks {list(members)}")
    request = _request(RequestType.BROADCAST, name, [buffer], process_set, root=members.index(root_rank))
    return _submit(Handle(request, [buffer], lambda _: result), process_set)


def _request(kind: RequestType, name: str | None, buffers: _Tensors, process_set: ProcessSet, **fields: Any) -> Request:
    for tensor in buffers:
        if not tensor.is_cpu:
            raise ValueError(
                f"{kind.value}: the tensor is on {tensor.device}, and Wiresum reads and writes host memory: "
                "move it with .cpu()"
            )
    unnamed = runtime.current().coordinator(process_set.process_set_id).next_name
    return Request(
        kind,
        f"{kind.value}.{name}" if name is not None else unnamed(),
        tuple(name_of(tensor.dtype) for tensor in buffers),
        tuple(tuple(tensor.shape) for tensor in buffers),
        named=name is not None,
        **fields,
    )


def _submit(handle: Handle, process_set: ProcessSet) -> Handle:
    return runtime.current().coordinator(process_set.process_set_id).submit(handle)


def _reduction_buffers(tensors: _Tensors, in_place: bool, prescale: float) -> list[torch.Tensor]:
    """Where values are reduced: the tensors themselves, if that is asked for and possible."""
    buffers = []
    for tensor in tensors:
        if tensor.layout is not torch.strided:
            raise ValueError("all-reduce is for dense tensors: use sparse_allreduce_async, or .to_dense()")
        dtype = REDUCED_AS.get(tensor.dtype, tensor.dtype)
        buffer = tensor.detach()
        if not in_place or prescale != 1.0 or dtype is not tensor.dtype:
            buffer = buffer.to(dtype, copy=True, memory_format=torch.contiguous_format)
            scale(buffer, prescale)
        buffers.append(buffer)
    if not buffers:
        raise ValueError("a group of tensors has at least one")
    return buffers


def _operator(op: Op | None, average: bool | None) -> Op:
    if op is not None and average is not None:
        raise ValueError("The op parameter supersedes average. Please provide only one of them.")
    if op is None:
        op = Sum if average is False else Average
    if op is Adasum:
        raise HorovodInternalError(
            "op=Adasum is not supported: it is no sum, and the network only adds. Use op=Average with a learning rate "
            "that fits the number of ranks"
        )
    return Op(op)


def _rows(what: str, tensors: _Tensors) -> int:
    """Of the first."""
    if not tensors:
        raise ValueError("a group of tensors has at least one")
    if any(tensor.dim() == 0 for tensor in tensors):
        raise ValueError(f"{what} goes along the first dimension, and a scalar has none: use .reshape(1)")
    return tensors[0].shape[0]


def _splits(splits: torch.Tensor | Sequence[int], rows: int, size: int) -> list[int]:
    if isinstance(splits, torch.Tensor):
        if splits.dtype != torch.int32:
            raise ValueError(f"all-to-all expects splits to contain 32-bit integer elements, not {splits.dtype}")
        splits = splits.tolist()
    mine = list(splits)
    if len(mine) != size or any(count < 0 for count in mine) or sum(mine) != rows:
        raise ValueError(
            f"all-to-all: splits must be {size} numbers of rows, one for each rank, that add up to the first "
            f"dimension, which is {rows}; they are {mine}"
        )
    return mine


def _decompressed(
    compression: _Compressor, results: _Tensors, compressed: Sequence[tuple[Any, Any]]
) -> list[torch.Tensor]:
    return [compression.decompress(result, context) for result, (_, context) in zip(results, compressed, strict=True)]
