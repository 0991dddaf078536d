"""What an asynchronous collective returns: `NetworkWork` or `GlooWork`.

`wait()` waits for the operation itself and then copies its results to the caller's tensors, in the caller's thread: so
a synchronous collective, whose latency matters, involves no other thread. The group's attendant (attendant.py) does the
same for callers that asked for a future or dropped the work.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import torch.distributed as dist

from wiresum.agent.errors import WiresumError
from wiresum.agent.polling import sleep_until

if TYPE_CHECKING:
    from wiresum.agent.session import Operation

OnSettled = Callable[[list[torch.Tensor], Exception | None], None]
"""A function that takes a work's result, and the error that ended it."""

NO_TIMEOUT = timedelta(0)


def stay_on(device: torch.device | None) -> None:
    """Makes an accelerator the current one of this thread, which must not be a caller's. A thread begins with the first
    accelerator, on which CUDA makes a context of some 500 MB at nearly any call: when the thread asks for an event,
    destroys one, or comes back from another device."""
    if device is not None and device.type != "cpu":
        torch.accelerator.set_device_index(device)


class _Work(dist.Work):
    """The common part of works. `finish` are the steps to take once when the collective is done."""

    _settled = False
    _error: Exception | None = None

    def __init__(self, result: list[torch.Tensor], finish: Sequence[Callable[[], None]]) -> None:
        super().__init__()
        self._result = result
        self._finish = finish
        self._lock = threading.Lock()

    def result(self) -> list[torch.Tensor]:
        return self._result

    def synchronize(self) -> None:
        self.wait()

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> Exception | None:
        if self.is_completed():
            with contextlib.suppress(Exception):  # the error is kept in _error
                self.wait()
        return self._error

    def when_settled(self, callback: OnSettled) -> None:
        """Calls back once the results are in the caller's tensors, or now; in any thread."""
        raise NotImplementedError

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """The future of a work in a group without backend.cpp, which makes its own. After a failure the future raises a
        RuntimeError: C++ (DDP's reducer) can only take over an error from a Python future that a callback raised."""
        devices = list({tensor.device for tensor in self._result if not tensor.is_cpu})
        settled: torch.futures.Future[None] = torch.futures.Future(devices=devices)  # type: ignore[arg-type]

        def result(_: object) -> list[torch.Tensor]:
            self.wait()  # the work has settled, so this only raises its error, or orders the current stream
            return self.result()

        future = settled.then(result)
        self.when_settled(lambda *_: settled.set_result(None))
        return future

    def _raise_error(self) -> None:
        if self._error is not None:
            raise again(self._error)


