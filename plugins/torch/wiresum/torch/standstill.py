"""Finds deadlocks between network and Gloo: some workers wait in one and some in the other, because they have called
different collectives.

Network and Gloo know nothing of each other, so each would wait until its time-out. But if one worker waits in the
network's collective number n after m of Gloo's, and another waits in Gloo's collective after these m and has not called
the network's number n, then they have called different collectives.

A worker that waits in Gloo says so in the group's store, and a worker that waits in the network reads it there. Both do
so only after they have made no progress for a while, so this slows nothing down.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import NamedTuple

from torch._C._distributed_c10d import Store

from wiresum.agent.periodic import Periodic
from wiresum.agent.session import Session
from wiresum.torch.calls import CallLog

LOOK_S = 1.0
"""Time between two checks, between which nothing has changed if there is no progress."""
JOIN_TIMEOUT_S = 1.0

looks = Periodic("wiresum-looks", LOOK_S)
"""Looks at all groups of the process."""


class Position(NamedTuple):
    """One worker's."""

    submitted: int
    """How many of the network's operations were called."""
    oldest: int
    """The oldest pending operation of the network, counted from 1; 0: none."""
    gloo: int | None
    """The oldest pending collective of Gloo, counted from 0; None: none."""

    def waits(self) -> bool:
        return self.oldest > 0 or self.gloo is not None


class Standstill:
    """While there is no progress, a thread uses the store, which may take long to answer. `submits_at_once` tells
    whether no call waits to be submitted (order.py)."""

    def __init__(self, session: Session, store: Store, calls: CallLog, *, submits_at_once: Callable[[], bool]) -> None:
        self._session, self._store, self._calls = session, store, calls
        self._submits_at_once = submits_at_once
        self._position = Position(0, 0, None)
        self._stands: Position | None = None
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def look(self, gloo: int | None) -> None:
        """To be called every LOOK_S, also without work that the attendant knows of: only the caller knows of a
        synchronous collective. `gloo` as in Position."""
        before, self._position = self._position, Position(*self._session.native.standing, gloo)
        self._stands = self._position if self._position == before and before.waits() else None
        if self._stands is None or self._session.failure is not None:
            return
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(
                target=self._run, name=f"wiresum-standstill-{self._session.job_name}", daemon=True
            )
            with contextlib.suppress(RuntimeError):  # the process ends
                self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(JOIN_TIMEOUT_S)

    def _run(self) -> None:
        with contextlib.suppress(RuntimeError):  # the store's host has left
            # A caller that waits for a key blocks the original store object.
            store = self._store.clone()  # type: ignore[attr-defined]
            while (stands := self._stands) is not None and self._session.failure is None:
                said = self._say(store, stands)
                self._compare(store, stands)
                self._closing.wait(LOOK_S)
                if said:
                    store.delete_key(said)
                if self._closing.is_set():
                    return

    def _say(self, store: Store, stands: Position) -> str:
        """Publishes that this worker waits in Gloo, if it does. Returns the key, or ""."""
        if stands.gloo is None or not self._submits_at_once():
            return ""
        key = _key(stands.gloo, stands.submitted + 1)
        store.set(key, "")
        return key

    def _compare(self, store: Store, stands: Position) -> None:
        if not stands.oldest:
            return
        gloo = self._calls.gloo_calls
        if store.check([_key(gloo, stands.oldest)]) and self._stands == stands:
            number = stands.oldest & 0xFFFF
            self._calls.differ_at(gloo)
            self._session.diverge(number)
            self._calls.compare(number)  # answers the others, even if no caller waits here


def _key(gloo: int, network: int) -> str:
    """Published by workers that wait in this collective of Gloo and have not called this one of the network."""
    return f"{gloo}/{network}"
