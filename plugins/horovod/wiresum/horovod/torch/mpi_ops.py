"""The collectives under Horovod's names: blocking, `_async`, in place (`_`), and `grouped_` for several tensors.

Ranks match calls by name, and may make them in any order, from any thread. Calls without a name are matched in the
order of the calls. An asynchronous call returns a `Handle`. Tensors may have any memory layout. The call copies a
tensor on a GPU or another device to host memory; the thread that first waits for the result copies it to the device.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, TypeAlias, TypeVar

import torch

from wiresum.horovod.torch import runtime
from wiresum.horovod.torch.buffers import copy_back, host_copy, reduction_buffers
from wiresum.horovod.torch.compression import Compression, Compressor
from wiresum.horovod.torch.coordinator import Coordinator
from wiresum.horovod.torch.execution import name_of, scale
from wiresum.horovod.torch.handle import Handle, HorovodInternalError
from wiresum.horovod.torch.process_sets import ProcessSet, global_process_set
from wiresum.horovod.torch.request import Op, Request, RequestType
from wiresum.torch.plan import require_memory

Average, Sum, Adasum = Op.AVERAGE, Op.SUM, Op.ADASUM
Min, Max, Product = Op.MIN, Op.MAX, Op.PRODUCT

_Tensors: TypeAlias = Sequence[torch.Tensor]
_OneOrMore: TypeAlias = torch.Tensor | _Tensors
"""A tensor, for which the result is a tensor; or a group of tensors, for which the result is a list."""
_Collective: TypeAlias = Callable[[_Tensors], _Tensors]
_Compressor: TypeAlias = type[Compressor]

P = ParamSpec("P")
R = TypeVar("R")


def _signed_as(model: Callable[P, object]) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """Decorates a function with the parameters of `model`, for documentation and type checkers."""

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
    """Starts the sum, mean (the default), minimum, maximum or product over all ranks, in a new tensor.

    `prescale_factor` multiplies each rank's values, `postscale_factor` the result. `average` is the older way to say
    `op`. Raises a `HorovodInternalError` for Adasum.
    """
    return _reduce_async(tensor, False, average, name, op, prescale_factor, postscale_factor, process_set)


@_signed_as(allreduce_async)
def allreduce_async_(tensor: torch.Tensor, *arguments: Any, **options: Any) -> Handle:
    """The in-place form of `allreduce_async`."""
    return _reduce_async(tensor, True, *arguments, **options)


def grouped_allreduce_async(
    tensors: _Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: Op | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Runs `allreduce_async` on tensors that become ready together. The result is a list."""
    return _reduce_async(tensors, False, average, name, op, prescale_factor, postscale_factor, process_set)


@_signed_as(grouped_allreduce_async)
def grouped_allreduce_async_(tensors: _Tensors, *arguments: Any, **options: Any) -> Handle:
    """The in-place form of `grouped_allreduce_async`."""
    return _reduce_async(tensors, True, *arguments, **options)


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
    """Calls `allreduce_async` and waits for the result, through which gradients flow."""
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
    """Calls `grouped_allreduce_async` and waits for the result, through which gradients flow."""
    op = _operator(op, average)

    def reduce(values: _Tensors) -> _Tensors:
        handle = grouped_allreduce_async(values, None, name, op, prescale_factor, postscale_factor, process_set)
        reduced: _Tensors = synchronize(handle)
        return reduced

    def gradients_of(gradients: _Tensors) -> _Tensors:
        plain = Compression.none
        return grouped_allreduce(gradients, None, None, plain, op, prescale_factor, postscale_factor, process_set)

    return _differentiable(reduce, gradients_of, tensors, compression)


@_signed_as(allreduce_async_)
def allreduce_(*arguments: Any, **options: Any) -> torch.Tensor:
    """Calls `allreduce_async_` and waits for the result."""
    result: torch.Tensor = synchronize(allreduce_async_(*arguments, **options))
    return result


