"""The process group: takes each collective of `torch.distributed` either into the network or to Gloo.

It subclasses `ProcessGroup` rather than `Backend`, since PyTorch lets Python subclass only the former. PyTorch's own
C++ (DDP's reducer, functional collectives) reaches the methods here through its trampoline, `PyProcessGroup`. What
the trampoline does not know goes to the base class, and there to the Gloo backend that is registered for CPU tensors:
slower, and right.

Which way a collective takes depends only on what is the same at all workers: operator, dtypes and layouts. The two
ways need no order between them.
"""

# PyTorch's stubs describe overloads that its own callers do not use, under names that change between releases.
# mypy: disable-error-code="override"

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
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
    ProcessGroupGloo,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
    Store,
)

from wiresum.agent.errors import DivergedError, JobAbortedError, SessionClosedError, WiresumError
from wiresum.agent.session import FLOATING, Dtype, Operation, Scaling, Session
from wiresum.torch import plan as plans
from wiresum.torch import rows
from wiresum.torch.arguments import Tensors, flat, listed, options_of, tensors_in
from wiresum.torch.attendant import Attendant
from wiresum.torch.calls import CallLog, described
from wiresum.torch.errors import WiresumTimeoutError, as_torch_error
from wiresum.torch.gloo import break_connections, connections_are_broken, divide, staged_for_gloo, without_average
from wiresum.torch.order import SubmissionOrder
from wiresum.torch.plan import Plan
from wiresum.torch.statistics import GroupStats
from wiresum.torch.work import CompletedWork, GlooWork, GroupedWork, NetworkWork

log = logging.getLogger("wiresum")

DRAIN_TIMEOUT_S = 5.0
"""How long destroy_process_group waits for works that nobody has waited for."""
CAUSE_TIMEOUT_S = 5.0
"""How long to wait for the service to say who was lost, after Gloo found a connection broken."""
EXIT_LINGER_S = 1.0
"""A process that exits without destroy_process_group stays for so long: others may still ask for a lost packet."""

_UNSET = timedelta(0)
_SUM, _AVERAGE = dist.ReduceOp.SUM, dist.ReduceOp.AVG

_live: weakref.WeakSet[WiresumProcessGroup] = weakref.WeakSet()
_kept_after_fork: list[WiresumProcessGroup] = []


