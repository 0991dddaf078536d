"""This module polls what announces nothing, such as an event of an accelerator: no part of PyTorch waits for one with a
time-out, and most devices spin."""

from __future__ import annotations

import time
from collections.abc import Callable

_SLEEP_S_MIN, _SLEEP_S_MAX = 20e-6, 2e-3
_SLEEP_PART = 1 / 8
"""The next pause, as a part of the time waited so far."""


def sleep_until(is_true: Callable[[], bool], deadline: float) -> bool:
    """Polls until the condition holds or the deadline on the monotonic clock has come. Returns whether the condition
    holds."""
    began = time.monotonic()
    while not is_true():
        now = time.monotonic()
        if now >= deadline:
            return False
        time.sleep(min(max((now - began) * _SLEEP_PART, _SLEEP_S_MIN), _SLEEP_S_MAX))
    return True
