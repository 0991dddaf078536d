"""The backend as a ProcessGroup of its own, used where the extension cannot be compiled (extension.py).

PyTorch's own C++ (DDP's reducer, functional collectives) calls the methods here through its trampoline,
`PyProcessGroup`. Methods that the trampoline lacks go to the base class, and from there to the Gloo backend that is
registered for CPU tensors: slower, but correct.

A ProcessGroup is called before PyTorch's dispatcher, so profiler, CommDebugMode and fake tensors do not see its
collectives, and torch.compile is told not to trace into them.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
    Store,
)

from wiresum.torch.backend import WiresumBackend
from wiresum.torch.gloo import without_extension
from wiresum.torch.names import installed_name

COLLECTIVES: dict[str, tuple[Any, int]] = {
    "allreduce": (AllreduceOptions, 1),
    "allreduce_coalesced": (AllreduceCoalescedOptions, 1),
    "reduce": (ReduceOptions, 1),
    "broadcast": (BroadcastOptions, 1),
    "reduce_scatter": (ReduceScatterOptions, 2),
    "reduce_scatter_single": (ReduceScatterOptions, 2),
    "reduce_scatter_single_coalesced": (ReduceScatterOptions, 2),
    "allgather": (AllgatherOptions, 2),
    "allgather_coalesced": (AllgatherOptions, 2),
    "all_gather_single": (AllgatherOptions, 2),
    "all_gather_single_coalesced": (AllgatherOptions, 2),
    "barrier": (BarrierOptions, 0),
    "gather": (GatherOptions, 2),
    "scatter": (ScatterOptions, 2),
    "alltoall": (AllToAllOptions, 2),
    "all_to_all_single": (AllToAllOptions, 4),
}
"""The type of options, and the number of arguments before them, by name."""
TAKE_ONE_TENSOR = ("allreduce", "allreduce_coalesced", "reduce", "broadcast", "reduce_scatter", "allgather")
"""Collectives that take one tensor instead of a list."""
OPERATORS = (dist.ReduceOp, dist.ReduceOp.RedOpType)


class WiresumProcessGroup(dist.ProcessGroup):
    supports_reconfigure = False

    def __init__(self, store: Store, backend: WiresumBackend) -> None:
        # The constructor that takes a store cannot make subclasses.
        super().__init__(backend.rank, backend.size)  # type: ignore[call-arg]
        self._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        self._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend.gloo.backend)
        self._store = store
        self.implementation = backend

    def getBackendName(self) -> str:  # noqa: N802
        return "wiresum"

    def get_group_store(self) -> Store:
        return self._store

    def send(self, tensors: Any, dst: int, tag: int = 0) -> dist.Work:
        return self.implementation.send(tensors, dst, tag)

    def recv(self, tensors: Any, src: int, tag: int = 0) -> dist.Work:
        return self.implementation.recv(tensors, src, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> dist.Work:
        return self.implementation.recv_anysource(tensors, tag)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        self.implementation.monitored_barrier(_options(BarrierOptions, (), timeout=timeout), wait_all_ranks)

    def set_timeout(self, timeout: timedelta) -> None:
        self.implementation.set_timeout(timeout)

    def _start_coalescing(self, device: torch.device) -> None:
        self.implementation.start_coalescing()

    def _end_coalescing(self, device: torch.device) -> dist.Work:
        return self.implementation.end_coalescing()

    def get_reconfigure_handle(self) -> str:
        raise without_extension("reconfigure")

    def reconfigure(self, opts: Any) -> dist.Work:
        raise without_extension("reconfigure")

    def shutdown(self) -> None:
        self.implementation.shutdown()

    def abort(self) -> None:
        self.implementation.abort()


def _collective(name: str, kind: Any, count: int) -> Callable[..., dist.Work]:
    def collective(self: WiresumProcessGroup, *arguments: Any, **named: Any) -> dist.Work:
        given: Any = arguments[:count]
        if name in TAKE_ONE_TENSOR and any(isinstance(argument, torch.Tensor) for argument in given):
            given = [[argument] for argument in given]
        work: dist.Work = getattr(self.implementation, name)(*given, _options(kind, arguments[count:], **named))
        return work

    return collective


def _options(kind: Any, arguments: tuple[Any, ...], **named: Any) -> Any:
    """The given options object, or one made of the given operator, root and time-out."""
    options = kind()
    for value in (*arguments, *named.values()):
        if isinstance(value, kind):
            return value
        if isinstance(value, int):
            options.rootRank = value
        elif isinstance(value, OPERATORS):
            options.reduceOp = value
        elif value is not None:
            options.timeout = value
    return options


for _name, (_kind, _count) in COLLECTIVES.items():
    setattr(WiresumProcessGroup, installed_name(_name), _collective(_name, _kind, _count))
for _name in (*map(installed_name, COLLECTIVES), "send", "recv", "recv_anysource", "monitored_barrier"):
    setattr(WiresumProcessGroup, _name, torch.compiler.disable(getattr(WiresumProcessGroup, _name)))
