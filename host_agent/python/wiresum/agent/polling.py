"""A wait for what can only be asked for, such as an event of an accelerator: no part of PyTorch waits for one with a
time-out, and most devices spin."""

from __future__ import annotations

import time
from collections.abc import Callable

_SLEEP_S_MIN, _SLEEP_S_MAX = 20e-6, 2e-3
_SLEEP_PART = 1 / 8
"""Of the time that it has waited."""


def sleep_until(is_true: Callable[[], bool], deadline: float) -> bool:
    """Asks again and again, until it is true or the time on the monotonic clock has come. Whether it is true."""
    began = time.monotonic()
    while not is_true():
        now = time.monotonic()
        if now >= deadline:
            return False
        time.sleep(min(max((now - began) * _SLEEP_PART, _SLEEP_S_MIN), _SLEEP_S_MAX))
    return True
