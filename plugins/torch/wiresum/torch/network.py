"""Runs one group's collectives in the network: from plans (plan.py) to works (work.py)."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from wiresum.agent.errors import (
    CollectiveTimeoutError,
    DivergedError,
    ImpossibleSumError,
    JobAbortedError,
    SessionClosedError,
    WiresumError,
    WorkerLeftError,
)
from wiresum.agent.periodic import Periodic
from wiresum.agent.polling import sleep_until
from wiresum.agent.session import FLOATING, SCALED, Form, Operation, Scaling, Session
from wiresum.torch import flight_recorder, rows, waits
from wiresum.torch import plan as plans
from wiresum.torch.accelerators import (
    Piece,
    Pipeline,
    RowsCall,
    StreamWork,
    Transfer,
    is_on_accelerator,
    refuse_capture,
)
from wiresum.torch.attendant import Attendant
from wiresum.torch.calls import Call, CallLog, kinds_of
from wiresum.torch.errors import STILL_GOES_ON, WiresumTimeoutError, as_torch_error, timed_out
from wiresum.torch.leaving import Departures
from wiresum.torch.order import SubmissionOrder
from wiresum.torch.pieces import cut
from wiresum.torch.plan import SUMMED, CollectivePlan, Tensors, device_of, divide
from wiresum.torch.statistics import Way
from wiresum.torch.work import GlooWork, NetworkWork, stay_on

LEFT_S_MIN = 0.001
"""The time-out in seconds of a piece whose turn came when the call's time was nearly over."""

LOOK_S = 1.0
looks = Periodic("wiresum-looks", LOOK_S)
"""Calls `_look` of all groups of the process."""

_UNSET = timedelta(0)
_AVERAGE = dist.ReduceOp.AVG


@dataclass(frozen=True, slots=True)
class _Call:
    name: str
    opts: Any
    tensors: Tensors
    """Tensors whose types and shapes tell one call from another."""
    sums: bool

    @property
    def operator(self) -> Any:
        return self.opts.reduceOp if self.sums else None

    @property
    def averages(self) -> bool:
        return self.sums and bool(self.opts.reduceOp == _AVERAGE)