@_signed_as(grouped_allreduce_async_)
def grouped_allreduce_(*arguments: Any, **options: Any) -> list[torch.Tensor]:
    """Calls `grouped_allreduce_async_` and waits for the result."""
    results: list[torch.Tensor] = synchronize(grouped_allreduce_async_(*arguments, **options))
    return results


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None, op: Op | None, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Starts the sum or mean of sparse tensors of one shape. Returns a function that waits for the result.

    Unlike in Horovod, the result has each index once: the ranks agree on the union of their indices, and the network
    adds the values.
    """
    op = _operator(op, None)
    if op not in (Sum, Average):
        raise ValueError(f"sparse tensors are reduced with op=Sum or op=Average, not {op.value}")
    if not tensor.is_sparse:
        raise ValueError(f"sparse_allreduce_async is for sparse tensors, not for one with layout {tensor.layout}")
    require_memory([tensor])
    buffer = tensor.detach().coalesce().to("cpu", copy=True)

    def complete(_: object) -> torch.Tensor:
        return buffer.coalesce().to(tensor.device)

    handle = _start(RequestType.SPARSE_ALLREDUCE, name, [buffer], process_set, complete, op=op)

    def wait() -> torch.Tensor:
        result: torch.Tensor = synchronize(handle)
        return result

    return wait


# All-gather.


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Starts the concatenation of the ranks' tensors, whose shapes may differ in the first dimension."""
    return _gather_async(tensor, name, process_set)


