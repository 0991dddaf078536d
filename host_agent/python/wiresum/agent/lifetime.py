"""The end of a process whose memberships attend, and its forked children. No membership is left behind by either."""

from __future__ import annotations

import atexit
import os
import weakref
from typing import Protocol


class Mortal(Protocol):
    def abort_at_exit(self) -> None:
        """The process ends: ends the job for all, if an exception is why."""
        ...

    def leave(self) -> None:
        """The process ends."""
        ...

    def after_fork_in_child(self) -> None:
        """This is a forked child, which is no member."""
        ...


_alive: weakref.WeakSet[Mortal] = weakref.WeakSet()
_inherited: list[object] = []
"""What a child must never destroy, since that would need gRPC's threads, which a child does not have."""


def begin(one: Mortal) -> None:
    _alive.add(one)


def end(one: Mortal) -> None:
    _alive.discard(one)


def keep_for_ever(*things: object) -> None:
    """Of gRPC, in a child."""
    _inherited.append(things)


def _end_all() -> None:
    alive = list(_alive)
    for one in alive:
        one.abort_at_exit()  # of all, before the first waits for a service that hears it, so that they wait together
    for one in alive:
        one.leave()


def _after_fork() -> None:
    for one in list(_alive):
        one.after_fork_in_child()


atexit.register(_end_all)
os.register_at_fork(after_in_child=_after_fork)
