"""Backends whose process ends, or forks, while they are alive."""

from __future__ import annotations

import atexit
import os
import weakref
from typing import Protocol


class Mortal(Protocol):
    """What is told of the end of the process, or of a fork."""

    def leave_at_exit(self) -> None: ...

    def forget_after_fork(self) -> None: ...


_live: weakref.WeakSet[Mortal] = weakref.WeakSet()
_kept_after_fork: list[Mortal] = []


def watch(backend: Mortal) -> None:
    _live.add(backend)


def forget(backend: Mortal) -> None:
    """It is closed."""
    _live.discard(backend)


def _leave_at_exit() -> None:
    for backend in list(_live):
        backend.leave_at_exit()


def _forget_after_fork() -> None:
    """In a forked child: the parent's threads do not exist, and its sockets and membership must not be closed here."""
    for backend in list(_live):
        backend.forget_after_fork()
        _kept_after_fork.append(backend)
    _live.clear()


atexit.register(_leave_at_exit)
os.register_at_fork(after_in_child=_forget_after_fork)
