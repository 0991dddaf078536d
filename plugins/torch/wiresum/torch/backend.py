"""Sends each collective of `torch.distributed` either to the network (network.py) or to Gloo (gloo.py).

The choice depends only on what is the same at all workers: operator, dtypes, layouts and sizes. Collectives of the
network and of Gloo need no order between them.

The methods have the names of PyTorch's `Backend` in Python, and take what its C++ passes: lists of tensors and an
options object. PyTorch calls them through backend.cpp, or through process_group.py where that cannot be compiled.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import time
import weakref
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from wiresum.torch import plan as plans
from wiresum.torch import rows
from wiresum.torch.gloo import Gloo, tensors_in
from wiresum.torch.network import Network
from wiresum.torch.plan import Tensors
from wiresum.torch.statistics import GroupStats, Way
from wiresum.torch.work import GroupedWork, NetworkWork, StartedWork

EXIT_LINGER_S = 1.0
"""How long a process that exits without destroy_process_group lingers: others may ask for lost packets."""

SHRINK_ABORT = 0x01
"""The flag's value in `torch.distributed`."""

_SUM, _AVERAGE, _PREMULTIPLIED_SUM = dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.PREMUL_SUM


class Spec(Protocol):
    """A backend has what it was made from (`creation.GroupSpec`) make the backends of its group's other forms."""

    def part(self, store: Store, ranks: list[int], name: str, rank: int, timeout: timedelta) -> WiresumBackend: ...

    def rest(self, ranks: list[int], rank: int, timeout: timedelta) -> WiresumBackend: ...

    def changed(self, pg_options: object) -> Spec: ...


