"""The backend as a ProcessGroup of its own, used where the extension cannot be compiled (extension.py).

Python may subclass ProcessGroup in every PyTorch. PyTorch's own C++ (DDP's reducer, functional collectives) calls the
methods here through its trampoline, `PyProcessGroup`. Methods that the trampoline lacks go to the base class, and from
there to the Gloo backend that is registered for CPU tensors: slower, but correct.

A ProcessGroup is called before PyTorch's dispatcher, so profiler, CommDebugMode and fake tensors do not see its
collectives. torch.compile would trace into them, so it is told not to.
"""

# PyTorch's stubs describe overloads that its own callers do not use, under names that change between releases.
# mypy: disable-error-code="override"

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

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

from wiresum.torch.arguments import Tensors, listed, options_of
from wiresum.torch.backend import WiresumBackend

Method = TypeVar("Method", bound=Callable[..., Any])


def _untraced(method: Method) -> Method:
    """For torch.compile, which would trace into its methods."""
    disabled: Method = torch.compiler.disable(method)
    return disabled


class WiresumProcessGroup(dist.ProcessGroup):
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

    @_untraced
    def allreduce(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> dist.Work:
        return self.implementation.allreduce(listed(tensors), options_of(AllreduceOptions, opts, timeout))

    @_untraced
    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> dist.Work:
        return self.implementation.allreduce_coalesced(listed(tensors), options_of(AllreduceCoalescedOptions, opts))

    @_untraced
    def reduce(
        self, tensors: Any, opts: Any = None, op: Any = None, timeout: timedelta | None = None, *, root: int = 0
    ) -> dist.Work:
        if isinstance(opts, int):  # reduce(tensor, root, op)
            root, opts = opts, None
        opts = options_of(ReduceOptions, opts if opts is not None else op, timeout, rootRank=root)
        return self.implementation.reduce(listed(tensors), opts)

    @_untraced
    def reduce_scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> dist.Work:
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        return self.implementation.reduce_scatter(outputs, inputs, options_of(ReduceScatterOptions, opts, timeout))

    @_untraced
    def reduce_scatter_single(self, output: torch.Tensor, contribution: torch.Tensor, opts: Any = None) -> dist.Work:
        return self.implementation.reduce_scatter_single(output, contribution, options_of(ReduceScatterOptions, opts))

    @_untraced
    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> dist.Work:
        opts = options_of(ReduceScatterOptions, opts)
        return self.implementation.reduce_scatter_single_coalesced(outputs, inputs, opts)

    @_untraced
    def broadcast(
        self, tensors: Any, opts: Any = None, timeout: timedelta | None = None, *, root: int = 0
    ) -> dist.Work:
        if isinstance(opts, int):  # broadcast(tensor, root)
            root, opts = opts, None
        opts = options_of(BroadcastOptions, opts, timeout, rootRank=root)
        return self.implementation.broadcast(listed(tensors), opts)

    @_untraced
    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None) -> dist.Work:
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        return self.implementation.allgather(outputs, inputs, options_of(AllgatherOptions, opts, timeout))

    @_untraced
    def allgather_coalesced(self, output_lists: list[Tensors], inputs: Tensors, opts: Any = None) -> dist.Work:
        return self.implementation.allgather_coalesced(output_lists, inputs, options_of(AllgatherOptions, opts))

    @_untraced
    def all_gather_single(self, output: torch.Tensor, contribution: torch.Tensor, opts: Any = None) -> dist.Work:
        return self.implementation.all_gather_single(output, contribution, options_of(AllgatherOptions, opts))

    @_untraced
    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> dist.Work:
        return self.implementation.all_gather_single_coalesced(outputs, inputs, options_of(AllgatherOptions, opts))

    @_untraced
    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> dist.Work:
        return self.implementation.barrier(options_of(BarrierOptions, opts, timeout))

    @_untraced
    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        return self.implementation.gather(outputs, inputs, options_of(GatherOptions, opts))

    @_untraced
    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        return self.implementation.scatter(outputs, inputs, options_of(ScatterOptions, opts))

    @_untraced
    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> dist.Work:
        return self.implementation.alltoall(outputs, inputs, options_of(AllToAllOptions, opts))

    @_untraced
    def all_to_all_single(
        self,
        output: torch.Tensor,
        contribution: torch.Tensor,
        output_splits: list[int],
        input_splits: list[int],
        opts: Any = None,
    ) -> dist.Work:
        opts = options_of(AllToAllOptions, opts)
        return self.implementation.all_to_all_single(output, contribution, output_splits, input_splits, opts)

    # The names that they had before PyTorch 2.13.

    _allgather_base = all_gather_single  # type: ignore[assignment]
    allgather_into_tensor_coalesced = all_gather_single_coalesced  # type: ignore[assignment]
    _reduce_scatter_base = reduce_scatter_single  # type: ignore[assignment]
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced  # type: ignore[assignment]
    alltoall_base = all_to_all_single  # type: ignore[assignment]

    @_untraced
    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> dist.Work:
        return self.implementation.send(tensors, dst, tag)

    @_untraced
    def recv(self, tensors: Tensors, src: int, tag: int = 0) -> dist.Work:
        return self.implementation.recv(tensors, src, tag)

    @_untraced
    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> dist.Work:
        return self.implementation.recv_anysource(tensors, tag)

    @_untraced
    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        self.implementation.monitored_barrier(options_of(BarrierOptions, None, timeout), wait_all_ranks)

    def set_timeout(self, timeout: timedelta) -> None:
        self.implementation.set_timeout(timeout)

    def _start_coalescing(self, device: torch.device) -> None:
        self.implementation.start_coalescing()

    def _end_coalescing(self, device: torch.device) -> dist.Work:
        return self.implementation.end_coalescing()

    def shutdown(self) -> None:
        self.implementation.shutdown()

    def abort(self) -> None:
        self.implementation.abort()
