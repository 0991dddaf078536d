"""Clocks that a test sets, for what takes the clock as a parameter."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NoReturn

from wiresum.cli.timing import Timing
from wiresum.controller import JoinServer
from wiresum_lab.processes import POLL_S, wait_until


class FrozenClock:
    """Goes only when told: by `now`, or `pass_at`."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def pass_at(self, server: JoinServer, seconds: float, step_s: float = 0.5) -> None:
        """In steps, which the server does not take for stalls: it ticks after each. It must have this clock."""
        for _ in range(round(seconds / step_s)):
            self.now += step_s
            wait_until(lambda: server.lag.overdue_s() < step_s / 2, "the server ticks")


class SteadyClock(FrozenClock):
    """`time.monotonic`, which a test can also set forward, like the clock of a process that was stopped for a while."""

    def __call__(self) -> float:
        return time.monotonic() + self.now


class ScriptedTiming(Timing):
    """For commands that look again and again: they look at once, and `each_time` is called between. It ends a command
    that does not end by itself with `stop`."""

    def __init__(self, each_time: Callable[[], object] = lambda: None) -> None:
        self.seconds, self.each_time = 100.0, each_time

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        self.each_time()
        time.sleep(POLL_S)  # a service that comes back is not there at once

    @staticmethod
    def stop() -> NoReturn:
        raise KeyboardInterrupt
