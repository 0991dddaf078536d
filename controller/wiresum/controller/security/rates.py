"""Token buckets, which limit how much one peer may ask of a service. Their number is bounded."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

KEYS_MAX = 4096
"""How many buckets are kept; the bucket unused for longest goes first, and is usually full by then."""


class TokenBuckets:
    """A bucket for each key: a bucket holds `burst` tokens, and gains `per_second`."""

    def __init__(
        self, per_second: float, burst: float, *, keys_max: int = KEYS_MAX, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_second = per_second
        self._burst = burst
        self._keys_max = keys_max
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """By key, the tokens, and when they were counted."""

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, key: str) -> float:
        """Takes a token and returns 0, or returns the seconds until a token is available."""
        now = self._clock()
        tokens, at = self._buckets.pop(key, (self._burst, now))
        tokens = min(self._burst, tokens + (now - at) * self._per_second)
        lacking = max(0.0, 1.0 - tokens)
        self._buckets[key] = (tokens if lacking else tokens - 1.0, now)
        if len(self._buckets) > self._keys_max:
            self._buckets.popitem(last=False)
        return lacking / self._per_second

    def give_back(self, key: str) -> None:
        """Gives back a token that was taken but does not count."""
        if key in self._buckets:
            tokens, at = self._buckets[key]
            self._buckets[key] = (min(self._burst, tokens + 1.0), at)