class Network:
    """A session and its pending works. `timeout` returns the timeout of calls that have none; `on_failure`: see
    Attendant."""

    def __init__(
        self,
        session: Session,
        store: Store,
        *,
        bits: int,
        fixed_scale: float | None,
        timeout: Callable[[], timedelta],
        on_failure: Callable[[Sequence[GlooWork]], bool],
        group: flight_recorder.Group,
        cuts: bool,
        direct: Any = None,
    ) -> None:
        """`store` is the group's own, and `direct` its DirectCalls (direct.hpp), if it has the extension. With `cuts`,
        long collectives are cut (pieces.py), since a member has an accelerator."""
        self.session = session
        self.direct = direct
        self._group = group
        self._collectives: Counter[str] = Counter()
        self._calls_by_way: Counter[Way] = Counter()
        self._bytes_by_way: Counter[Way] = Counter()
        self._bytes: Counter[bool] = Counter()
        """Bytes of collectives that sum or reduce (True), and of collectives that copy (False)."""
        more = direct.notes if direct is not None else tuple
        settings = [f"{bits} bits"] * (bits != 32) + [f"fixed scale {fixed_scale}"] * (fixed_scale is not None)
        self.name = group.named(session.rank)
        """This worker's name for people."""
        self._calls = CallLog(
            PrefixStore("calls", store), session.rank, session.world_size, more, settings, named=group.named
        )
        self._bits = bits
        self._fixed_scale = fixed_scale
        self._timeout = timeout
        self._departures = Departures(PrefixStore("left", store), session.rank)
        self._order = SubmissionOrder(
            f"wiresum-order-{session.job_name}", direct.set_open if direct is not None else lambda is_free: None
        )
        self._cuts = cuts
        self._pipeline = Pipeline()
        self._calling = threading.Lock()
        self._pending: set[NetworkWork] = set()
        self.gloo_calls = 0
        """How many of Gloo's collectives were called here, which is the number of the next."""
        self._attendant = Attendant(session, name=f"wiresum-{session.job_name}", on_failure=on_failure)
        self._is_recorded = False
        flight_recorder.networks.add(self)
        looks.add(self._look)

    @property
    def collectives(self) -> Counter[str]:
        """How many collectives were called, by name."""
        return self._collectives + Counter({name: calls for name, (calls, _) in self._direct_counts.items()})

    @property
    def calls_by_way(self) -> Counter[Way]:
        direct: Counter[Way] = Counter({"in place": sum(calls for calls, _ in self._direct_counts.values())})
        return self._calls_by_way + direct

    @property
    def bytes_by_way(self) -> Counter[Way]:
        direct: Counter[Way] = Counter({"in place": sum(carried for _, carried in self._direct_counts.values())})
        return self._bytes_by_way + direct

    @property
    def bytes_summed(self) -> int:
        """Bytes of the callers' tensors that were summed or reduced."""
        return self._bytes[True] + self._direct_counts.get("all_reduce", (0, 0))[1]

    @property
    def bytes_copied(self) -> int:
        """Bytes of the callers' tensors that were copied."""
        return self._bytes[False] + sum(b for name, (_, b) in self._direct_counts.items() if name != "all_reduce")

    @property
    def _direct_counts(self) -> dict[str, tuple[int, int]]:
        """Calls that were made without Python, and their bytes, by name."""
        return self.direct.counts if self.direct is not None else {}

    def run(
        self,
        name: str,
        todo: Sequence[CollectivePlan],
        opts: Any,
        result: Tensors,
        *,
        summed: Tensors | None = None,
        given: Tensors | None = None,
    ) -> NetworkWork | StreamWork:
        """Starts a collective. `summed` are the tensors that will hold a sum (or a mean). `given` tell one call from
        another, if `result` does not."""
        self._require_everybody()
        self._collectives[name] += 1
        todo = [plan for plan in todo if not plan.empty]
        if not todo:
            work = self._work(result, [])
            work.settle()
            return work
        call = _Call(name, opts, result if given is None else given, sums=summed is not None)
        # The network does not divide sums of these types.
        others = [tensor for tensor in summed or () if SUMMED.get(tensor.dtype) not in FLOATING]
        mean = [partial(divide, others, self.session.world_size)] if others and call.averages else []
        if is_on_accelerator(todo):
            self._count("accelerator", todo)
            return self._run_on_accelerator(todo, call, result, mean)
        self._count("copied" if any(plan.is_copied for plan in todo) else "in place", todo)
        work = self._work(result, [*(plan.finish for plan in todo), *mean])
        self._pending.add(work)
        if self._cuts:
            todo = [piece for plan in todo for piece in cut(plan, self.session.lanes)]
        self._in_turn(work, partial(self._begin, work, todo, call))
        return work

    def _run_on_accelerator(
        self, todo: Sequence[CollectivePlan], call: _Call, result: Tensors, mean: Sequence[Callable[[], None]]
    ) -> StreamWork:
        """Starts a collective of tensors on an accelerator. Nothing here waits for the device."""
        for plan in todo:
            refuse_capture(plan.device)
        deadline = time.monotonic() + self._timeout_s(call)
        steps = [[plan.finish] for plan in todo]
        steps[-1].extend(mean)
        transfers = [Transfer(self._pipeline, plan, finish) for plan, finish in zip(todo, steps, strict=True)]
        both = zip(transfers, todo, strict=True)
        pieces = [piece for transfer, plan in both for piece in transfer.pieces_of(plan, self.session.lanes)]
        works = [self._work_of(piece) for piece in pieces]
        with self._calling:  # so that pieces get memory in the order in which they are submitted
            self._pipeline.add(pieces)
            for piece, work in zip(pieces, works, strict=True):
                self._submit_later(partial(_take, partial(self._submit_piece, work, piece, call, deadline), work))
        return StreamWork(works, result, transfers)

    def _work_of(self, piece: Piece) -> NetworkWork:
        span = piece.span  # keeps only the span: the piece has the tensor's memory

        def forget(work: NetworkWork) -> None:
            self._pending.discard(work)
            span.has_ended = True

        finish = [partial(piece.transfer.copy_back, piece)]
        work = NetworkWork([], finish, late=self._late, forget=forget, translate=self.translate)
        work.device = piece.plan.device
        work.begins_later()
        self._pending.add(work)
        return work

    def _submit_piece(self, work: NetworkWork, piece: Piece, call: _Call, deadline: float) -> None:
        """Submits a piece, in the submitting thread, when the piece's turn has come."""
        stay_on(piece.plan.device)
        try:
            in_time = self._pipeline.await_copy(piece, deadline, lambda: self.session.failure is not None)
        except Exception as error:
            raise self._device_failed(call, error) from error
        if not in_time:
            raise self._device_is_late(call)
        self._require_everybody()
        assert piece.submitted is not None
        with self._attendant.changed:
            left_s = max(deadline - time.monotonic(), LEFT_S_MIN)
            self._submit_all(work, [piece.submitted], call, notify=True, left_s=left_s)
            self._attendant.watch_network(work)

    def _device_failed(self, call: _Call, error: Exception) -> Exception:
        """Ends the job: without this worker's part the workers would be out of step. Returns the error."""
        self.session.abort(f"{self.name}: {call.name} failed at its device: {error}")
        return error

    def _device_is_late(self, call: _Call) -> Exception:
        """Ends the job, since the others would wait for this worker. Returns the error."""
        said = Call(0, call.name, call.operator, kinds_of(call.tensors), self._timeout_s(call))
        why = "its device has not come to the call, or has not copied the tensor: something queued before hangs"
        text = timed_out(self.name, said.timeout_s, f"{said} ({said.elements()})", why)
        self.session.abort(text)
        return as_torch_error(CollectiveTimeoutError(text, why=why))

    def check(self, call: Call, plan: CollectivePlan) -> NetworkWork:
        """Starts a barrier in the network beside a collective of Gloo, whose signature tells the call from others: Gloo
        itself would take any bytes for a tensor of this worker's type."""
        work = self._work([], [])

        def submit() -> None:
            form = self._form(plan, average=False)
            try:
                operation = self.session.submit([], **form, timeout_s=call.timeout_s, notify=False)
            except WiresumError as error:  # Gloo's call may go on, if a worker has only left
                work.fail(self.translate(error))
                return
            work.add(operation)
            self._calls.note(operation, *call[1:7])
            work.all_added()

        self._in_turn(work, submit)
        return work

    def meet(self, timeout: timedelta) -> None:
        """Waits for the other members, once: a member that leaves at once would cut off others that still connect.
        Leaves the job at a failure."""
        try:
            self.check(Call(0, "barrier", None, [], timeout.total_seconds()), plans.barrier()).wait()
        except BaseException:
            self.close()
            raise

    def _in_turn(self, work: NetworkWork, begin: Callable[[], None]) -> None:
        """Calls `begin` now, or after the calls that wait to be submitted."""
        if self._order.is_free():
            begin()
        else:
            work.begins_later()
            self._submit_later(partial(_take, begin, work))

    def _submit_later(self, step: Callable[[], None]) -> None:
        """Appends a step, which must not raise."""
        self._attendant.hand_over()
        self._order.append(step)

    def run_rows(self, name: str, tensors: Tensors, opts: Any) -> NetworkWork | StreamWork:
        """Starts a sum of sparse tensors, with the exchanges that agree on their keys first, in a thread."""
        self._require_everybody()
        self._collectives[name] += 1
        call = _Call(name, opts, tensors, sums=True)
        if (device := device_of(tensors)).type != "cpu":
            refuse_capture(device)
            return self._run_rows_on_accelerator(call, device)
        work = self._work(tensors, [])
        work.begins_later()
        self._pending.add(work)
        contributions = [rows.rows_of(tensor) for tensor in tensors]
        self._submit_later(partial(_take, partial(self._align_and_submit, work, call, contributions), work))
        return work

    def _run_rows_on_accelerator(self, call: _Call, device: torch.device) -> StreamWork:
        """Copies the tensors to the host in the submitting thread, when the device has reached the call."""
        deadline = time.monotonic() + self._timeout_s(call)
        on_device = RowsCall(self._pipeline, device, call.tensors)
        work = self._work([], [])
        work.device = device
        work.begins_later()
        self._pending.add(work)

        def copy_and_submit() -> None:
            stay_on(device)
            if not sleep_until(lambda: on_device.has_come() or self.session.failure is not None, deadline):
                raise self._device_is_late(call)
            self._require_everybody()
            try:
                contributions = [rows.rows_of(tensor) for tensor in on_device.to_host()]
            except Exception as error:
                raise self._device_failed(call, error) from error
            self._align_and_submit(work, call, contributions, on_device)

        self._submit_later(partial(_take, copy_and_submit, work))
        return StreamWork([work], call.tensors, [on_device])

    def _align_and_submit(
        self, work: NetworkWork, call: _Call, contributions: Sequence[rows.Rows], on_device: RowsCall | None = None
    ) -> None:
        """Agrees on keys and submits the sums, in the submitting thread."""
        both = zip(call.tensors, contributions, strict=True)
        todo = [plan for tensor, mine in both if not (plan := self._aligned(tensor, *mine, call)).empty]
        steps = [plan.finish for plan in todo]
        work.finish_with(steps if on_device is None else [partial(on_device.end, steps)])
        self._count("copied" if on_device is None else "accelerator", todo)
        self._begin(work, todo, call, notify=on_device is not None)

    def watch_gloo(self, work: GlooWork, *, is_collective: bool) -> None:
        """Attends to a work of Gloo: a collective, or a send or receive."""
        if is_collective:
            work.number = self.gloo_calls
            self.gloo_calls += 1
        self._attendant.watch_gloo(work)

    # Members that fail or leave.

    @property
    def left(self) -> WorkerLeftError | None:
        """The error that says that a worker has left in an orderly way, if nothing worse happened before."""
        failure = self.session.failure
        return failure if isinstance(failure, WorkerLeftError) else None

    def require_group(self) -> None:
        """Raises the error that has ended the group. If a worker has only left, calls that do not need it go on."""
        if self.left is None:
            self._require_everybody()

    def lacks_for_gloo(self, number: int, left: WorkerLeftError, wait_s: float | None = None) -> bool:
        """True if this collective of Gloo needs the worker that has left. False as long as the answer is unknown."""
        finished = self._departures.finished_by(left.rank, waits.DEPARTURE_S if wait_s is None else wait_s)
        return finished is not None and number >= finished

    def _require_everybody(self) -> None:
        if (failure := self.session.failure) is not None:
            raise self.translate(failure)

    # For direct.hpp.

    def form_of(self, name: str, tensor: torch.Tensor, operator: Any) -> Form | None:
        """The form of the collectives of this name to which a worker contributes a tensor of this type and size; None
        if Python or Gloo has to do them."""
        size, average = self.session.world_size, bool(operator == _AVERAGE)
        if name != "all_reduce":
            everybody = tensor.new_empty(size * tensor.numel())
            todo: list[CollectivePlan] | None = [plans.all_gather_single([(everybody, tensor)], rank=0, size=size)]
            average = False
        elif average and SUMMED.get(tensor.dtype) not in FLOATING:
            return None  # Python divides
        else:
            todo = plans.all_reduce_of([tensor], operator, size)
        return self.session.form(**self._form(todo[0], average=average)) if todo else None

    def adopt(self, operation: Operation, tensors: Tensors, given: torch.Tensor) -> NetworkWork:
        """Makes the work of an operation that was submitted without Python. It reads `given`."""
        work = self._work(tensors, [lambda given=given: None])  # type: ignore[misc]
        work.add(operation)
        work.all_added()
        return work

    def attend(self, work: NetworkWork) -> None:
        """Settles an adopted work even if its caller does not wait."""
        if work.done():
            work.settle()
            return
        self._pending.add(work)
        with self._attendant.changed:
            for operation in work.operations():
                self.session.notify(operation)
            self._attendant.watch_network(work)

    # Leaving.

    def drain(self) -> None:
        """Waits a moment for pending works."""
        if self.direct is not None:
            self.direct.drain(timedelta(seconds=waits.DRAIN_S))
        self._order.drain(waits.DRAIN_S)
        self._attendant.drain(waits.DRAIN_S)

    def say_finished(self, gloo_pending: int | None) -> None:
        """Publishes how many of Gloo's collectives this worker has finished: those before `gloo_pending`, or all."""
        if self.session.failure is None:
            self._departures.say(self.gloo_calls if gloo_pending is None else gloo_pending)

    def close(self) -> None:
        """Leaves the job. Pending works fail."""
        looks.discard(self._look)
        self.session.close()
        self._order.close()
        self._attendant.close()
        for work in list(self._pending):
            work.settle()
        self._pipeline.close()

    def record(self) -> flight_recorder.Record:
        """The group's calls for the flight recorder."""
        submitted, _ = self.session.native.standing
        return flight_recorder.Record(self._group, self.session.rank, self._calls.newest(), submitted)

    def _look(self) -> None:
        """Writes the flight record after a failure, also where no caller waits for a collective."""
        failure = self.session.failure
        if self._is_recorded or failure is None or isinstance(failure, (SessionClosedError, WorkerLeftError)):
            return
        self._is_recorded = True
        flight_recorder.write_if_wanted(self._group.ranks[self.session.rank])

    def translate(self, error: WiresumError) -> Exception:
        """The error for users, with each worker's call if these differ."""
        self._look()
        if isinstance(error, CollectiveTimeoutError) and (call := self._calls.find(error.number)) is not None:
            text = timed_out(self.name, call.timeout_s, self._in_full(call), error.why)
            return as_torch_error(error, text=text)
        if isinstance(error, DivergedError):
            return as_torch_error(error, self._calls.compare(error.number))
        if isinstance(error, JobAbortedError) and DivergedError.WORDS in error.reason:
            return as_torch_error(error, self._calls.compare(None))
        return as_torch_error(error)

    def _late(self, operations: Sequence[Operation], waited_s: float) -> WiresumTimeoutError:
        """The error of a wait that was too short for these operations."""
        waits_for = next((operation for operation in operations if not operation.done()), None)
        call = self._calls.find(waits_for.number) if waits_for is not None else None
        what = self._in_full(call) if call is not None else "the collective"
        return WiresumTimeoutError(timed_out(self.name, waited_s, what, STILL_GOES_ON))

    def _in_full(self, call: Call) -> str:
        return f"{call} ({call.elements()}){call.where()}, number {call.number} of job '{self.session.job_name}'"

    def _work(self, result: Tensors, finish: Sequence[Callable[[], None]]) -> NetworkWork:
        return NetworkWork(result, finish, late=self._late, forget=self._pending.discard, translate=self.translate)

    def _aligned(self, tensor: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, call: _Call) -> CollectivePlan:
        """Waits until the workers have agreed on a sparse tensor's keys, and returns the plan of the sum."""
        rank, size = self.session.rank, self.session.world_size
        possible = rows.keys_possible(tensor)
        numbers = self._exchange(rows.sizes_plan(tensor, keys, rank=rank, size=size), call)
        try:
            rows.require_sizes(numbers, keys, possible, rank=rank)
            if rows.counting_is_cheaper(numbers, possible):
                union = self._exchange(rows.presence_plan(tensor, keys, size=size), call).nonzero().reshape(-1)
            else:
                union = self._exchange(rows.keys_plan(tensor, keys, numbers, rank=rank), call).unique()
            return rows.sum_plan(tensor, keys, values, union, integer_divisor=size if call.averages else 1)
        except ImpossibleSumError as error:
            self.session.abort(str(error))  # the others may not see the error, and would wait
            raise self.translate(error) from error

    def _exchange(self, plan: rows.ExchangePlan, call: _Call) -> torch.Tensor:
        """Runs a plan, waits for it, and returns its answer."""
        work = self._work([], [plan.finish])
        self._pending.add(work)  # if the wait is interrupted, the network still uses the plan's memory
        self._submit_all(work, [plan], call, notify=False)
        work.wait()
        return plan.answer

    def _begin(self, work: NetworkWork, todo: Sequence[CollectivePlan], call: _Call, *, notify: bool = False) -> None:
        """Submits a work's operations."""
        if notify or call.opts.asyncOp:
            with self._attendant.changed:
                self._submit_all(work, todo, call, notify=True)
                self._attendant.watch_network(work)
        else:
            self._submit_all(work, todo, call, notify=False)
        if not todo:
            work.settle()

    def _count(self, way: Way, todo: Sequence[CollectivePlan]) -> None:
        """Counts a call and its bytes."""
        self._calls_by_way[way] += 1
        for plan in todo:
            self._bytes[plan.sums or plan.reduction is not None] += plan.bytes
            self._bytes_by_way[way] += plan.bytes

    def _timeout_s(self, call: _Call) -> float:
        timeout: timedelta = call.opts.timeout
        return (timeout if timeout > _UNSET else self._timeout()).total_seconds()

    def _submit_all(
        self,
        work: NetworkWork,
        todo: Sequence[CollectivePlan],
        call: _Call,
        *,
        notify: bool,
        left_s: float | None = None,
    ) -> None:
        """Submits a work's operations. With `notify`, hold the attendant's `changed`; without, the caller waits for the
        work. `left_s` is the rest of the call's time-out, in seconds."""
        timeout_s = self._timeout_s(call)
        left_s = timeout_s if left_s is None else left_s
        waits = not notify and len(todo) == 1
        try:
            for plan in todo:
                form = self._form(plan, average=call.averages)
                operation = self.session.submit(
                    plan.regions, **form, timeout_s=left_s, notify=notify, caller_waits=waits
                )
                work.add(operation)
                kinds = kinds_of(call.tensors)
                self._calls.note(operation, call.name, call.operator, kinds, timeout_s, plan.root)
        except Exception as error:
            if not work.operations():  # else the network has memory of the work, which stays until the group is closed
                self._pending.discard(work)
            if isinstance(error, WiresumError):
                raise self.translate(error) from error
            raise
        work.all_added()

    def _form(self, plan: CollectivePlan, *, average: bool) -> dict[str, Any]:
        """The arguments of Session.form."""
        scaled = plan.sums and plan.dtype in SCALED
        bits = self._bits if scaled else plan.integer_bits
        fixed_scale = self._fixed_scale if scaled else None
        return {
            "dtype": plan.dtype,
            "bits": bits,
            "scaling": Scaling.FIXED if fixed_scale is not None else None,
            "fixed_scale": fixed_scale if fixed_scale is not None else 1.0,
            "average": average and plan.sums and plan.dtype in FLOATING,
            "signature": plan.signature(bits=bits, average=average, fixed_scale=fixed_scale),
            "may_be_sparse": plan.may_be_sparse,
            "reduction": plan.reduction,
        }


def _take(step: Callable[[], None], work: NetworkWork) -> None:
    """Takes a step for which no caller waits: an error becomes the work's."""
    try:
        step()
    except Exception as error:
        work.fail(error)