class NetworkWork(_Work):
    """A collective in the network: one or several operations that complete as one."""

    device: torch.device | None = None
    """The accelerator that the work's tensors are on."""
    _submitted: threading.Event | None = None
    _callbacks: tuple[OnSettled, ...] = ()

    def __init__(
        self,
        result: list[torch.Tensor],
        finish: Sequence[Callable[[], None]],
        *,
        late: Callable[[Sequence[Operation], float], Exception],
        forget: Callable[[NetworkWork], None],
        translate: Callable[[WiresumError], Exception],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Steps of `finish` own the memory that the operations use. `late` makes the error of a wait of so many seconds
        that was too short for the operations. `forget` is called when they have ended, and `translate` makes the user's
        error from theirs."""
        super().__init__(result, finish)
        self._operations: list[Operation] = []
        self._late = late
        self._forget = forget
        self._translate = translate
        self._clock = clock

    def begins_later(self) -> None:
        """Another thread will submit the operations. Call it before that thread gets the work."""
        self._submitted = threading.Event()

    def add(self, operation: Operation) -> None:
        self._operations.append(operation)

    def all_added(self) -> None:
        if self._submitted is not None:
            self._submitted.set()

    def finish_with(self, steps: Sequence[Callable[[], None]]) -> None:
        """Adds steps before the others, for a work whose plans become known after it began."""
        self._finish = [*steps, *self._finish]

    def fail(self, error: Exception) -> None:
        """Ends a work whose operations could not all be submitted."""
        with self._lock:
            self._error, self._settled = error, True
            callbacks, self._callbacks = self._callbacks, ()
        self.all_added()
        if not self._operations:  # else the network has memory of the work, which stays until the group is closed
            self._forget(self)
        for callback in callbacks:
            callback(self._result, error)

    def operations(self) -> list[Operation]:
        return list(self._operations)

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Waits until the results are there. Raises the error that ended the collective, or a WiresumTimeoutError."""
        if not self._settled:
            self._await(timeout)
            self.settle()
        self._raise_error()
        return True

    def settle(self) -> None:
        """Copies the results to the caller's tensors. Call it when all operations are done; in any thread, any number
        of times."""
        with self._lock:
            if self._settled:
                return
            self._error = self._take_results()
            self._settled = True
            self._operations, self._finish = [], ()
            callbacks, self._callbacks = self._callbacks, ()
        self._forget(self)
        for callback in callbacks:
            callback(self._result, self._error)

    def when_settled(self, callback: OnSettled) -> None:
        with self._lock:
            if not self._settled:
                self._callbacks += (callback,)
                return
        callback(self._result, self._error)

    def done(self) -> bool:
        """True when all operations have ended. The results may not be in the caller's tensors yet."""
        if self._settled:
            return True
        submitted = self._submitted is None or self._submitted.is_set()
        return submitted and all(operation.done() for operation in self._operations)

    def is_completed(self) -> bool:
        if not self._settled and self.done():
            self.settle()
        return self._settled

    def late(self, waited_s: float) -> Exception:
        """The error of a wait of so many seconds that was too short."""
        return self._late(self._operations, waited_s)

    def _await(self, timeout: timedelta) -> None:
        deadline = self._clock() + timeout.total_seconds() if timeout > NO_TIMEOUT else math.inf
        try:
            if self._submitted is not None and not self._submitted.wait(_left_s(deadline, self._clock())):
                raise TimeoutError
            for operation in self._operations:
                operation.wait(_left_s(deadline, self._clock()))
        except WiresumError:
            pass  # settle() reads the error from the operation
        except TimeoutError as error:
            raise self.late(timeout.total_seconds()) from error

    def _take_results(self) -> Exception | None:
        for operation in self._operations:
            if (cause := operation.error) is not None:
                return self._translate(cause)
        try:
            for step in self._finish:
                step()
        except Exception as error:  # copying into the caller's tensor failed
            return error
        return None


class Callbacks:
    """Counts pending callbacks of works, which Gloo's threads run."""

    def __init__(self) -> None:
        self._waiting, self._lock = 0, threading.Lock()

    def begin(self) -> None:
        """Notes a callback that waits for its work."""
        with self._lock:
            self._waiting += 1

    def end(self) -> None:
        with self._lock:
            self._waiting -= 1

    def have_ended(self) -> bool:
        with self._lock:
            return self._waiting == 0


class GlooWork(_Work):
    """A collective that Gloo runs. Adds what Gloo lacks (AVG), and explains its failures."""

    def __init__(
        self,
        inner: dist.Work,
        result: list[torch.Tensor],
        *,
        finish: Sequence[Callable[[], None]],
        explain: Callable[[Exception, float | None], Exception],
        late: Callable[[float], Exception],
        confirm: Callable[[], Exception | None],
        timeout_s: float,
        began: float | None,
        forget: Callable[[GlooWork], object],
        callbacks: Callbacks | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """The steps of `finish` are taken in wait(), or by Gloo's thread if nobody waits. `explain` gets Gloo's error,
        and the limit in seconds after a time-out: `timeout_s` after `began`, or after the start of the wait if `began`
        is None. `late` makes the error of a wait of so many seconds that was too short. `confirm` is called when Gloo
        is done, and returns an error if the result is worthless. `forget` is called when the work is settled.
        `callbacks` counts for all works of the same Gloo."""
        super().__init__(result, finish)
        self._inner = inner
        self._callbacks = callbacks or Callbacks()
        self._forget = forget
        self._explain = explain
        self._late = late
        self._confirm = confirm
        self._timeout_s = timeout_s
        self._began = began
        self._clock = clock
        self.number: int | None = None
        """The collective's number among those that go through Gloo; None for sends and receives."""
        if finish:
            with contextlib.suppress(RuntimeError):  # sends and receives have no future, and must be waited for
                self.when_settled(lambda *_: None)

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        if not self._settled:
            waits_since = self._clock()
            try:
                self._inner.wait(timeout) if timeout > NO_TIMEOUT else self._inner.wait()
            except Exception as error:
                if timeout > NO_TIMEOUT and not self._inner.is_completed():
                    raise self._late(timeout.total_seconds()) from error
                self._settle(error, waits_since, timeout)
            else:
                self._settle(None)
        self._raise_error()
        return True

    def is_completed(self) -> bool:
        return self._settled or bool(self._inner.is_completed())

    done = is_completed

    def late(self, waited_s: float) -> Exception:
        return self._late(waited_s)

    def source_rank(self) -> int:
        return int(self._inner._source_rank())

    _source_rank = source_rank

    def when_settled(self, callback: OnSettled) -> None:
        caller = threading.get_ident()

        def settled(future: torch.futures.Future[Any]) -> None:
            if threading.get_ident() != caller:  # the caller's thread, if Gloo was done already
                stay_on(next((tensor.device for tensor in self._result if not tensor.is_cpu), None))
            try:
                try:
                    future.value()
                except Exception as error:
                    self._settle(error)
                else:
                    self._settle(None)
                callback(self._result, self._error)
            finally:
                self._callbacks.end()

        future = self._inner.get_future()
        self._callbacks.begin()
        future.add_done_callback(settled)

    def _settle(
        self, error: Exception | None, waits_since: float = math.inf, wait_timeout: timedelta = NO_TIMEOUT
    ) -> None:
        with self._lock:
            if self._settled:
                return
            try:
                self._error = self._take_results(error, waits_since, wait_timeout)
            except Exception as failed:  # in Gloo's thread nobody would see the error
                self._error = failed
            self._settled, self._finish = True, ()
        self._forget(self)

    def _take_results(self, error: Exception | None, waits_since: float, wait_timeout: timedelta) -> Exception | None:
        """Returns the error of a failed collective. Raises errors of copying into the caller's tensors."""
        if error is not None:
            now = self._clock()
            wait_s = wait_timeout.total_seconds() if wait_timeout > NO_TIMEOUT else math.inf
            if now - (waits_since if self._began is None else self._began) >= self._timeout_s:
                return self._explain(error, self._timeout_s)
            return self._explain(error, wait_s if now - waits_since >= wait_s else None)
        if (lack := self._confirm()) is not None:
            return lack
        for step in self._finish:
            step()
        return None


class GroupedWork(_Work):
    """Several works as one, for a coalescing manager."""

    def __init__(self, works: Sequence[StartedWork]) -> None:
        super().__init__([tensor for work in works for tensor in work.result()], ())
        self._works = works

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        if timeout > NO_TIMEOUT:  # the timeout is for all works together
            deadline = time.monotonic() + timeout.total_seconds()
            if not sleep_until(self.done, deadline) and not self.done():
                raise self.late(timeout.total_seconds())
        for work in self._works:
            work.wait()
        return True

    def done(self) -> bool:
        return all(work.done() for work in self._works)

    def late(self, waited_s: float) -> Exception:
        return next((work for work in self._works if not work.done()), self._works[-1]).late(waited_s)

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def exception(self) -> Exception | None:
        return next((error for work in self._works if (error := work.exception()) is not None), None)

    def when_settled(self, callback: OnSettled) -> None:
        pending = list(self._works)
        lock = threading.Lock()

        def settled(result: list[torch.Tensor], error: Exception | None) -> None:
            with lock:
                pending.pop()
                if pending:
                    return
            callback(self.result(), self.exception())

        if not pending:
            callback([], None)
        for work in self._works:
            work.when_settled(settled)


StartedWork: TypeAlias = NetworkWork | GlooWork | GroupedWork


def _left_s(deadline: float, now: float) -> float | None:
    """Seconds until the deadline; None for a wait without end."""
    left_s = max(deadline - now, 0.0)
    return left_s if left_s <= threading.TIMEOUT_MAX else None


def again(error: Exception) -> Exception:
    """The same error with a traceback of its own, since one work may raise it many times."""
    copy = type(error)(*error.args)
    copy.__cause__ = error.__cause__
    return copy
