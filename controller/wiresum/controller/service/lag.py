"""How late an event loop is: how long a call may have waited until the loop came to it.

The loop calls `beat` once in each period. Whoever asks may do so from another thread, so that the answer also comes
while something holds the loop up, and says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable

SPAN_S = 30.0
"""`worst` is of the last one to two of these: a scrape each half minute misses nothing, and two who scrape do not take
it from each other."""


class LoopLag:
    def __init__(self, period_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._period_s, self._clock = period_s, clock
        self._beat_at = self._span_began_at = clock()
        self._worst_s = self._worst_before_s = 0.0
        """Of this span, and of the one before."""

    def beat(self) -> float:
        """In the loop. Returns how late it comes."""
        now, late_s = self._clock(), self.overdue_s()
        if now >= self._span_began_at + SPAN_S:
            self._worst_before_s, self._worst_s, self._span_began_at = self._worst_s, 0.0, now
        self._worst_s = max(self._worst_s, late_s)
        self._beat_at = now  # the last: a reader that still sees the former time counts it itself
        return late_s

    def overdue_s(self) -> float:
        """By how much the next call is late by now. From any thread."""
        return max(0.0, self._clock() - self._beat_at - self._period_s)

    def worst_s(self) -> float:
        """The most that a call was late, or is by now. From any thread."""
        return max(self.overdue_s(), self._worst_s, self._worst_before_s)
