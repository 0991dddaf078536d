"""A clock that detects whether this process itself was stopped for a while: by SIGSTOP, a debugger, a host that slept
or starved it, or a call that held the interpreter's lock.

A stopped process must blame nobody: its silence counts to nobody, and an error that follows says so. A thread that
looks at the clock every LOOK_S, and finds that far more time has gone by, was stopped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from wiresum.agent.periodic import Periodic

LOOK_S = 0.5
STOPPED_S_MIN = 2.0
"""A shorter gap means only a busy host."""
REMEMBERED_S = 60.0
"""Errors may be due to a stop for so many seconds after it."""

_looks = Periodic("wiresum-awake", LOOK_S)


def _boot_time() -> float:
    """This clock goes on while the host sleeps, unlike Linux's monotonic clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class AwakeClock:
    """Seconds in which this process ran. Any thread may call any method."""

    def __init__(self, clock: Callable[[], float] = _boot_time) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._looked_at: float | None = None
        """None means that nobody watches."""
        self._stopped_s = 0.0
        self._last_stop_s = 0.0
        self._stopped_until = 0.0

    def watch(self) -> None:
        """Starts the looks, until `unwatch`. Before, every second counts."""
        self._looked_at = self._clock()
        _looks.add(self.now)

    def unwatch(self) -> None:
        _looks.discard(self.now)
        with self._lock:
            self._looked_at = None

    def now(self) -> float:
        with self._lock:
            now = self._clock()
            gap_s = 0.0 if self._looked_at is None else now - self._looked_at - LOOK_S
            if gap_s >= STOPPED_S_MIN:
                self._stopped_s += gap_s
                self._last_stop_s, self._stopped_until = gap_s, now
            if self._looked_at is not None:
                self._looked_at = now
            return now - self._stopped_s

    def explain(self) -> str:
        """Returns a sentence on the last stop, if recent enough to be why something failed now; otherwise ""."""
        self.now()
        if not self._last_stop_s or self._clock() - self._stopped_until > REMEMBERED_S:
            return ""
        return (
            f"this process itself was stopped for {self._last_stop_s:.0f} s (SIGSTOP, a debugger, a host that slept or "
            f"was starved, or a call that held the interpreter's lock), which others may have taken for a loss"
        )
