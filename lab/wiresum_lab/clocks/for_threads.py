"""Virtual time for threads that wait by a `Clock`: they are real threads, but take turns.

One thread runs at a time, and hands over only where it waits. Then the thread goes on that has waited longest among
those whose wait is over. If all wait, time moves to the first moment that a thread waits for. So a test runs in the
same order each time, at any load of the machine, and hours of waiting take no time. The thread that makes the clock
takes part; other threads must be started by `start`.
"""

from __future__ import annotations

import contextlib
import functools
import math
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from wiresum.agent.clock import Clock
from wiresum_lab.patience import PATIENCE_S, TimedOutError

T = TypeVar("T")

WAITS_MAX = 100_000
"""How many waits may begin at one moment. More of them mean an endless loop, whose condition is true already."""
MINUTES_S = 600.0
"""Default limit of a wait, in virtual seconds: longer than any time-out of a worker or a service in these tests."""


class _Turn:
    """A thread that waits for a condition, or for a moment."""

    def __init__(self, is_true: Callable[[], bool], until: float) -> None:
        self._is_true, self.until, self.thread = is_true, until, threading.current_thread()
        self.come = threading.Semaphore(0)
        self.error: BaseException | None = None
        """The error that the condition has raised. Any thread may have evaluated it."""

    def is_ready(self, now: float) -> bool:
        try:
            return self.until <= now or self._is_true()
        except BaseException as error:
            self.error = error
            return True


class _Thread(threading.Thread):
    over = False

    def is_alive(self) -> bool:
        return not self.over


class VirtualClock(Clock):
    def __init__(self, now: float = 1000.0) -> None:
        self._now = now
        self._turns: list[_Turn] = []
        self._waits = 0
        """Waits since time has moved."""
        self._stuck = self._asks = False
        """`_stuck`: every thread waits for ever. `_asks`: a condition is being evaluated, and must not wait itself."""

    def now(self) -> float:
        return self._now

    def wait(self, event: threading.Event, seconds: float) -> bool:
        return self.wait_for(event.is_set, self._now + seconds)

    def wait_for(self, is_true: Callable[[], bool], until: float) -> bool:
        self._waits += 1
        assert self._waits < WAITS_MAX, "a thread waits again and again, and time does not move"
        if not is_true():
            self._hand_over(_Turn(is_true, until))
        return is_true()

    def take(self, items: queue.SimpleQueue[T], seconds: float) -> T | None:
        return items.get() if self.wait_for(lambda: not items.empty(), self._now + seconds) else None

    def sleep(self, seconds: float) -> None:
        self.wait_for(lambda: False, self._now + seconds)

    def start(self, target: Callable[[], object], name: str) -> threading.Thread:
        turn = _Turn(lambda: True, math.inf)

        def run() -> None:
            turn.come.acquire()
            try:
                target()
            finally:
                thread.over = True
                self._next().come.release()

        thread = turn.thread = _Thread(target=run, name=name, daemon=True)
        thread.start()
        self._turns.append(turn)
        return thread

    def join(self, thread: threading.Thread, seconds: float) -> None:
        self.wait_for(lambda: not thread.is_alive(), self._now + seconds)

    # For tests.

    def wait_until(
        self,
        condition: Callable[[], object],
        what: str,
        within_s: float = MINUTES_S,
        meanwhile: Callable[[], object] = bool,
    ) -> None:
        """Waits for a condition. `meanwhile` is called before each check, and may raise an error to end the wait."""

        def is_true() -> bool:
            meanwhile()
            return bool(condition())

        assert self.wait_for(is_true, self._now + within_s), f"after {within_s:.0f} virtual seconds: not so: {what}"

    def run(self, *functions: Callable[[], T]) -> list[T]:
        """Runs all functions at the same time, each in a thread of its own. Returns their results, or raises the first
        error."""
        found: list[Any] = [None] * len(functions)

        def run_one(index: int) -> None:
            try:
                found[index] = functions[index]()
            except BaseException as error:
                found[index] = error

        threads = [self.start(functools.partial(run_one, index), "test") for index in range(len(functions))]
        self.wait_until(lambda: not any(thread.is_alive() for thread in threads), "they have ended")
        for error in found:
            if isinstance(error, BaseException):
                raise error
        return found

    @contextlib.contextmanager
    def meanwhile(self, function: Callable[[], object]) -> Iterator[None]:
        """Runs a function in a thread of its own, which must end by itself after the block."""
        thread = self.start(function, "test")
        yield
        self.wait_until(lambda: not thread.is_alive(), "it ends")

    def threads(self) -> list[str]:
        """The names of the other threads that have not ended."""
        return [turn.thread.name for turn in self._turns]

    def expect_no_threads(self) -> None:
        self.wait_for(lambda: self.threads() == [], self._now + MINUTES_S)
        assert self.threads() == [], "all have ended"

    def _hand_over(self, turn: _Turn) -> None:
        assert not self._asks, "what is waited for waits itself"
        self._turns.append(turn)
        after = self._next()
        if after is not turn:
            after.come.release()
            if not turn.come.acquire(timeout=10 * PATIENCE_S):
                raise TimedOutError(f"thread {turn.thread.name} waits in virtual time, and another one does not")
        if turn.error is not None:
            raise turn.error
        if self._stuck:
            raise AssertionError("every thread waits for ever")

    def _next(self) -> _Turn:
        """Removes and returns the thread whose turn it is. Moves time if all wait."""
        self._asks = True
        ready = next((turn for turn in self._turns if turn.is_ready(self._now)), None)
        self._asks = False
        if ready is None:
            ready = min(self._turns, key=lambda turn: turn.until)
            if ready.until == math.inf:
                self._stuck = True
            else:
                self._now, self._waits = ready.until, 0
        self._turns.remove(ready)
        return ready
