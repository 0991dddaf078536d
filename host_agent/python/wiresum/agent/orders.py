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
        self._end = ""
        """Why the job has ended at one of the aggregators, unless since a worker has left; empty: it has not."""

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

    def note_end(self, reason: str) -> None:
        """The job has ended at one of the aggregators."""
        self._end = self._end or reason

    def give_known_end(self) -> None:  # R7.34
        """The worker leaves. If its job has ended at one aggregator, it says why at the others: they would say that
        this worker has left, perhaps to one that has not heard the reason yet."""
        if self._end:
            self.give(self._end)

    def note_heard(self) -> None:
        """A service has heard the order, or has ended the job for another reason."""
        with self._lock:
            for member in self._members:
                member(Event.ELSEWHERE)
