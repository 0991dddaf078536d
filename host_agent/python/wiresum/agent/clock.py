"""Time, and threads that wait: all that the modules of this package know of either is one object.

Where time is a rule, a module has a `Clock`, and waits by it alone. A test gives it one of virtual time, in which the
same threads take turns (wiresum_lab/clocks/for_threads.py).
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
        """Seconds; only differences mean something."""
        return time.monotonic()

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Returns at once if the event is set, and at the latest after so long. Whether it is set."""
        return event.wait(seconds)

    def wait_for(self, is_true: Callable[[], bool], until: float) -> bool:
        """For what no event tells. Whether it is true."""
        return sleep_until(is_true, until)

    def take(self, items: queue.SimpleQueue[T], seconds: float) -> T | None:
        """The next one; None if there is none for so long."""
        with contextlib.suppress(queue.Empty):
            return items.get(timeout=None if seconds == math.inf else seconds)
        return None

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def start(self, target: Callable[[], object], name: str) -> threading.Thread:
        """Of a daemon. Raises a `RuntimeError` if there can be no further thread."""
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        return thread

    def join(self, thread: threading.Thread, seconds: float) -> None:
        thread.join(seconds)


CLOCK = Clock()