class WiresumProcessGroup(dist.ProcessGroup):
    """`session` is None in a group of one worker, and in one that the switch had no room for: then all is Gloo's."""

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        *,
        gloo: ProcessGroupGloo,
        whole_gloo: dist.ProcessGroup,
        session: Session | None,
        calls: CallLog,
        lane_bits: int,
        fixed_scale: float | None,
    ) -> None:
        # The constructor that takes a store cannot make subclasses.
        super().__init__(rank, size)  # type: ignore[call-arg]
        self._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        self._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
        self._store = store
        self._rank = rank
        self._size = size
        self._gloo_backend = gloo
        self._gloo_options = gloo.options
        self._gloo_group = whole_gloo
        self._session = session
        self._calls = calls
        self._lane_bits = lane_bits
        self._fixed_scale = fixed_scale
        self._failure: Exception | None = None
        self._forked = False
        self._closed = False
        self._pending: set[NetworkWork] = set()
        self._coalescing: list[dist.Work] | None = None
        self._collectives_network: Counter[str] = Counter()
        self._collectives_gloo: Counter[str] = Counter()
        self._bytes: Counter[bool] = Counter()
        self._attendant = (
            Attendant(session, name=f"wiresum-{session.job_name}", on_failure=self._break_gloo) if session else None
        )
        self._order = SubmissionOrder(f"wiresum-order-{session.job_name}" if session else "")
        _live.add(self)

    def getBackendName(self) -> str:  # noqa: N802
        return "wiresum"

    def get_group_store(self) -> Store:
        return self._store

    # Collectives that the network does.

    def allreduce(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> dist.Work:
        opts = options_of(AllreduceOptions, opts, timeout)
        return self._all_reduce("all_reduce", "allreduce", listed(tensors), opts)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> dist.Work:
        opts = options_of(AllreduceCoalescedOptions, opts)
        return self._all_reduce("all_reduce_coalesced", "allreduce_coalesced", listed(tensors), opts)

    def _all_reduce(self, name: str, gloo_name: str, tensors: Tensors, opts: Any) -> dist.Work:
        if self._adds(opts):
            if plans.carries(tensors, summed=True):
                return self._run(name, plans.all_reduce(tensors), opts, tensors, summed=tensors)
            if all(rows.is_row_sparse(tensor) for tensor in tensors):
                return self._run_rows(name, tensors, opts)
        return self._delegate_sum(name, getattr(self._gloo_group, gloo_name), (tensors,), opts, summed=tensors)

    def _run_rows(self, name: str, tensors: Tensors, opts: Any) -> dist.Work:
        """A sum of sparse tensors: begins with what is exchanged in order to agree on their keys, in a thread."""
        self._collectives_network[name] += 1
        work = NetworkWork(tensors, [], rank=self._rank, forget=self._pending.discard, translate=self._translate)
        work.begins_later()
        self._pending.add(work)
        contributions = [(tensor, *rows.rows_of(tensor)) for tensor in tensors]

        def align_and_submit() -> None:
            todo = [plan for part in contributions if not (plan := self._aligned(*part, opts)).empty]
            work.finish_with([plan.finish for plan in todo])
            called = partial(self._calls.note, name=name, operator=opts.reduceOp, tensors=tensors)
            self._begin(work, todo, opts, average=self._averages(opts), called=called)

        self._order.append(partial(self._take, align_and_submit, work))
        return self._started(work)

    def _take(self, step: Callable[[], None], work: NetworkWork) -> None:
        """A step that nobody waits for: its error is the work's."""
        try:
            step()
        except Exception as error:
            work.fail(error)

    def _aligned(self, tensor: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, opts: Any) -> Plan:
        """What is left to do for a sparse tensor once the workers have agreed on its keys, which this waits for."""
        possible = rows.keys_possible(tensor)
        plan, numbers = rows.sizes_plan(tensor, keys, rank=self._rank, size=self._size)
        self._exchange(plan, opts, signature=rows.call_of(tensor))
        if rows.counting_is_cheaper(numbers, possible):
            plan, presence = rows.presence_plan(keys, possible)
            self._exchange(plan, opts, signature=rows.call_of(tensor), lane_bits=rows.COUNT_LANE_BITS)
            union = presence.nonzero().reshape(-1)
        else:
            plan, everybody = rows.keys_plan(keys, numbers, rank=self._rank)
            self._exchange(plan, opts, signature=rows.call_of(tensor))
            union = everybody.unique()
        divisor = self._size if self._averages(opts) else 1
        return rows.sum_plan(tensor, keys, values, union, integer_divisor=divisor)

    def _exchange(self, plan: Plan, opts: Any, *, signature: int, lane_bits: int = 32) -> None:
        """A collective that is waited for here."""
        assert self._session is not None
        work = NetworkWork([], [plan.finish], rank=self._rank, forget=self._pending.discard, translate=self._translate)
        try:
            work.add(
                self._session.submit(
                    plan.regions,
                    dtype=plan.dtype,
                    lane_bits=lane_bits,
                    signature=signature,
                    may_be_sparse=plan.dtype is Dtype.I32,
                    timeout_s=self._timeout_s(opts),
                    notify=False,
                )
            )
        except WiresumError as error:
            raise self._translate(error) from error
        work.all_added()
        self._pending.add(work)  # should the wait be interrupted, the network still has the plan's memory
        work.wait()

    def reduce(
        self, tensors: Any, opts: Any = None, op: Any = None, timeout: timedelta | None = None, *, root: int = 0
    ) -> dist.Work:
        if isinstance(opts, int):  # reduce(tensor, root, op)
            root, opts = opts, None
        tensors = listed(tensors)
        opts = options_of(ReduceOptions, opts if opts is not None else op, timeout, rootRank=root)
        summed = tensors if opts.rootRank == self._rank else []
        if self._sums(tensors, opts):
            plan = plans.reduce(tensors[0], root=opts.rootRank, rank=self._rank)
            return self._run("reduce", [plan], opts, tensors, summed=summed)
        return self._delegate_sum("reduce", self._gloo_group.reduce, (tensors,), opts, summed=summed, written=tensors)

    def reduce_scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> dist.Work:
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        opts = options_of(ReduceScatterOptions, opts, timeout)
        if self._sums([*outputs, *flat(inputs)], opts):
            plan = plans.reduce_scatter(list(zip(outputs, inputs, strict=True)), rank=self._rank)
            return self._run("reduce_scatter", plan, opts, outputs, summed=outputs)
        return self._delegate_sum(
            "reduce_scatter", self._gloo_group.reduce_scatter, (outputs, inputs), opts, summed=outputs
        )

    def reduce_scatter_single(self, output: torch.Tensor, contribution: torch.Tensor, opts: Any = None) -> dist.Work:
        return self.reduce_scatter_single_coalesced([output], [contribution], opts)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> dist.Work:
        opts = options_of(ReduceScatterOptions, opts)
        if self._sums([*outputs, *inputs], opts):
            pairs = list(zip(outputs, inputs, strict=True))
            plan = plans.reduce_scatter_single(pairs, rank=self._rank, size=self._size)
            return self._run("reduce_scatter_single", plan, opts, outputs, summed=outputs)
        gloo = self._gloo_group
        method = getattr(gloo, "reduce_scatter_single_coalesced", None) or gloo.reduce_scatter_tensor_coalesced
        return self._delegate_sum("reduce_scatter_single", method, (outputs, inputs), opts, summed=outputs)

    def broadcast(
        self, tensors: Any, opts: Any = None, timeout: timedelta | None = None, *, root: int = 0
    ) -> dist.Work:
        if isinstance(opts, int):  # broadcast(tensor, root)
            root, opts = opts, None
        tensors, opts = listed(tensors), options_of(BroadcastOptions, opts, timeout, rootRank=root)
        if self._copies(tensors):
            plan = plans.broadcast(tensors, root=opts.rootRank, rank=self._rank)
            return self._run("broadcast", [plan], opts, tensors)
        return self._delegate("broadcast", self._gloo_group.broadcast, tensors, opts, written=tensors)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None) -> dist.Work:
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        opts = options_of(AllgatherOptions, opts, timeout)
        written = flat(outputs)
        if self._copies([*inputs, *written]):
            plan = plans.all_gather(list(zip(outputs, inputs, strict=True)), rank=self._rank)
            return self._run("all_gather", [plan], opts, written)
        return self._delegate("all_gather", self._gloo_group.allgather, outputs, inputs, opts, written=written)

    def allgather_coalesced(self, output_lists: list[Tensors], inputs: Tensors, opts: Any = None) -> dist.Work:
        """`output_lists[k]` receives what worker k put in: the other way round than in `allgather`."""
        by_tensor = [list(outputs) for outputs in zip(*output_lists, strict=True)]
        return self.allgather(by_tensor, inputs, opts)

    def all_gather_single(self, output: torch.Tensor, contribution: torch.Tensor, opts: Any = None) -> dist.Work:
        return self.all_gather_single_coalesced([output], [contribution], opts)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> dist.Work:
        opts = options_of(AllgatherOptions, opts)
        if self._copies([*outputs, *inputs]):
            pairs = list(zip(outputs, inputs, strict=True))
            plan = plans.all_gather_single(pairs, rank=self._rank, size=self._size)
            return self._run("all_gather_single", [plan], opts, outputs)
        gloo = self._gloo_group
        method = getattr(gloo, "all_gather_single_coalesced", None) or gloo.allgather_into_tensor_coalesced
        return self._delegate("all_gather_single", method, outputs, inputs, opts, written=outputs)

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> dist.Work:
        opts = options_of(BarrierOptions, opts, timeout)
        if self._copies([]):
            return self._run("barrier", [plans.barrier()], opts, [])
        return self._delegate("barrier", self._gloo_group.barrier, opts, written=[])

    # The names that they had before PyTorch 2.13.

    _allgather_base = all_gather_single  # type: ignore[assignment]
    allgather_into_tensor_coalesced = all_gather_single_coalesced  # type: ignore[assignment]
    _reduce_scatter_base = reduce_scatter_single  # type: ignore[assignment]
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced  # type: ignore[assignment]

    # Collectives that Gloo does.

    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        opts = options_of(GatherOptions, opts)
        return self._delegate("gather", self._gloo_group.gather, outputs, inputs, opts, written=flat(outputs))

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        opts = options_of(ScatterOptions, opts)
        return self._delegate("scatter", self._gloo_group.scatter, outputs, inputs, opts, written=outputs)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> dist.Work:
        opts = options_of(AllToAllOptions, opts)
        return self._delegate("all_to_all", self._gloo_group.alltoall, outputs, inputs, opts, written=outputs)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        contribution: torch.Tensor,
        output_splits: list[int],
        input_splits: list[int],
        opts: Any = None,
    ) -> dist.Work:
        opts = options_of(AllToAllOptions, opts)
        method = getattr(self._gloo_group, "all_to_all_single", None) or self._gloo_group.alltoall_base
        arguments = (output, contribution, output_splits, input_splits, opts)
        return self._delegate("all_to_all_single", method, *arguments, written=[output])

    alltoall_base = all_to_all_single  # type: ignore[assignment]

    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> dist.Work:
        return self._delegate("send", self._gloo_group.send, tensors, dst, tag, written=[])

    def recv(self, tensors: Tensors, src: int, tag: int = 0) -> dist.Work:
        return self._delegate("recv", self._gloo_group.recv, tensors, src, tag, written=tensors)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> dist.Work:
        return self._delegate("recv", self._gloo_group.recv_anysource, tensors, tag, written=tensors)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """`dist.monitored_barrier` itself insists on a group whose backend is called gloo: call this method."""
        self._require_usable()
        self._collectives_gloo["monitored_barrier"] += 1
        try:
            self._gloo_group.monitored_barrier(timeout or self._timeout, wait_all_ranks)  # type: ignore[attr-defined]
        except RuntimeError as error:
            raise self._explain_gloo("monitored_barrier", error) from error

    def _start_coalescing(self, device: torch.device) -> None:
        self._coalescing = []

    def _end_coalescing(self, device: torch.device) -> dist.Work:
        works, self._coalescing = self._coalescing or [], None
        return GroupedWork(works)

    # The group itself.

    def stats(self) -> GroupStats:
        return GroupStats(
            job=self._session.job_name if self._session else "",
            collectives_network=Counter(self._collectives_network),
            collectives_gloo=Counter(self._collectives_gloo),
            bytes_reduced=self._bytes[True],
            bytes_copied=self._bytes[False],
            network=self._session.stats() if self._session else None,
        )

    @property
    def block_elements(self) -> int:
        """Floats in a packet: what is zero at all workers is left out in units of these. 0 if all goes through Gloo."""
        return self._session.lanes * 32 // self._lane_bits if self._session is not None else 0

    def shutdown(self) -> None:
        """Leaves the job; what is pending gets a moment to end. By destroy_process_group."""
        if self._attendant is not None and not self._closed and not self._forked:
            self._order.drain(DRAIN_TIMEOUT_S)
            self._attendant.drain(DRAIN_TIMEOUT_S)
        self._close()

    def abort(self) -> None:
        """Ends the job for everybody, now. Pending works fail here and elsewhere."""
        if self._session is not None and not self._closed and not self._forked:
            self._session.abort(f"rank {self._rank} called abort() on its process group")
            self._break_gloo()
        self._close()

    def _close(self) -> None:
        if self._closed or self._forked:
            return
        self._closed = True
        _live.discard(self)
        if self._session is not None and self._attendant is not None:
            self._session.close()
            self._order.close()
            self._attendant.close()
            for work in list(self._pending):
                work.settle()

    def leave_at_exit(self) -> None:
        """The process ends without destroy_process_group. The others must hear it, or they would wait for us."""
        if self._session is None or self._closed:
            return
        error = getattr(sys, "last_value", None)
        if error is None:
            time.sleep(EXIT_LINGER_S)
            reason = f"rank {self._rank} exited without destroy_process_group()"
        else:
            reason = f"rank {self._rank} ended with {type(error).__name__}: {error}"
        self._session.abort(reason)
        self._close()

    def forget_after_fork(self) -> None:
        self._forked = True

    @property
    def _timeout(self) -> timedelta:
        """Gloo's, so that what PyTorch sets there (set_timeout and the like) counts for all collectives."""
        timeout: timedelta = self._gloo_options._timeout
        return timeout

    def _require_usable(self) -> None:
        if self._forked:
            raise RuntimeError(
                "this process was forked from a member of the wiresum process group and is none itself: "
                "start workers with 'spawn', or use collectives in the parent only"
            )
        if self._session is not None and self._session.failure is not None:
            raise self._translate(self._session.failure)
        if self._failure is not None:
            raise type(self._failure)(*self._failure.args) from self._failure.__cause__

    def _translate(self, error: WiresumError) -> Exception:
        """With what each worker called, if that was not the same."""
        if isinstance(error, DivergedError):
            return as_torch_error(error, self._calls.compare(error.number))
        if isinstance(error, JobAbortedError) and DivergedError.WORDS in error.reason:
            return as_torch_error(error, self._calls.compare(None))
        return as_torch_error(error)

    def _sums(self, tensors: Sequence[torch.Tensor], opts: Any) -> bool:
        """Does the network do this reduction of dense tensors?"""
        return self._adds(opts) and plans.carries(tensors, summed=True)

    def _adds(self, opts: Any) -> bool:
        self._require_usable()
        return self._session is not None and (opts.reduceOp == _SUM or self._averages(opts))

    def _averages(self, opts: Any) -> bool:
        """Of an operator that the network knows."""
        return bool(opts.reduceOp == _AVERAGE)

    def _copies(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Does the network carry these bytes?"""
        self._require_usable()
        return self._session is not None and plans.carries(tensors, summed=False)

    def _run(
        self, name: str, todo: Sequence[Plan], opts: Any, result: Tensors, *, summed: Tensors | None = None
    ) -> dist.Work:
        """Starts a collective in the network. `summed` are the tensors that will hold a sum (or a mean)."""
        self._collectives_network[name] += 1
        todo = [plan for plan in todo if not plan.empty]
        if not todo:
            return self._started(CompletedWork(result, rank=self._rank))
        average = summed is not None and self._averages(opts)
        called = partial(
            self._calls.note, name=name, operator=None if summed is None else opts.reduceOp, tensors=result
        )
        finish: list[Callable[[], None]] = [plan.finish for plan in todo]
        if average and (integers := [tensor for tensor in summed or () if not tensor.is_floating_point()]):
            finish.append(partial(divide, integers, self._size))
        work = NetworkWork(result, finish, rank=self._rank, forget=self._pending.discard, translate=self._translate)
        self._pending.add(work)
        if self._order.is_free():
            self._begin(work, todo, opts, average=average, called=called)
        else:
            work.begins_later()
            begin = partial(self._begin, work, todo, opts, average=average, called=called)
            self._order.append(partial(self._take, begin, work))
        return self._started(work)

    def _begin(
        self, work: NetworkWork, todo: Sequence[Plan], opts: Any, *, average: bool, called: Callable[[int], None]
    ) -> None:
        """Submits a work's operations; `called` notes what has the number that each one got."""
        assert self._attendant is not None
        timeout_s = self._timeout_s(opts)
        if opts.asyncOp:
            with self._attendant.changed:
                self._submit_all(work, todo, average=average, timeout_s=timeout_s, notify=True, called=called)
                self._attendant.watch_network(work)
        else:
            self._submit_all(work, todo, average=average, timeout_s=timeout_s, notify=False, called=called)
        if not todo:
            work.settle()
        for plan in todo:
            self._bytes[plan.sums] += plan.bytes

    def _submit_all(
        self,
        work: NetworkWork,
        todo: Sequence[Plan],
        *,
        average: bool,
        timeout_s: float,
        notify: bool,
        called: Callable[[int], None],
    ) -> None:
        """With `notify`, hold the attendant's `changed`."""
        try:
            for plan in todo:
                operation = self._submit(plan, average=average, timeout_s=timeout_s, notify=notify)
                work.add(operation)
                called(operation.number)
        except Exception as error:
            if not work.tokens():  # else the network has memory of it, and it stays until the group is closed
                self._pending.discard(work)
            if isinstance(error, WiresumError):
                raise self._translate(error) from error
            raise
        work.all_added()

    def _timeout_s(self, opts: Any) -> float:
        timeout: timedelta = opts.timeout
        return (timeout if timeout > _UNSET else self._timeout).total_seconds()

    def _submit(self, plan: Plan, *, average: bool, timeout_s: float, notify: bool) -> Operation:
        assert self._session is not None
        floating = plan.sums and plan.dtype in FLOATING
        lane_bits = self._lane_bits if floating else 32
        fixed_scale = self._fixed_scale if floating else None
        return self._session.submit(
            plan.regions,
            dtype=plan.dtype,
            lane_bits=lane_bits,
            scaling=Scaling.FIXED if fixed_scale is not None else None,
            fixed_scale=fixed_scale if fixed_scale is not None else 1.0,
            average=average and floating,
            signature=plan.signature(lane_bits=lane_bits, average=average, fixed_scale=fixed_scale),
            may_be_sparse=plan.may_be_sparse,
            timeout_s=timeout_s,
            notify=notify,
        )

    def _delegate_sum(
        self,
        name: str,
        method: Any,
        tensors: tuple[Any, ...],
        opts: Any,
        *,
        summed: Tensors,
        written: Tensors | None = None,
    ) -> dist.Work:
        """`summed` will hold the sum (or mean); `written` is what Gloo writes, which at some workers is more."""
        opts, divide_after = without_average(opts, summed, self._size)
        written = summed if written is None else written
        return self._delegate(name, method, *tensors, opts, written=written, finish=divide_after)

    def _delegate(
        self,
        name: str,
        method: Any,
        *arguments: Any,
        written: Tensors,
        finish: Callable[[], None] | None = None,
    ) -> dist.Work:
        self._require_usable()
        what = described(
            name, getattr(arguments[-1], "reduceOp", None), [(t.dtype, t.shape) for t in tensors_in(arguments)]
        )
        if self._collectives_gloo[name] == 0 and self._session is not None:
            log.info("wiresum: %s goes through Gloo: the network does not do that", what)
        self._collectives_gloo[name] += 1
        arguments_staged, staged = staged_for_gloo(arguments, written)
        steps: list[Callable[[], None]] = [partial(plans.bring_home, staged)] if staged else []
        steps += [finish] if finish else []
        work = GlooWork(method(*arguments_staged), finish=steps, explain=partial(self._explain_gloo, what))
        if self._attendant is not None:
            self._attendant.watch_gloo(work)
        return self._started(work)

    def _started(self, work: dist.Work) -> dist.Work:
        if self._coalescing is not None:
            self._coalescing.append(work)
        return work

    def _break_gloo(self) -> None:
        break_connections(self._gloo_backend)

    def _explain_gloo(self, what: str, error: Exception) -> Exception:
        """Why Gloo failed. If its connections are gone, then the group has failed, and the others must know."""
        text = f"rank {self._rank}: {what}, which goes through Gloo, failed: {error}"
        if not connections_are_broken(error):
            refused = dist.DistBackendError(text)
            refused.__cause__ = error
            return refused
        timed_out = "timed out" in str(error).lower()
        if self._session is not None:
            deadline = time.monotonic() + (0 if timed_out else CAUSE_TIMEOUT_S)
            while self._session.failure is None and time.monotonic() < deadline:
                time.sleep(0.01)
            if self._session.failure is not None and not isinstance(self._session.failure, SessionClosedError):
                return self._translate(self._session.failure)
            self._session.abort(text)
        self._failure = (WiresumTimeoutError if timed_out else dist.DistBackendError)(text)
        self._failure.__cause__ = error
        return self._failure


def stats_of(group: dist.ProcessGroup | None) -> GroupStats:
    group = group if group is not None else dist.group.WORLD
    if not isinstance(group, WiresumProcessGroup):
        raise ValueError(f"statistics are for process groups of the wiresum backend, not for {group}")
    return group.stats()


def _leave_at_exit() -> None:
    for group in list(_live):
        group.leave_at_exit()


def _forget_after_fork() -> None:
    """In the child: the parent's threads are not here, and its sockets and its membership are not ours to close."""
    for group in list(_live):
        group.forget_after_fork()
        _kept_after_fork.append(group)
    _live.clear()


atexit.register(_leave_at_exit)
os.register_at_fork(after_in_child=_forget_after_fork)
