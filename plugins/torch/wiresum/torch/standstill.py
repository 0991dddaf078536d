"""Finds out when some of a group's workers wait in the network and others in Gloo, since they have called different
things.

The two ways know nothing of each other, so each would wait until its time is over. All workers call the same
collectives in the same order. So if one waits in the network's collective number n and has called m of Gloo's, and
another waits in the one of Gloo's that comes after these m and has called none of the network's from n on, then they
have called different things after what they had in common.

Who waits in Gloo says so in the group's store, and who waits in the network looks there. Both only once they have stood
still for a while, so that nothing is slower for it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import NamedTuple

from torch._C._distributed_c10d import Store

from wiresum.agent.session import Session
from wiresum.torch.calls import CallLog

LOOK_S = 1.0
"""Between two looks. What is the same at both stands still."""
JOIN_TIMEOUT_S = 1.0


class Position(NamedTuple):
    """Of one worker."""

    submitted: int
    """Of the network's operations."""
    oldest: int
    """Of the network's that have not ended, counted from 1; 0: all have."""
    gloo: int | None
    """The oldest of Gloo's collectives that have not ended, counted from 0; None: all have."""

    def waits(self) -> bool:
        return self.oldest > 0 or self.gloo is not None


class Standstill:
    """`look` belongs to the group's attendant. A thread talks to the store, which may take long to answer, for as long
    as something stands still. `submits_at_once`: is nothing called that waits to be submitted (order.py)?"""

    def __init__(self, session: Session, store: Store, calls: CallLog, *, submits_at_once: Callable[[], bool]) -> None:
        self._session, self._store, self._calls = session, store, calls
        self._submits_at_once = submits_at_once
        self._position = Position(0, 0, None)
        self._stands: Position | None = None
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def look(self, gloo: int | None) -> None:
        """To be called every LOOK_S. `gloo` as in Position."""
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
            # The caller may wait for a key, and has the store's object for itself until that comes.
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
        """The key under which others find that this worker waits in Gloo; empty if it does not."""
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
            self._calls.compare(number)  # for the others, who ask: perhaps nobody waits here


def _key(gloo: int, network: int) -> str:
    """Of those that wait in this one of Gloo's, and have not called this one of the network's."""
    return f"{gloo}/{network}"
