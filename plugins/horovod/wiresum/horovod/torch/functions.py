"""Parameters, optimizer states and objects, from one rank to all."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from wiresum.horovod.torch import runtime
from wiresum.horovod.torch.mpi_ops import allgather, broadcast_, broadcast_async_, synchronize
from wiresum.horovod.torch.process_sets import ProcessSet, global_process_set


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set
) -> None:
    """Gives all ranks the root's tensors. `params` is a `state_dict()`, `named_parameters()` or `parameters()`.

    Values of a `state_dict()` that are not tensors do not change.
    """
    if isinstance(params, Mapping):
        named = sorted(params.items())
    elif isinstance(params, Iterable) and not isinstance(params, (str, bytes, torch.Tensor)):
        named = [item if isinstance(item, tuple) else (None, item) for item in params]
    else:
        raise ValueError(f"invalid params of type: {type(params)}")
    handles = [
        broadcast_async_(tensor, root_rank, name, process_set)
        for name, tensor in named
        if isinstance(tensor, torch.Tensor)
    ]
    for handle in handles:
        synchronize(handle)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Gives all ranks the root's optimizer state and options, whatever they have.

    The state travels as a whole. Horovod first takes a step with zero gradients, for which it needs `model`, which is
    ignored here. Raises a `ValueError` for L-BFGS.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("cannot broadcast torch.optim.LBFGS state")
    state = optimizer.state_dict() if runtime.current().place.rank == root_rank else None
    state = broadcast_object(state, root_rank, name="optimizer_state", process_set=process_set)
    if runtime.current().place.rank != root_rank:
        optimizer.load_state_dict(state)


def broadcast_object(
    obj: Any = None, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The root's object. It is pickled: ranks trust each other."""
    is_root = runtime.current().place.rank == root_rank
    pickled = _pickled(obj) if is_root else torch.empty(0, dtype=torch.uint8)
    name = name or "object"
    size = broadcast_(torch.tensor([pickled.numel()], dtype=torch.int64), root_rank, f"{name}.size", process_set)
    if not is_root:
        pickled = torch.empty(int(size), dtype=torch.uint8)
    broadcast_(pickled, root_rank, f"{name}.bytes", process_set)
    return obj if is_root else _unpickled(pickled)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Every rank's object, in order of ranks. They are pickled: ranks trust each other."""
    pickled = _pickled(obj)
    name = name or "object"
    sizes = allgather(torch.tensor([pickled.numel()], dtype=torch.int64), f"{name}.size", process_set)
    gathered = allgather(pickled, f"{name}.bytes", process_set)
    return [_unpickled(part) for part in gathered.split(sizes.tolist())]


def _pickled(obj: Any) -> torch.Tensor:
    """By torch.save, which handles all tensors and preserves shared memory."""
    buffer = io.BytesIO()
    torch.save(obj, buffer, pickle_protocol=pickle.HIGHEST_PROTOCOL)
    return torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)


def _unpickled(pickled: torch.Tensor) -> Any:
    return torch.load(io.BytesIO(pickled.numpy().tobytes()), weights_only=False)
