"""The order in which a group's collectives are submitted to the network.

All workers must submit the same collectives in the same order. Callers submit most of them at once. A sum of sparse
tensors takes several exchanges, each of which depends on the one before (rows.py), and a tensor on an accelerator must
be copied to the host first (accelerators.py). So a thread submits these, as *steps*, while their callers go on. Later
calls wait behind them. The thread ends when there has been no step for IDLE_S.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

JOIN_TIMEOUT_S = 5.0
IDLE_S = 1.0


class SubmissionOrder:
    """Submits a group's calls in order. `name` is the thread's. `on_change` gets `is_free()` whenever it changes."""

    def __init__(self, name: str, on_change: Callable[[bool], None]) -> None:
        self._name = name
        self._on_change = on_change
        self._changed = threading.Condition()
        self._steps: deque[Callable[[], None]] = deque()
        """The current step and the later ones."""
        self._thread: threading.Thread | None = None
        self._closing = False

    def is_free(self) -> bool:
        """True if the caller may submit at once."""
        return not self._steps

    def append(self, step: Callable[[], None]) -> None:
        """The step is taken after all earlier ones. It must not raise."""
        with self._changed:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                thread.start()
                self._thread = thread
            if not self._steps:
                self._on_change(False)
                self._changed.notify_all()
            self._steps.append(step)

    def drain(self, timeout_s: float) -> None:
        """Waits until no step is left, or the timeout has passed."""
        if self._thread is not threading.current_thread():
            with self._changed:
                self._changed.wait_for(lambda: not self._steps, timeout_s)

    def close(self) -> None:
        """Waits for the last step. Call it when the session is closed, which ends all waits of steps."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(JOIN_TIMEOUT_S)

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._changed.wait_for(lambda: self._steps or self._closing, IDLE_S) or not self._steps:
                    self._thread = None
                    return
                step = self._steps[0]
            step()
            del step  # frees the step's tensors while the thread waits for the next step
            with self._changed:
                self._steps.popleft()
                if not self._steps:
                    self._on_change(True)
                    self._changed.notify_all()
