"""How late an event loop is: how long a call may have waited until the loop ran it.

The loop calls `beat` once in each period. Other threads may ask for the lag, so that an answer also comes while
something holds the loop up, and shows the delay.
"""

from __future__ import annotations

import time
from collections.abc import Callable

SPAN_S = 30.0
"""Length of a span. `worst_s` covers the last one to two spans: a scrape each half minute misses nothing, and two
scrapers do not disturb each other."""


class LoopLag:
    def __init__(self, period_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._period_s, self._clock = period_s, clock
        self._beat_at = self._span_began_at = clock()
        self._worst_s = self._worst_before_s = 0.0
        """The largest lag of this span, and of the span before."""

    def beat(self) -> float:
        """Notes a beat; called in the loop. Returns how late the beat is."""
        now, late_s = self._clock(), self.overdue_s()
        if now >= self._span_began_at + SPAN_S:
            self._worst_before_s, self._worst_s, self._span_began_at = self._worst_s, 0.0, now
        self._worst_s = max(self._worst_s, late_s)
        self._beat_at = now  # set last: a reader that still sees the former time counts the lag itself
        return late_s

    def overdue_s(self) -> float:
        """By how much the next beat is late by now. May be called from any thread."""
        return max(0.0, self._clock() - self._beat_at - self._period_s)

    def worst_s(self) -> float:
        """The most that a beat was late recently, or is by now. May be called from any thread."""
        return max(self.overdue_s(), self._worst_s, self._worst_before_s)
