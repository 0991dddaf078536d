"""A worker's order to end its job for all, shared by its memberships at all aggregators."""

from __future__ import annotations

import threading
from collections.abc import Callable

from wiresum.agent.life import aborted
from wiresum.agent.life_table import Event
from wiresum.join import JobEnded


class Abort:
    """The order to abort. All workers are at each aggregator, so one that has heard it suffices. Any thread may call
    any method."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._members: list[Callable[..., None]] = []
        self.order: JobEnded | None = None
        """The order once given; None before."""

    def tell(self, member: Callable[..., None]) -> None:
        """Calls `member` with each event, and its data by `life_table.Event`: at once, if the order is already
        given."""
        with self._lock:
            self._members.append(member)
            if self.order is not None:
                member(Event.ABORT, self.order)

    def forget(self, member: Callable[..., None]) -> None:
        with self._lock:
            self._members = [other for other in self._members if other != member]

    def give(self, reason: str) -> None:
        """The first reason is the cause of those after it."""
        with self._lock:
            if self.order is None:
                self.order = aborted(reason)
                for member in self._members:
                    member(Event.ABORT, self.order)

    def note_heard(self) -> None:
        """A service has heard the order, or has ended the job for another reason."""
        with self._lock:
            for member in self._members:
                member(Event.ELSEWHERE)
