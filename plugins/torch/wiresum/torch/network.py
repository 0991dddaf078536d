"""The collectives that the network does, of one group: from plans (plan.py) to works (work.py)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from wiresum.agent.errors import DivergedError, JobAbortedError, WiresumError, WorkerLeftError
from wiresum.agent.session import FLOATING, Dtype, Form, Operation, Scaling, Session
from wiresum.torch import plan as plans
from wiresum.torch import rows
from wiresum.torch.arguments import Tensors
from wiresum.torch.attendant import Attendant
from wiresum.torch.calls import Call, CallLog
from wiresum.torch.errors import as_torch_error
from wiresum.torch.leaving import ANSWER_S_MAX, Departures
from wiresum.torch.order import SubmissionOrder
from wiresum.torch.plan import CollectivePlan, divide
from wiresum.torch.standstill import Standstill
from wiresum.torch.work import GlooWork, NetworkWork

DRAIN_TIMEOUT_S = 5.0
"""How long destroy_process_group waits for works that nobody has waited for."""

_UNSET = timedelta(0)
_AVERAGE = dist.ReduceOp.AVG


class Network:
    """A session, and the works that are under way in it. `timeout` returns the timeout of calls that have none;
    `on_failure`: see Attendant."""

    def __init__(
        self,
        session: Session,
        store: Store,
        *,
        bits: int,
        fixed_scale: float | None,
        timeout: Callable[[], timedelta],
        on_failure: Callable[[Sequence[GlooWork]], bool],
        direct: Any = None,
    ) -> None:
        """`store` is the group's own, and `direct` its DirectSums (direct.hpp), if it has the extension."""
        self.session = session
        self.direct = direct
        self._collectives: Counter[str] = Counter()
        self._bytes: Counter[bool] = Counter()
        """Bytes of collectives that sum (True), and of those that copy (False)."""
        self._calls = CallLog(PrefixStore("calls", store), session.rank, session.world_size, _noted_by(direct))
        self._bits = bits
        self._fixed_scale = fixed_scale
        self._timeout = timeout
        self._departures = Departures(PrefixStore("left", store), session.rank)
        self._order = SubmissionOrder(f"wiresum-order-{session.job_name}", self._set_direct)
        self._pending: set[NetworkWork] = set()
        self._standstill = Standstill(
            session, PrefixStore("standstill", store), self._calls, submits_at_once=self._order.is_free
        )
        self._attendant = Attendant(
            session, name=f"wiresum-{session.job_name}", on_failure=on_failure, look=self._standstill.look
        )

    @property
    def collectives(self) -> Counter[str]:
        """How many collectives were called, by name."""
        direct = Counter(all_reduce=self.direct.calls) if self.direct is not None else Counter()
        return self._collectives + direct

    @property
    def bytes_summed(self) -> int:
        """Of the callers' tensors."""
        return self._bytes[True] + (self.direct.bytes if self.direct is not None else 0)

    @property
    def bytes_copied(self) -> int:
        """Of the callers' tensors."""
        return self._bytes[False]

    def run(
        self, name: str, todo: Sequence[CollectivePlan], opts: Any, result: Tensors, *, summed: Tensors | None = None
    ) -> NetworkWork:
        """Starts a collective. `summed` are the tensors that will hold a sum (or a mean)."""
        self._require_everybody()
        self._collectives[name] += 1
        todo = [plan for plan in todo if not plan.empty]
        if not todo:
            work = self._work(result, [])
            work.settle()
            return work
        average = summed is not None and bool(opts.reduceOp == _AVERAGE)
        called = partial(
            self._calls.note, name=name, operator=None if summed is None else opts.reduceOp, tensors=result
        )
        finish: list[Callable[[], None]] = [plan.finish for plan in todo]
        if average and (integers := [tensor for tensor in summed or () if not tensor.is_floating_point()]):
            finish.append(partial(divide, integers, self.session.world_size))
        work = self._work(result, finish)
        self._pending.add(work)
        if self._order.is_free():
            self._begin(work, todo, opts, average=average, called=called)
        else:
            work.begins_later()
            begin = partial(self._begin, work, todo, opts, average=average, called=called)
            self._order.append(partial(_take, begin, work))
        return work

    def run_rows(self, name: str, tensors: Tensors, opts: Any) -> NetworkWork:
        """A sum of sparse tensors: begins with the exchanges that agree on their keys, in a thread."""
        self._require_everybody()
        self._collectives[name] += 1
        work = self._work(tensors, [])
        work.begins_later()
        self._pending.add(work)
        contributions = [(tensor, *rows.rows_of(tensor)) for tensor in tensors]
        average = bool(opts.reduceOp == _AVERAGE)

        def align_and_submit() -> None:
            called = partial(self._calls.note, name=name, operator=opts.reduceOp, tensors=tensors)
            todo = [plan for part in contributions if not (plan := self._aligned(*part, opts, average, called)).empty]
            work.finish_with([plan.finish for plan in todo])
            self._begin(work, todo, opts, average=average, called=called)

        self._order.append(partial(_take, align_and_submit, work))
        return work

    def watch_gloo(self, work: GlooWork, what: str | None) -> None:
        """A work of Gloo's beside the network's. `what`: the collective that was called, None if it is none."""
        if what is not None:
            work.number = self._calls.note_gloo(what)
        self._attendant.watch_gloo(work)

    # Who is there.

    @property
    def left(self) -> WorkerLeftError | None:
        """The error that says that a worker has left in an orderly way, if nothing worse happened before."""
        failure = self.session.failure
        return failure if isinstance(failure, WorkerLeftError) else None

    def require_group(self) -> None:
        """Raises the error that has ended the group. If a worker has only left, calls that do not need it go on."""
        if self.left is None:
            self._require_everybody()

    def lacks_for_gloo(self, number: int, left: WorkerLeftError, wait_s: float = ANSWER_S_MAX) -> bool:
        """Is the worker that left still needed for this collective of Gloo? False as long as that is unknown."""
        finished = self._departures.finished_by(left.rank, wait_s)
        return finished is not None and number >= finished

    @property
    def gloo_calls(self) -> int:
        """How many of Gloo's collectives were called here; the next one's number."""
        return self._calls.gloo_calls

    def _require_everybody(self) -> None:
        if (failure := self.session.failure) is not None:
            raise self.translate(failure)

    # What direct.hpp needs of Python.

    def form_of_sum(self, tensor: torch.Tensor, average: bool) -> Form:
        """Of an all-reduce of this tensor, or of others of its type and size."""
        (plan,) = plans.all_reduce([tensor])
        return self.session.form(**self._form(plan, average=average))

    def adopt(self, operation: Operation, tensors: Tensors) -> NetworkWork:
        """The work of an operation that was submitted without Python."""
        work = self._work(tensors, [])
        work.add(operation)
        work.all_added()
        return work

    def attend(self, work: NetworkWork) -> None:
        """An adopted work that its caller may not wait for."""
        if work.done():
            work.settle()
            return
        self._pending.add(work)
        with self._attendant.changed:
            for operation in work.operations():
                self.session.notify(operation)
            self._attendant.watch_network(work)

    def _set_direct(self, is_free: bool) -> None:
        if self.direct is not None:
            self.direct.set_open(is_free)

    # Its end.

    def drain(self) -> None:
        """Waits a moment for pending works, and tells the others how far this worker has come."""
        if self.direct is not None:
            self.direct.drain(timedelta(seconds=DRAIN_TIMEOUT_S))
        self._order.drain(DRAIN_TIMEOUT_S)
        self._attendant.drain(DRAIN_TIMEOUT_S)
        if self.session.failure is None:
            oldest = self._attendant.oldest_gloo()
            self._departures.say(self.gloo_calls if oldest is None else oldest)

    def close(self) -> None:
        """Leaves the job. What is pending fails."""
        self.session.close()
        self._order.close()
        self._standstill.close()
        self._attendant.close()
        for work in list(self._pending):
            work.settle()

    def translate(self, error: WiresumError) -> Exception:
        """The error for users, with what each worker called if that was not the same."""
        if isinstance(error, DivergedError):
            return as_torch_error(error, self._calls.compare(error.number))
        if isinstance(error, JobAbortedError) and DivergedError.WORDS in error.reason:
            return as_torch_error(error, self._calls.compare(None))
        return as_torch_error(error)

    def _work(self, result: Tensors, finish: Sequence[Callable[[], None]]) -> NetworkWork:
        return NetworkWork(
            result, finish, rank=self.session.rank, forget=self._pending.discard, translate=self.translate
        )

    def _aligned(
        self,
        tensor: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        opts: Any,
        average: bool,
        called: Callable[[int], None],
    ) -> CollectivePlan:
        """Waits until the workers have agreed on a sparse tensor's keys, and returns what is left to do then."""
        rank, size = self.session.rank, self.session.world_size
        possible = rows.keys_possible(tensor)
        plan, numbers = rows.sizes_plan(keys, rank=rank, size=size)
        self._exchange(plan, opts, called, signature=rows.call_of(tensor))
        if rows.counting_is_cheaper(numbers, possible):
            plan, presence = rows.presence_plan(keys, possible)
            self._exchange(plan, opts, called, signature=rows.call_of(tensor), bits=rows.COUNT_BITS)
            union = presence.nonzero().reshape(-1)
        else:
            plan, everybody = rows.keys_plan(keys, numbers, rank=rank)
            self._exchange(plan, opts, called, signature=rows.call_of(tensor))
            union = everybody.unique()
        return rows.sum_plan(tensor, keys, values, union, integer_divisor=size if average else 1)

    def _exchange(
        self, plan: CollectivePlan, opts: Any, called: Callable[[int], None], *, signature: int, bits: int = 32
    ) -> None:
        """A collective that is waited for here."""
        work = self._work([], [plan.finish])
        try:
            operation = self.session.submit(
                plan.regions,
                dtype=plan.dtype,
                bits=bits,
                signature=signature,
                may_be_sparse=plan.dtype is Dtype.I32,
                timeout_s=self._timeout_s(opts),
                notify=False,
            )
        except WiresumError as error:
            raise self.translate(error) from error
        work.add(operation)
        called(operation.number)
        work.all_added()
        self._pending.add(work)  # if the wait is interrupted, the network still uses the plan's memory
        work.wait()

    def _begin(
        self,
        work: NetworkWork,
        todo: Sequence[CollectivePlan],
        opts: Any,
        *,
        average: bool,
        called: Callable[[int], None],
    ) -> None:
        """Submits a work's operations; `called` notes what has the number that each one got."""
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
        todo: Sequence[CollectivePlan],
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
                raise self.translate(error) from error
            raise
        work.all_added()

    def _submit(self, plan: CollectivePlan, *, average: bool, timeout_s: float, notify: bool) -> Operation:
        return self.session.submit(
            plan.regions, **self._form(plan, average=average), timeout_s=timeout_s, notify=notify
        )

    def _form(self, plan: CollectivePlan, *, average: bool) -> dict[str, Any]:
        """What Session.form takes."""
        floating = plan.sums and plan.dtype in FLOATING
        bits = self._bits if floating else 32
        fixed_scale = self._fixed_scale if floating else None
        return {
            "dtype": plan.dtype,
            "bits": bits,
            "scaling": Scaling.FIXED if fixed_scale is not None else None,
            "fixed_scale": fixed_scale if fixed_scale is not None else 1.0,
            "average": average and floating,
            "signature": plan.signature(bits=bits, average=average, fixed_scale=fixed_scale),
            "may_be_sparse": plan.may_be_sparse,
        }

    def _timeout_s(self, opts: Any) -> float:
        timeout: timedelta = opts.timeout
        return (timeout if timeout > _UNSET else self._timeout()).total_seconds()


def _noted_by(direct: Any) -> Callable[[], Sequence[Call]]:
    return tuple if direct is None else direct.notes


def _take(step: Callable[[], None], work: NetworkWork) -> None:
    """A step that nobody waits for: its error is the work's."""
    try:
        step()
    except Exception as error:
        work.fail(error)
