"""Clocks that a test sets, for code that takes the clock as a parameter."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NoReturn

from wiresum.cli.timing import Timing
from wiresum.controller import JoinServer
from wiresum_lab.processes import POLL_S, wait_until


class FrozenClock:
    """A clock that moves only when a test sets `now` or calls `pass_at`."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def pass_at(self, server: JoinServer, seconds: float, step_s: float = 0.5) -> None:
        """Lets time pass at a server that has this clock, in steps so short that the server takes none for a stall. The
        server ticks after each step."""
        for _ in range(round(seconds / step_s)):
            self.now += step_s
            wait_until(lambda: server.lag.overdue_s() < step_s / 2, "the server ticks")


class SteadyClock(FrozenClock):
    """`time.monotonic` with an offset that a test may increase, as if the process had been stopped for a while."""

    def __call__(self) -> float:
        return time.monotonic() + self.now


class ScriptedTiming(Timing):
    """The timing of a command that polls: a pause of the command takes no time, but calls `each_time`. `each_time` may
    call `stop` to end a command that does not end by itself."""

    def __init__(self, each_time: Callable[[], object] = lambda: None) -> None:
        self.seconds, self.each_time = 100.0, each_time

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        self.each_time()
        time.sleep(POLL_S)  # a real pause, since a restarted service needs some time

    @staticmethod
    def stop() -> NoReturn:
        raise KeyboardInterrupt
