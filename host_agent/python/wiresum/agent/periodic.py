"""One thread of the process calls functions at intervals, for all who need one."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

from wiresum.agent.clock import CLOCK, Clock

log = logging.getLogger(__name__)


class Periodic:
    """Calls functions every `period_s`, in a thread that lives as long as there are any. A function must not take long,
    since the others wait meanwhile; one that raises is not called again. The object is made once and kept until the
    process ends; a forked child has none of its parent's functions. Any thread may call any method."""

    def __init__(self, name: str, period_s: float, clock: Clock = CLOCK) -> None:
        self._name, self._period_s, self._clock = name, period_s, clock
        self._lock, self._unused = threading.Lock(), threading.Event()
        self._functions: list[Callable[[], object]] = []
        self._thread: threading.Thread | None = None
        os.register_at_fork(after_in_child=self._forget)

    def add(self, function: Callable[[], object]) -> None:
        """Raises a `RuntimeError` if the thread cannot be started."""
        with self._lock:
            if self._thread is None:
                self._thread = self._clock.start(self._run, self._name)
            self._functions.append(function)
            self._unused.clear()

    def discard(self, function: Callable[[], object]) -> None:
        """The function may be under way when this returns, but is not called any more. No error if the function is
        unknown."""
        with self._lock:
            if function in self._functions:
                self._functions.remove(function)
            if not self._functions:
                self._unused.set()

    def _forget(self) -> None:
        self._lock, self._unused, self._functions, self._thread = threading.Lock(), threading.Event(), [], None

    def _run(self) -> None:
        while True:
            self._clock.wait(self._unused, self._period_s)
            with self._lock:
                if not self._functions:
                    self._thread = None
                    return
            self._call_all()

    def _call_all(self) -> None:
        # This frame ends before the thread sleeps, which then holds no function, and so nobody's memory.
        with self._lock:
            functions = list(self._functions)
        for function in functions:
            try:
                function()
            except Exception:
                log.exception("unexpected error in %s, which goes on without that", self._name)
                self.discard(function)
