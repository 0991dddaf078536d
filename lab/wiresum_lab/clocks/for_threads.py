"""Virtual time for threads that wait by a `Clock`: they are real threads, but take turns.

One thread runs at a time, and hands over only where it waits. Then the thread goes on that has waited longest among
those whose wait is over. If all wait, time moves to the first moment that a thread waits for. So a test runs in the
same order each time, at any load of the machine, and hours of waiting take no time. The thread that makes the clock
takes part; other threads must be started by `start`. What only waits between short steps can be a task, which takes
turns in the same order, and needs no thread.
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from wiresum.agent.clock import Clock
from wiresum_lab.patience import PATIENCE_S, TimedOutError

T = TypeVar("T")

Task = Iterator[tuple[Callable[[], object], float]]
"""Yields what it waits for, and until when. Its steps do not wait themselves."""

WAITS_MAX = 100_000
"""How many waits may begin at one moment. More of them mean an endless loop, whose condition is true already."""
MINUTES_S = 600.0
"""Default limit of a wait, in virtual seconds: longer than any time-out of a worker or a service in these tests."""
never: Callable[[], bool] = bool
"""The condition of a wait for a moment."""


class _Turn:
    """A thread or a task that waits for a condition, or for a moment."""

    def __init__(self, name: str, is_true: Callable[[], object], until: float, task: Task | None = None) -> None:
        self.name, self.is_true, self.until, self.task = name, is_true, until, task
        self.come = threading.Lock()
        self.come.acquire()
        self.error: BaseException | None = None
        """The error that the condition has raised. Any thread may have evaluated it."""


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
        """`_stuck`: every thread waits for ever. `_asks`: a condition is evaluated, or a task makes a step; neither may
        wait itself."""

    def now(self) -> float:
        return self._now

    def wait(self, event: threading.Event, seconds: float) -> bool:
        return self.wait_for(event.is_set, self._now + seconds)

    def wait_for(self, is_true: Callable[[], object], until: float) -> bool:
        self._count_wait()
        if not is_true():
            self._hand_over(_Turn(threading.current_thread().name, is_true, until))
        return bool(is_true())

    def take(self, items: queue.SimpleQueue[T], seconds: float) -> T | None:
        return items.get() if self.wait_for(items.qsize, self._now + seconds) else None

    def sleep(self, seconds: float) -> None:
        self.wait_for(never, self._now + seconds)

    def start(self, target: Callable[[], object], name: str) -> threading.Thread:
        turn = _Turn(name, lambda: True, math.inf)

        def run() -> None:
            turn.come.acquire()
            try:
                target()
            finally:
                thread.over = True
                self._next().come.release()

        thread = _Thread(target=run, name=name, daemon=True)
        thread.start()
        self._turns.append(turn)
        return thread

    def start_task(self, task: Task, name: str) -> None:
        self._turns.append(_Turn(name, lambda: True, math.inf, task))

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

        is_over = condition if meanwhile is bool else is_true
        assert self.wait_for(is_over, self._now + within_s), f"after {within_s:.0f} virtual seconds: not so: {what}"

    def run(self, *functions: Callable[[], T]) -> list[T]:
        """Runs all functions at the same time, each in a thread of its own. Returns their results, or raises the first
        error."""
        found: list[Any] = [None] * len(functions)

        def run_one(index: int) -> None:
            try:
                found[index] = functions[index]()
            except BaseException as error:
                found[index] = error
            ended.append(index)

        ended: list[int] = []
        for index in range(len(functions)):
            self.start(functools.partial(run_one, index), "test")
        self.wait_until(lambda: len(ended) == len(functions), "they have ended")
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
        """The names of the other threads, and of the tasks, that have not ended."""
        return [turn.name for turn in self._turns]

    def expect_no_threads(self) -> None:
        self.wait_for(lambda: self.threads() == [], self._now + MINUTES_S)
        assert self.threads() == [], "all have ended"

    def _count_wait(self) -> None:
        self._waits += 1
        assert self._waits < WAITS_MAX, "a thread waits again and again, and time does not move"

    def _hand_over(self, turn: _Turn) -> None:
        assert not self._asks, "what is waited for waits itself"
        self._turns.append(turn)
        after = self._next()
        if after is not turn:
            after.come.release()
            if not turn.come.acquire(timeout=10 * PATIENCE_S):
                raise TimedOutError(f"thread {turn.name} waits in virtual time, and another one does not")
        if turn.error is not None:
            raise turn.error
        if self._stuck:
            raise AssertionError("every thread waits for ever")

    def _next(self) -> _Turn:
        """Removes and returns the thread whose turn it is, after the tasks before it. Moves time if all wait."""
        self._asks = True
        while True:
            turn = self._ready() or self._later()
            self._turns.remove(turn)
            if turn.task is None:
                self._asks = False
                return turn
            self._go_on(turn, turn.task)

    def _ready(self) -> _Turn | None:
        now = self._now
        for turn in self._turns:
            try:
                if turn.until <= now or turn.is_true():
                    return turn
            except BaseException as error:
                turn.error = error
                return turn
        return None

    def _later(self) -> _Turn:
        turn = min(self._turns, key=operator.attrgetter("until"))
        if turn.until < math.inf:
            self._now, self._waits = turn.until, 0
            return turn
        self._stuck = True
        return next(turn for turn in self._turns if turn.task is None)

    def _go_on(self, turn: _Turn, task: Task) -> None:
        """Its errors are shown as a thread's are."""
        try:
            if turn.error is not None:
                raise turn.error
            for turn.is_true, turn.until in task:
                self._count_wait()
                if not turn.is_true():
                    self._turns.append(turn)
                    return
        except BaseException as error:
            threading.excepthook(threading.ExceptHookArgs((type(error), error, error.__traceback__, None)))
