"""What a worker has said of its job's end: that the job is over for all, or that this worker leaves it.

An order holds for the job, not for a lease or a service. If no service hears it at once, the next one may not know the
job: it was started anew, or is a standby, or the fallback. So the order is told to whichever of the job's services is
next: as a member where the job is known, and otherwise in place of asking for another lease (resuming.py). From the
order on the worker does nothing else for the job: it neither halts, nor moves, nor goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from wiresum.join import JobEnded
from wiresum.join.constants import REASON_CHARACTERS_MAX


class Abort:
    """That a worker ends its job for all. Its memberships at all aggregators share this: all workers are at each of
    them, so it is enough that one has heard it. Any thread may call any method."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self.order: JobEnded | None = None
        """None: it has not been given."""
        self.given_at = 0.0
        self.is_told = False
        """A service has heard it, or has ended the job for another reason."""

    def give(self, reason: str) -> None:
        """The first reason is the cause of those after it."""
        with self._lock:
            if self.order is None:
                self.given_at = self._clock()
                self.order = JobEnded(cause=JobEnded.ABORTED_BY_WORKER, reason=reason[:REASON_CHARACTERS_MAX])
