"""A group's background thread, which completes what no caller waits for.

It settles works whose callers asked for futures or dropped the work, and so keeps their tensors alive until the network
is done with them. When the session fails it makes Gloo's pending operations fail, too: Gloo notices only the death of a
neighbour in its ring. If a worker has only left, operations that do not need it go on (gloo.py). The thread starts with
the first work, and ends when there has been none for IDLE_S.

Callbacks of futures run in this thread, and may call a collective and wait for its future (PowerSGD's does). So when a
callback calls a collective, a new thread takes over, and the callback's thread ends with the callback.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from wiresum.torch.work import stay_on

if TYPE_CHECKING:
    from wiresum.agent.session import Session
    from wiresum.torch.work import GlooWork, NetworkWork

log = logging.getLogger("wiresum")

POLL_S = 0.2
"""How long the thread waits for the network before it checks Gloo, and the other way round."""
IDLE_S = 1.0
JOIN_TIMEOUT_S = 5.0


class Attendant:
    """Attends to a group's works. After the session has failed, `on_failure` is called with Gloo's pending works until
    it returns True: then all will end."""

    def __init__(self, session: Session, *, name: str, on_failure: Callable[[Sequence[GlooWork]], bool]) -> None:
        self._session = session
        self._on_failure = on_failure
        self.changed = threading.Condition()
        """Hold it while submitting with `notify` and until watch_network(): a completion must find its work."""
        self._network: dict[int, NetworkWork] = {}
        self._gloo: weakref.WeakSet[GlooWork] = weakref.WeakSet()
        self._completed: deque[int] = deque()
        """Tokens of operations that have ended and are to be settled next."""
        self._closing = False
        self._idle = False
        self._name = name
        self._thread: threading.Thread | None = None

    def hand_over(self) -> None:
        """Call it before giving another thread something to submit: if a callback calls here, and waits for the result,
        a new thread has to take over."""
        with self.changed:
            if self._is_current():
                self._ensure_thread()

    def watch_network(self, work: NetworkWork) -> None:
        with self.changed:
            self._network.update((operation.token, work) for operation in work.operations())
            self.changed.notify_all()
            self._ensure_thread()

    def watch_gloo(self, work: GlooWork) -> None:
        """Holds the work weakly: a send or receive that nobody waits for never becomes complete in Gloo."""
        with self.changed:
            self._gloo.add(work)
            self._ensure_thread()
            if self._idle:  # otherwise the thread sees the work soon; waking it each time would slow down the caller
                self.changed.notify_all()

    def drain(self, timeout_s: float) -> None:
        """Waits until the network's works have ended, the session has failed, or the timeout has passed."""
        if not self._is_current():
            with self.changed:
                self.changed.wait_for(lambda: not self._network or self._session.failure is not None, timeout_s)

    def close(self) -> None:
        """Ends the thread. Call it after the session was closed, when all of its operations have ended."""
        with self.changed:
            self._closing = True
            self.changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(JOIN_TIMEOUT_S)
        for work in set(self._network.values()):
            work.settle()

    def _ensure_thread(self) -> None:
        """Starts a thread if none runs, or if this one runs a callback, which may take long. Hold `changed`."""
        if (self._thread is None or self._is_current()) and not self._closing:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            thread.start()
            self._thread = thread

    def _is_current(self) -> bool:
        return threading.current_thread() is self._thread

    def _run(self) -> None:
        try:
            while self._await_work():
                self._attend()
        except Exception:
            log.exception("wiresum: unexpected error while attending to collectives; the job ends")
            self._session.abort("an internal error in the PyTorch backend; the log of this worker has the traceback")

    def _await_work(self) -> bool:
        with self.changed:
            if not self._is_current():
                return False
            self._idle = True
            has_work = self.changed.wait_for(lambda: self._network or self._gloo or self._closing, IDLE_S)
            self._idle = False
            if not has_work:
                self._thread = None
            return bool(has_work) and not self._closing

    def _attend(self) -> None:
        """Checks everything once; sleeps for POLL_S at most."""
        if self._network:
            self._completed.extend(operation.token for operation in self._session.wait_completed(POLL_S))
            while self._completed and self._is_current():
                self._settle(self._completed.popleft())
        else:
            with self.changed:
                self.changed.wait_for(lambda: self._network or self._closing, POLL_S)
        if self._is_current():
            self._check_gloo()

    def _settle(self, token: int) -> None:
        with self.changed:
            work = self._network.pop(token, None)
            self.changed.notify_all()
        if work is not None and work.done():
            stay_on(work.device)
            work.settle()

    def _check_gloo(self) -> None:
        with self.changed:
            for work in [work for work in self._gloo if work.is_completed()]:
                self._gloo.discard(work)
            pending = list(self._gloo)
        if pending and self._session.failure is not None and self._on_failure(pending):
            with self.changed:
                self._gloo.clear()
