"""Time, and threads that wait: all modules of this package take both from one object.

A module whose rules depend on time has a `Clock`, and waits by that alone. A test gives it one of virtual time, in
which the same threads take turns (wiresum_lab/clocks/for_threads.py).
"""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from wiresum.agent.polling import sleep_until

T = TypeVar("T")


class Clock:
    """Any thread may call any method."""

    def now(self) -> float:
        """Returns seconds; only differences mean something."""
        return time.monotonic()

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Waits until the event is set, at most so many seconds. Returns whether the event is set."""
        return event.wait(seconds)

    def wait_for(self, is_true: Callable[[], bool], until: float) -> bool:
        """Polls a condition that no event announces. Returns whether the condition holds."""
        return sleep_until(is_true, until)

    def take(self, items: queue.SimpleQueue[T], seconds: float) -> T | None:
        """Takes the next item; returns None if there is none for so many seconds."""
        with contextlib.suppress(queue.Empty):
            return items.get(timeout=None if seconds == math.inf else seconds)
        return None

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def start(self, target: Callable[[], object], name: str) -> threading.Thread:
        """Starts a daemon thread. Raises a `RuntimeError` if there can be no further thread."""
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        return thread

    def join(self, thread: threading.Thread, seconds: float) -> None:
        thread.join(seconds)


CLOCK = Clock()
