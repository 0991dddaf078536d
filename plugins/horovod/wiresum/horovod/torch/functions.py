"""Broadcasts of parameters, optimizer states and objects, and an all-gather of objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from wiresum.horovod.torch import objects, runtime
from wiresum.horovod.torch.mpi_ops import (
    allgather,
    broadcast_,
    broadcast_async_,
    process_set_members,
    require_root,
    synchronize,
)
from wiresum.horovod.torch.process_sets import ProcessSet, global_process_set

UNNAMED = "object"
_SIZE_BYTES = 8


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
    """Replaces the optimizer state and options of all ranks by the root's.

    The state travels as a whole. Horovod first takes a step with zero gradients, for which it needs `model`, which is
    ignored here. Raises a `ValueError` for L-BFGS.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("cannot broadcast torch.optim.LBFGS state")
    is_root = runtime.current().place.rank == root_rank
    # The state travels in host memory, since other ranks may lack the root's device, or use it otherwise. Loading
    # copies it to the device of each parameter.
    state = tree_map_only(torch.Tensor, torch.Tensor.cpu, optimizer.state_dict()) if is_root else None
    state = broadcast_object(state, root_rank, name="optimizer_state", process_set=process_set)
    if not is_root:
        optimizer.load_state_dict(state)


def broadcast_object(
    obj: Any = None, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Returns the root's object, of any type that cloudpickle takes.

    The object is unpickled only if a member of the job has sent it (objects.py); else raises a `HorovodInternalError`.
    """
    place, members = runtime.current().place, process_set_members(process_set)
    require_root("broadcast_object", root_rank, members)
    is_root = place.rank == root_rank
    body = objects.pickled(obj) if is_root else b""
    name = name or UNNAMED
    sizes, nonces = _announce(objects.TAG_BYTES + len(body), name, process_set)
    call, secret = ("broadcast_object", name, root_rank), runtime.current().members_secret
    if is_root:
        message = _as_tensor(objects.sealed(body, secret, call, nonces))
    else:
        message = torch.empty(sizes[members.index(root_rank)], dtype=torch.uint8, device="cpu")
    broadcast_(message, root_rank, f"{name}.bytes", process_set)
    return obj if is_root else objects.unpickled(objects.opened(_as_bytes(message), secret, call, nonces))


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Returns every rank's object, in order of ranks. The objects are unpickled only if members of the job have sent
    them all; else raises a `HorovodInternalError`."""
    body = objects.pickled(obj)
    name = name or UNNAMED
    sizes, nonces = _announce(objects.TAG_BYTES + len(body), name, process_set)
    secret = runtime.current().members_secret
    calls = [("allgather_object", name, member) for member in process_set_members(process_set)]
    mine = calls[_own_position(process_set)]
    gathered = allgather(_as_tensor(objects.sealed(body, secret, mine, nonces)), f"{name}.bytes", process_set)
    messages = map(_as_bytes, gathered.split(sizes))
    bodies = [objects.opened(message, secret, call, nonces) for message, call in zip(messages, calls, strict=True)]
    return [objects.unpickled(body) for body in bodies]


def gather_bytes(message: bytes, name: str, process_set: ProcessSet) -> list[bytes]:
    """Returns every rank's message, in order of ranks; all messages have the same length."""
    return [_as_bytes(row) for row in allgather(_as_tensor(message).reshape(1, -1), name, process_set)]


def _announce(size: int, name: str, process_set: ProcessSet) -> tuple[list[int], list[bytes]]:
    """Tells the other ranks the length of this rank's message. Returns all ranks' lengths, and a number that each rank
    has drawn for this call."""
    nonce = objects.draw_nonce()
    said = gather_bytes(size.to_bytes(_SIZE_BYTES, "big") + nonce, f"{name}.size", process_set)
    nonces = [row[_SIZE_BYTES:] for row in said]
    nonces[_own_position(process_set)] = nonce  # not the number that came back, which an attacker may have changed
    return [int.from_bytes(row[:_SIZE_BYTES], "big") for row in said], nonces


def _own_position(process_set: ProcessSet) -> int:
    return process_set_members(process_set).index(runtime.current().place.rank)


def _as_tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _as_bytes(tensor: torch.Tensor) -> bytes:
    return tensor.numpy().tobytes()
