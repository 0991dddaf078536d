"""What commands go by that ask again and again. A test gives them another one, as the `obj` of click's context."""

from __future__ import annotations

import time


class Timing:
    def now(self) -> float:
        """Seconds of a clock that only goes forward."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(max(0.0, seconds))
