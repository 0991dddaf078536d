"""A worker's part when its job moves to another lease: it halts, stands still, and goes on.

docs/protocol.md, section 9, is the contract. The service tells the worker to halt. From then on each heartbeat says
where the data path stands still, until the Move of the same number says where to go on. A worker that has lost its
lease halts by itself, *unasked*. It goes on where a service moves it to, or at a lease that it has asked for
(resuming.py). What a service tells twice is done once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from wiresum import join as messages
from wiresum.agent.statistics import Moved

log = logging.getLogger(__name__)

Halt = Callable[[], bytes]
"""Stops the data path where it is, and returns its positions, as in join.proto. Idempotent, and bounded in time."""
Move = Callable[[messages.JoinReply, bytes], None]
"""Lets it go on at another lease, with the roles of join.proto. Raises a ValueError for what cannot be."""

_KEPT = ("slots", "threads", "lanes", "workers", "rank")
"""Of a lease, by the one after it."""


def _cannot_halt() -> bytes:
    raise RuntimeError("the service tells a worker to halt that did not say it can")


def _cannot_move(_grant: messages.JoinReply, _roles: bytes) -> None:
    raise AssertionError("it has not halted")


class Moves:
    """Used by one thread; others may read."""

    def __init__(self, job_name: str, clock: Callable[[], float]) -> None:
        self._job_name = job_name
        self._clock = clock
        self.set_data_path(None, None)
        self.halted: messages.Halted | None = None
        """What heartbeats say; None: the data path goes on."""
        self.halted_at = 0.0
        self.newest: Moved | None = None
        self._why = ""
        self._number = 0
        """Of the newest move that was completed."""

    def set_data_path(self, halt: Halt | None, move: Move | None) -> None:
        """None: it cannot."""
        self._halt, self._move = halt or _cannot_halt, move or _cannot_move

    @property
    def can_halt(self) -> bool:
        return self._halt is not _cannot_halt

    def halt_for(self, halt: messages.Halt) -> bool:
        """As the service says. False: it has been done. Raises what the data path does."""
        if halt.move_number <= (self._number if self.halted is None else self.halted.move_number):
            return False
        if self.halted is None:
            log.warning("job '%s' moves to another lease, since %s", self._job_name, halt.reason)
            self._why = halt.reason
        self._stand_still(messages.Halted(move_number=halt.move_number, positions=self._halt()))
        return True

    def halt_unasked(self, why: str) -> None:
        """Without its service, which is told so with each heartbeat when there is one, and moves the job. Raises what
        the data path does."""
        self._stand_still(messages.Halted(move_number=self._number, positions=self._halt(), unasked=True))
        log.warning("job '%s' looks for another lease, since %s", self._job_name, why)
        self._why = why

    def is_expected(self, move: messages.Move) -> bool:
        """Does it end the halt that a service has asked for?"""
        halted = self.halted
        return halted is not None and not halted.unasked and move.move_number == halted.move_number

    def go_on(self, grant: messages.JoinReply, roles: bytes, before: messages.JoinReply, number: int) -> None:
        """At another lease, after that of `before`. `number` is the move's, 0 for a lease that was asked for. Raises a
        ValueError for one that is not like the one before, and what the data path does."""
        assert self.halted is not None, "it has halted"
        for name in _KEPT:
            if getattr(grant, name) != getattr(before, name):
                raise ValueError(f"{name} would be {getattr(grant, name)}, and must be {getattr(before, name)}")
        if len(roles) != grant.slots:
            raise ValueError(f"{len(roles)} roles were given for {grant.slots} slots")
        self._move(grant, roles)
        self._number, self.halted = number, None
        self.newest = Moved(time.time(), self._why)

    def _stand_still(self, halted: messages.Halted) -> None:
        self.halted, self.halted_at = halted, self._clock()