def grouped_allgather_async(
    tensors: _Tensors, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Runs `allgather_async` on tensors that become ready together. The result is a list."""
    return _gather_async(tensors, name, process_set)


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Calls `allgather_async` and waits for the result, through which gradients flow."""
    (result,) = grouped_allgather([tensor], name, process_set)
    return result


def grouped_allgather(
    tensors: _Tensors, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[torch.Tensor]:
    """Calls `grouped_allgather_async` and waits for the result, through which gradients flow."""
    shapes = [tensor.shape for tensor in tensors]

    def gather(values: _Tensors) -> _Tensors:
        gathered: _Tensors = synchronize(grouped_allgather_async(values, name, process_set))
        return gathered

    def gradients_of(gradients: _Tensors) -> _Tensors:
        rows = [shape[0] for shape in shapes]
        rows_of_ranks = allgather(torch.tensor([rows], dtype=torch.int64, device="cpu"), process_set=process_set)
        begins = rows_of_ranks[: process_set.rank()].sum(0).tolist()
        reduced = grouped_allreduce(gradients, op=Average, process_set=process_set)
        return [gradient.narrow(0, begin, count) for gradient, begin, count in zip(reduced, begins, rows, strict=True)]

    return _differentiable(gather, gradients_of, tensors)


# Broadcast.


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Starts a broadcast of the root's tensor into a new one. `root_rank` is a global rank, also in a process set."""
    require_memory([tensor])
    copy = tensor.detach().clone(memory_format=torch.contiguous_format)
    return broadcast_async_(copy, root_rank, name, process_set)


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """The in-place form of `broadcast_async`."""
    members = process_set_members(process_set)
    require_root("broadcast", root_rank, members)
    root = members.index(root_rank)
    require_memory([tensor])
    buffer = tensor.detach().cpu()  # itself, if it is in host memory

    def complete(_: object) -> torch.Tensor:
        copy_back(buffer, tensor)
        return tensor

    return _start(RequestType.BROADCAST, name, [buffer], process_set, complete, root=root)


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Calls `broadcast_async` and waits for the result. Gradients flow to the root."""

    def gradients_of(gradients: _Tensors) -> _Tensors:
        reduced = allreduce(gradients[0], op=Average, process_set=process_set)
        if runtime.current().place.rank == root_rank:
            return [reduced]
        # The zeros are computed from the mean, so that this rank takes part if that is differentiated in turn.
        return [reduced.masked_fill(torch.ones_like(reduced, dtype=torch.bool), 0)]

    (result,) = _differentiable(
        lambda values: [synchronize(broadcast_async(values[0], root_rank, name, process_set))], gradients_of, [tensor]
    )
    return result


@_signed_as(broadcast_async_)
def broadcast_(*arguments: Any, **options: Any) -> torch.Tensor:
    """Calls `broadcast_async_` and waits for the result."""
    result: torch.Tensor = synchronize(broadcast_async_(*arguments, **options))
    return result


# All-to-all.


def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Starts to send rows of each rank's tensor to each rank: `splits[k]` rows to rank k, or equally many if None.

    The result is the received rows, in order of ranks, and how many came from each rank.
    """
    buffer = host_copy(tensor)
    mine = _splits(splits, _rows("all-to-all", [buffer]), _coordinator(process_set).group.size())

    def complete(result: tuple[torch.Tensor, list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        gathered, received = result
        return gathered.to(tensor.device), torch.tensor(received, dtype=torch.int32, device="cpu")

    return _start(RequestType.ALLTOALL, name, [buffer], process_set, complete, splits=tuple(mine))


def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Calls `alltoall_async` and waits for the result, through which gradients flow. Without `splits`, the result is
    the received rows alone."""
    received = torch.empty(0)

    def exchange(values: _Tensors) -> _Tensors:
        nonlocal received
        gathered, received = synchronize(alltoall_async(values[0], splits, name, process_set))
        return [gathered]

    def gradients_of(gradients: _Tensors) -> _Tensors:
        return alltoall(gradients[0], received, process_set=process_set)[:1]  # type: ignore[no-any-return]

    (gathered,) = _differentiable(exchange, gradients_of, [tensor])
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
    """Starts the sum or mean of which each rank gets some rows. If they cannot be shared equally, the first ranks get
    one more."""
    return _scatter_async(tensor, name, op, process_set, prescale_factor, postscale_factor)


def grouped_reducescatter_async(
    tensors: _Tensors,
    name: str | None = None,
    op: Op = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Runs `reducescatter_async` on tensors that become ready together. The result is a list."""
    return _scatter_async(tensors, name, op, process_set, prescale_factor, postscale_factor)


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: _Compressor = Compression.none,
    op: Op = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Calls `reducescatter_async` and waits for the result, through which gradients flow."""
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
    """Calls `grouped_reducescatter_async` and waits for the result, through which gradients flow."""
    factor = prescale_factor * postscale_factor
    if op is Sum:
        factor *= _coordinator(process_set).group.size()

    def scatter(values: _Tensors) -> _Tensors:
        handle = grouped_reducescatter_async(values, name, op, process_set, prescale_factor, postscale_factor)
        parts: _Tensors = synchronize(handle)
        return parts

    def gradients_of(gradients: _Tensors) -> _Tensors:
        return grouped_allgather([gradient * factor for gradient in gradients], process_set=process_set)

    return _differentiable(scatter, gradients_of, tensors, compression)


# Waiting, joining, barrier.


def poll(handle: Handle) -> bool:
    """True if `synchronize` would return at once."""
    return handle.done()


def synchronize(handle: Handle) -> Any:
    """Waits for the result and returns it. Raises a `HorovodInternalError` if the collective failed."""
    return handle.wait()


def join(device: int = -1) -> int:
    """Takes part, with zeros, in the all-reduces of the other ranks until all have joined. A rank without more data
    calls it.

    Earlier calls of this rank are done first. Returns the rank that was the last to join. `device` is ignored.
    """
    last: int = synchronize(runtime.current().coordinator(runtime.GLOBAL).join())
    return last


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns when all ranks of the set have called this function."""
    synchronize(_start(RequestType.BARRIER, None, [], process_set, lambda _: None))


# Gradients.


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: _Collective, gradients_of: _Collective, *tensors: torch.Tensor) -> Any:
        ctx.gradients_of = gradients_of
        return tuple(run(tensors))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return None, None, *ctx.gradients_of(gradients)


def _differentiable(
    run: _Collective, gradients_of: _Collective, tensors: _Tensors, compression: _Compressor = Compression.none
) -> list[torch.Tensor]:
    """Runs a collective; `gradients_of` computes the gradients of its inputs from the gradients of its results."""
    require_memory(tensors)
    compressed = [compression.compress(tensor) for tensor in tensors]
    results = _Differentiable.apply(  # type: ignore[no-untyped-call]
        run, gradients_of, *(tensor for tensor, _ in compressed)
    )
    return [compression.decompress(result, context) for result, (_, context) in zip(results, compressed, strict=True)]


# Starting.


def _reduce_async(
    given: _OneOrMore,
    in_place: bool,
    average: bool | None = None,
    name: str | None = None,
    op: Op | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    op = _operator(op, average)
    tensors = _listed(given)
    buffers = reduction_buffers(tensors, in_place, prescale_factor)

    def complete(_: object) -> object:
        results = []
        for tensor, buffer in zip(tensors, buffers, strict=True):
            scale(buffer, postscale_factor)
            if in_place:
                copy_back(buffer, tensor)
            results.append(tensor if in_place else buffer.to(tensor.device, tensor.dtype))
        return _like(given, results)

    scales = {"prescale": prescale_factor, "postscale": postscale_factor}
    return _start(RequestType.ALLREDUCE, name, buffers, process_set, complete, op=op, **scales)


def _scatter_async(
    given: _OneOrMore, name: str | None, op: Op, process_set: ProcessSet, prescale: float, postscale: float
) -> Handle:
    op = _operator(op, None)
    tensors = _listed(given)
    buffers = reduction_buffers(tensors, False, prescale)
    _rows("reduce-scatter", buffers)

    def complete(parts: list[torch.Tensor]) -> object:
        for part in parts:
            scale(part, postscale)
        # `to` copies, since a part may be a view of the whole.
        pairs = zip(parts, tensors, strict=True)
        return _like(given, [part.to(tensor.device, tensor.dtype, copy=True) for part, tensor in pairs])

    scales = {"prescale": prescale, "postscale": postscale}
    return _start(RequestType.REDUCESCATTER, name, buffers, process_set, complete, op=op, **scales)


def _gather_async(given: _OneOrMore, name: str | None, process_set: ProcessSet) -> Handle:
    tensors = _listed(given)
    buffers = [host_copy(tensor) for tensor in tensors]
    _rows("all-gather", buffers)

    def complete(gathered: list[torch.Tensor]) -> object:
        return _like(given, [whole.to(tensor.device) for whole, tensor in zip(gathered, tensors, strict=True)])

    return _start(RequestType.ALLGATHER, name, buffers, process_set, complete)


def _start(
    kind: RequestType,
    name: str | None,
    buffers: _Tensors,
    process_set: ProcessSet,
    complete: Callable[[Any], object],
    **fields: Any,
) -> Handle:
    assert all(tensor.is_cpu for tensor in buffers), "the network and Gloo read and write host memory"
    coordinator = _coordinator(process_set)
    request = Request(
        kind,
        f"{kind.value}.{name}" if name is not None else coordinator.next_name(),
        tuple(name_of(tensor.dtype) for tensor in buffers),
        tuple(tuple(tensor.shape) for tensor in buffers),
        named=name is not None,
        **fields,
    )
    return coordinator.submit(Handle(request, buffers, complete))


def process_set_members(process_set: ProcessSet) -> tuple[int, ...]:
    """The ranks of a process set, in order. A set that was not added counts as all ranks: the call is refused when it
    starts."""
    return runtime.current().sets.get(process_set.process_set_id or 0, ())


def require_root(what: str, root_rank: int, members: Sequence[int]) -> None:
    """Raises a `ValueError` if the root is not one of the members."""
    if root_rank not in members:
        raise ValueError(f"{what} received invalid root rank {root_rank}: the process set has ranks {list(members)}")


def _coordinator(process_set: ProcessSet) -> Coordinator:
    return runtime.current().coordinator(process_set.process_set_id)


def _listed(given: _OneOrMore) -> _Tensors:
    return [given] if isinstance(given, torch.Tensor) else given


def _like(given: _OneOrMore, results: list[torch.Tensor]) -> object:
    return results[0] if isinstance(given, torch.Tensor) else results


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
    """The first dimension of the first tensor. ValueError if a tensor has none, or there is no tensor."""
    if not tensors:
        raise ValueError("a group of tensors has at least one")
    if any(tensor.dim() == 0 for tensor in tensors):
        raise ValueError(f"{what} goes along the first dimension, and a scalar has none: use .reshape(1)")
    return tensors[0].shape[0]


def _splits(splits: torch.Tensor | Iterable[int] | None, rows: int, size: int) -> list[int]:
    if splits is None:
        if rows % size:
            raise ValueError(
                f"an all-to-all without splits divides the first dimension, which is {rows}, equally among {size} ranks"
            )
        return [rows // size] * size
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
