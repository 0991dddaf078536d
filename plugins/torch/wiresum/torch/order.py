"""The order in which a group's collectives are handed to the network.

All workers must submit the same collectives in the same order. Most are submitted at once, by the caller. A sum of
sparse tensors cannot be: its later exchanges depend on the results of the earlier ones (rows.py). Such a call is a
*step* that a thread takes while its caller goes on. Later calls wait behind it, so that the order is that of the calls,
however fast each worker is.

The thread starts with the first such step, and sleeps while there is nothing to do.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

JOIN_TIMEOUT_S = 5.0


class SubmissionOrder:
    """`name`: of the thread. `on_change` is called, whenever that changes, with whether callers may submit at once."""

    def __init__(self, name: str, on_change: Callable[[bool], None] = lambda is_free: None) -> None:
        self._name = name
        self._on_change = on_change
        self._changed = threading.Condition()
        self._steps: deque[Callable[[], None]] = deque()
        """Steps not taken yet, and the one that is being taken."""
        self._closing = False
        self._thread: threading.Thread | None = None

    def is_free(self) -> bool:
        """May the caller submit at once?"""
        return not self._steps

    def append(self, step: Callable[[], None]) -> None:
        """Appends a step, which is taken after all earlier ones. It must not raise."""
        with self._changed:
            if not self._steps:
                self._on_change(False)
            self._steps.append(step)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def drain(self, timeout_s: float) -> None:
        """Waits until no step is left, or the timeout has passed."""
        if self._thread is not threading.current_thread():
            with self._changed:
                self._changed.wait_for(lambda: not self._steps, timeout_s)

    def close(self) -> None:
        """Ends the thread once it has taken all steps. Call it after the session was closed: then no step waits."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(JOIN_TIMEOUT_S)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._steps or self._closing)
                if not self._steps:
                    return
                step = self._steps[0]
            step()
            with self._changed:
                self._steps.popleft()
                if not self._steps:
                    self._on_change(True)
                self._changed.notify_all()