class WiresumBackend:
    """`network` is None in a group of one worker, and in one that got no lease at the switch: Gloo does everything.
    `spec` is what the backend was made from; from the same are made those of other members of the group."""

    def __init__(self, rank: int, size: int, *, gloo: Gloo, network: Network | None, spec: Spec) -> None:
        self.rank = rank
        self.size = size
        self.gloo = gloo
        self.network = network
        self.spec = spec
        self._parts: weakref.WeakValueDictionary[str, WiresumBackend] = weakref.WeakValueDictionary()
        self.is_forked = False
        """This process is a child of the member."""
        self._closed = False
        self._coalescing: list[StartedWork] | None = None
        _open.add(self)

    @property
    def direct(self) -> Any:
        """The C++ path of most calls, which bypasses this object (direct.hpp); None if the group has none."""
        return self.network.direct if self.network is not None else None

    def attend(self, work: NetworkWork) -> None:
        """Calls Network.attend; raises in a forked child, which has no such thread, but perhaps the locks."""
        self._require_no_fork()
        assert self.network is not None, "it was submitted there"
        self.network.attend(work)

    # Collectives that the network does.

    def allreduce(self, tensors: Tensors, opts: Any) -> dist.Work:
        return self._all_reduce("all_reduce", "allreduce", tensors, opts)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any) -> dist.Work:
        return self._all_reduce("all_reduce_coalesced", "allreduce_coalesced", tensors, opts)

    def _all_reduce(self, name: str, gloo_name: str, tensors: Tensors, opts: Any) -> dist.Work:
        adding = self._adding(opts, tensors)
        if self.network is not None and (todo := plans.all_reduce_of(tensors, opts.reduceOp, self.size)) is not None:
            return self._started(self.network.run(name, todo, opts, tensors, summed=tensors))
        if adding is not None and all(rows.is_row_sparse(tensor) for tensor in tensors):
            return self._started(adding.run_rows(name, tensors, opts))
        alike = [[each for each in tensors if each.dtype == dtype] for dtype in {each.dtype: None for each in tensors}]
        return self._grouped(
            self.gloo.run_sum(name, gloo_name, (some,), opts, summed=some) for some in alike or [tensors]
        )

    def reduce(self, tensors: Tensors, opts: Any) -> dist.Work:
        summed = tensors if opts.rootRank == self.rank else []
        if (network := self._adding(opts, tensors)) is not None and plans.carries(tensors, summed=True):
            self._require_root("reduce", opts)
            (tensor,) = tensors
            plan = plans.reduce(tensor, root=opts.rootRank, rank=self.rank, factor=plans.factor_of(opts.reduceOp))
            return self._started(network.run("reduce", [plan], opts, tensors, summed=summed))
        return self._started(self.gloo.run_sum("reduce", "reduce", (tensors,), opts, summed=summed, written=tensors))

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> dist.Work:
        given = tensors_in(inputs)
        network = self._adding(opts, [*outputs, *given])
        if network is not None and plans.carries([*outputs, *given], summed=True):
            self._require_parts("reduce-scatter", inputs)
            factor = plans.factor_of(opts.reduceOp)
            todo = plans.reduce_scatter(list(zip(outputs, inputs, strict=True)), rank=self.rank, factor=factor)
            return self._started(network.run("reduce_scatter", todo, opts, outputs, summed=outputs, given=given))
        return self._started(
            self.gloo.run_sum("reduce_scatter", "reduce_scatter", (outputs, inputs), opts, summed=outputs)
        )

    def reduce_scatter_single(self, output: torch.Tensor, contribution: torch.Tensor, opts: Any) -> dist.Work:
        return self.reduce_scatter_single_coalesced([output], [contribution], opts)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any) -> dist.Work:
        network = self._adding(opts, [*outputs, *inputs])
        if network is not None and plans.carries([*outputs, *inputs], summed=True):
            pairs = list(zip(outputs, inputs, strict=True))
            factor = plans.factor_of(opts.reduceOp)
            todo = plans.reduce_scatter_single(pairs, rank=self.rank, size=self.size, factor=factor)
            work = network.run("reduce_scatter_single", todo, opts, outputs, summed=outputs, given=inputs)
            return self._started(work)
        return self._started(
            self.gloo.run_sum(
                "reduce_scatter_single", "reduce_scatter_single_coalesced", (outputs, inputs), opts, summed=outputs
            )
        )

    def broadcast(self, tensors: Tensors, opts: Any) -> dist.Work:
        if (network := self._copying(tensors)) is not None:
            self._require_root("broadcast", opts)
            plan = plans.broadcast(tensors, root=opts.rootRank, rank=self.rank)
            return self._started(network.run("broadcast", [plan], opts, tensors))
        return self._started(self.gloo.run("broadcast", "broadcast", tensors, opts, written=tensors))

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> dist.Work:
        written = tensors_in(outputs)
        if (network := self._copying([*inputs, *written])) is not None:
            self._require_parts("all-gather", outputs)
            plan = plans.all_gather(list(zip(outputs, inputs, strict=True)), rank=self.rank)
            return self._started(network.run("all_gather", [plan], opts, written))
        return self._grouped(
            self.gloo.run("all_gather", "allgather", [parts], [given], opts, written=parts)
            for parts, given in zip(outputs, inputs, strict=True)
        )

    def allgather_coalesced(self, output_lists: Sequence[Tensors], inputs: Tensors, opts: Any) -> dist.Work:
        """`output_lists[k]` receives worker k's input: nested the other way than in `allgather`."""
        by_tensor = [list(outputs) for outputs in zip(*output_lists, strict=True)]
        return self.allgather(by_tensor, inputs, opts)

    def all_gather_single(self, output: torch.Tensor, contribution: torch.Tensor, opts: Any) -> dist.Work:
        return self.all_gather_single_coalesced([output], [contribution], opts)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any) -> dist.Work:
        if (network := self._copying([*outputs, *inputs])) is not None:
            pairs = list(zip(outputs, inputs, strict=True))
            plan = plans.all_gather_single(pairs, rank=self.rank, size=self.size)
            return self._started(network.run("all_gather_single", [plan], opts, outputs))
        return self._started(
            self.gloo.run("all_gather_single", "all_gather_single_coalesced", outputs, inputs, opts, written=outputs)
        )

    def barrier(self, opts: Any) -> dist.Work:
        if (network := self._copying([])) is not None:
            return self._started(network.run("barrier", [plans.barrier()], opts, []))
        return self._started(self.gloo.run("barrier", "barrier", opts, written=[]))

    # Collectives that Gloo does.

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> dist.Work:
        return self._delegate("gather", "gather", outputs, inputs, opts, written=tensors_in(outputs))

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> dist.Work:
        return self._delegate("scatter", "scatter", outputs, inputs, opts, written=outputs)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any) -> dist.Work:
        return self._delegate("all_to_all", "alltoall", outputs, inputs, opts, written=outputs)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        contribution: torch.Tensor,
        output_splits: list[int],
        input_splits: list[int],
        opts: Any,
    ) -> dist.Work:
        arguments = (output, contribution, output_splits, input_splits, opts)
        return self._delegate("all_to_all_single", "all_to_all_single", *arguments, written=[output])

    def send(self, tensors: Tensors, dst: int, tag: int) -> dist.Work:
        return self._delegate("send", "send", tensors, dst, tag, written=[])

    def recv(self, tensors: Tensors, src: int, tag: int) -> dist.Work:
        return self._delegate("recv", "recv", tensors, src, tag, written=tensors)

    def recv_anysource(self, tensors: Tensors, tag: int) -> dist.Work:
        return self._delegate("recv", "recv_anysource", tensors, tag, written=tensors)

    def monitored_barrier(self, opts: Any, wait_all_ranks: bool) -> None:
        self._require_usable()
        self.gloo.monitored_barrier(opts.timeout, wait_all_ranks)

    def start_coalescing(self) -> None:
        self._coalescing = []

    def end_coalescing(self) -> dist.Work:
        works, self._coalescing = self._coalescing or [], None
        return GroupedWork(works)

    # The group itself.

    @property
    def timeout(self) -> timedelta:
        """The timeout of collectives that are called without one."""
        return self.gloo.timeout

    def set_timeout(self, timeout: timedelta) -> None:
        self.gloo.timeout = timeout

    def split(self, store: Store, ranks: Sequence[int], name: str, timeout: timedelta) -> WiresumBackend | None:
        """The backend of `ranks`; None at other members. PyTorch calls `split` for each kind of device, and all share
        one."""
        if self.rank not in ranks:
            return None
        part = self._parts.get(name)
        if part is None or part._closed:
            part = self._parts[name] = self.spec.part(store, list(ranks), name, self.rank, timeout)
        return part

    def shrink(self, excluded: Sequence[int], flags: int, pg_options: object) -> WiresumBackend:
        """The backend of the other members, who all call it. This one's job is over first, so that its slots are free.
        Without `pg_options` it has this one's.
        """
        self._require_no_fork()
        _correct_shrunk_groups()
        spec = self.spec.changed(pg_options)
        if flags & SHRINK_ABORT:
            self.abort()
        else:
            self.shutdown()
        rest = [member for member in range(self.size) if member not in excluded]
        return spec.rest(rest, self.rank, self.timeout)

    def stats(self) -> GroupStats:
        network = self.network
        calls: Counter[Way] = Counter({"gloo": self.gloo.calls})
        carried: Counter[Way] = Counter({"gloo": self.gloo.bytes})
        if network is not None:
            calls, carried = calls + network.calls_by_way, carried + network.bytes_by_way
        return GroupStats(
            job=network.session.job_name if network else "",
            service=network.session.service if network else "",
            moved=network.session.moved if network else None,
            collectives_network=Counter(network.collectives if network else ()),
            collectives_gloo=Counter(self.gloo.collectives),
            bytes_reduced=network.bytes_summed if network else 0,
            bytes_copied=network.bytes_copied if network else 0,
            calls_by_way=calls,
            bytes_by_way=carried,
            network=network.session.stats() if network else None,
        )

    def shutdown(self) -> None:
        """Leaves the job, after a moment for pending works to end. destroy_process_group calls it."""
        if self._closed or self.is_forked:
            return
        if self.network is not None:
            self.network.drain()
        pending = self.gloo.drain()
        if self.network is not None:
            self.network.say_finished(pending[0].number if pending else None)
        self._close()
        self.gloo.end()  # otherwise others would wait for messages that this worker no longer sends

    def abort(self) -> None:
        """Ends the job for everybody, now. Pending works fail here and elsewhere."""
        if self._closed or self.is_forked:
            return
        if self.network is not None:
            self.network.session.abort(f"{self.network.name} called abort() on its process group")
            self.gloo.break_connections()
        self._close()
        self.gloo.end()

    def _close(self) -> None:
        if self._closed or self.is_forked:
            return
        self._closed = True
        _open.discard(self)
        if self.network is not None:
            self.network.close()

    def abort_at_exit(self, error: BaseException | None) -> None:
        """Tells the others that the process ends without destroy_process_group; otherwise they would wait."""
        if self.network is None or self._closed:
            return
        if error is None:
            reason = f"{self.network.name} exited without destroy_process_group()"
        else:
            reason = f"{self.network.name} ended with {type(error).__name__}: {error}"
        self.network.session.abort(reason)

    def close_at_exit(self) -> None:
        if self.network is not None:
            self._close()

    def forget_after_fork(self) -> None:
        self.is_forked = True
        _kept_after_fork.append(self)

    def _require_no_fork(self) -> None:
        if self.is_forked:
            raise RuntimeError(
                "this process was forked from a member of the wiresum process group and is none itself: "
                "start workers with 'spawn', or use collectives in the parent only"
            )

    def _require_usable(self, tensors: Iterable[torch.Tensor] = ()) -> None:
        """Raises if the group, or a tensor of the call, cannot be used."""
        self._require_no_fork()
        if self.network is not None:
            self.network.require_group()
        plans.require_memory(tensors)

    def _require_root(self, name: str, opts: Any) -> None:
        """Raises ValueError for a rank that is not there, which in the network would contribute zeros."""
        if not 0 <= opts.rootRank < self.size:
            raise ValueError(f"{name}: the root is rank {opts.rootRank}, and the group has 0 to {self.size - 1}")

    def _require_parts(self, name: str, lists: Sequence[Tensors]) -> None:
        for parts in lists:
            if len(parts) != self.size:
                raise ValueError(
                    f"{name}: a list must have a tensor for each of the {self.size} workers, and has {len(parts)}"
                )

    def _adding(self, opts: Any, tensors: Sequence[torch.Tensor]) -> Network | None:
        """The network, if it supports this operator. `tensors` are all tensors of the call."""
        self._require_usable(tensors)
        operator = opts.reduceOp
        if operator == _PREMULTIPLIED_SUM:
            if not all(t.is_floating_point() and t.layout is torch.strided and not plans.is_fp8(t) for t in tensors):
                raise TypeError("PREMUL_SUM is for dense tensors of floats of 16 bits or more")
            return self.network
        # Not `in`: only opts.reduceOp's own `==` can compare the two types.
        return self.network if operator == _SUM or operator == _AVERAGE else None  # noqa: SIM109

    def _copying(self, tensors: Sequence[torch.Tensor]) -> Network | None:
        """The network, if it can carry the bytes of these tensors, which are all of the call."""
        self._require_usable(tensors)
        return self.network if plans.carries(tensors, summed=False) else None

    def _delegate(self, name: str, method: str, *arguments: Any, written: Tensors) -> dist.Work:
        self._require_usable(tensors_in(arguments))
        return self._started(self.gloo.run(name, method, *arguments, written=written))

    def _grouped(self, works: Iterable[StartedWork]) -> dist.Work:
        """One work for several calls of Gloo's, which takes tensors of one type, and gathers one at a time."""
        started = list(works)
        return self._started(started[0] if len(started) == 1 else GroupedWork(started))

    def _started(self, work: StartedWork) -> dist.Work:
        if self._coalescing is not None:
            self._coalescing.append(work)
        return work


