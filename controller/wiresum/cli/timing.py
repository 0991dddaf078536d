"""The clock of commands that ask repeatedly. A test passes its own as the `obj` of click's context."""

from __future__ import annotations

import time


class Timing:
    def now(self) -> float:
        """Seconds of a clock that only goes forward."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(max(0.0, seconds))