class Unconnected:
    """It stands in for a WiresumBackend in a group with `enable_reconfigure`, until that is reconfigured."""

    direct = None

    def __init__(self, spec: Spec, rank: int, size: int, timeout: timedelta) -> None:
        self.spec, self.rank, self.size, self.timeout = spec, rank, size, timeout

    def set_timeout(self, timeout: timedelta) -> None:
        self.timeout = timeout

    def shutdown(self) -> None:
        """There is nothing to leave."""

    abort = shutdown

    def __getattr__(self, method: str) -> Any:
        raise RuntimeError(
            f"{method}: a group that was made with enable_reconfigure has no members before reconfigure()"
        )


def backend_of(group: Any) -> WiresumBackend | None:
    """A process group's wiresum backend; None if it has none."""
    for candidate in (group, *(group._get_backend(device) for device in group._device_types)):
        found = candidate
        while hasattr(found, "wrapped_pg"):  # TORCH_DISTRIBUTED_DEBUG=DETAIL
            found = found.wrapped_pg
        if isinstance(implementation := getattr(found, "implementation", None), WiresumBackend):
            return implementation
    return None


@functools.cache
def _correct_shrunk_groups() -> None:
    """Makes a shrunk group of this backend report a custom backend. PyTorch reports its backend as Gloo, and DDP's
    logger, in C++, then reads a field that only Gloo's has."""
    module: Any = dist.distributed_c10d
    create, custom = module._create_shrunk_process_group, dist.ProcessGroup.BackendType.CUSTOM

    def create_and_correct(*arguments: Any, **named: Any) -> dist.ProcessGroup:
        group: Any = create(*arguments, **named)
        if backend_of(group) is not None:
            for device in group._device_types:
                group._register_backend(device, custom, group._get_backend(device))
            group._set_default_backend(custom)
        return group  # type: ignore[no-any-return]

    module._create_shrunk_process_group = create_and_correct


def stats_of(group: dist.ProcessGroup | None) -> GroupStats:
    group = group if group is not None else dist.group.WORLD
    backend = backend_of(group) if group is not None else None
    if backend is None:
        raise ValueError(f"statistics are for process groups of the wiresum backend, not for {group}")
    return backend.stats()


def _leave_at_exit() -> None:
    backends = list(_open)
    error = getattr(sys, "last_value", None)
    if error is None and any(backend.network is not None for backend in backends):
        time.sleep(EXIT_LINGER_S)  # once for all groups
    for backend in backends:
        backend.abort_at_exit(error)  # all before the first waits for its service to hear: they wait together
    for backend in backends:
        backend.close_at_exit()


def _forget_after_fork() -> None:
    for backend in list(_open):
        backend.forget_after_fork()
    _open.clear()


_open: weakref.WeakSet[WiresumBackend] = weakref.WeakSet()
_kept_after_fork: list[WiresumBackend] = []
"""Backends kept in a forked child, which has none of the parent's threads, and must not close the parent's sockets."""
atexit.register(_leave_at_exit)
os.register_at_fork(after_in_child=_forget_after_fork)
