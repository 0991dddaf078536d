"""This module ends memberships at the end of their process, and in its forked children. Neither leaves a membership
behind, nor a thread of gRPC with a lock: the ending interpreter stops daemon threads wherever they are, and then hangs
if it destroys a call whose lock one of them held.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from typing import Any, Protocol

CALLS_S_MAX = 2.0
"""The longest wait, at the process's end, for the threads of all calls."""


class Mortal(Protocol):
    def abort_at_exit(self) -> None:
        """The process ends: ends the job for all, if an exception is why."""
        ...

    def leave(self) -> None:
        """The process ends."""
        ...

    def after_fork_in_child(self) -> None:
        """This process is a forked child, which is no member."""
        ...


_alive: weakref.WeakSet[Mortal] = weakref.WeakSet()
_inherited: list[object] = []
"""Objects that a child must never destroy: their destruction needs gRPC's threads, which a child lacks."""
_open: dict[threading.Event, Any] = {}
"""Calls of gRPC, by the event that is set when they are over."""
_threads: set[threading.Thread] = set()
"""Threads that use calls, and perhaps some that have ended."""


def begin(one: Mortal) -> None:
    _alive.add(one)


def end(one: Mortal) -> None:
    _alive.discard(one)


def keep_for_ever(*things: object) -> None:
    """Keeps objects of gRPC, in a child."""
    _inherited.append(things)


def watch(call: Any) -> None:
    """The process does not end while threads use this call of gRPC, unless that takes too long."""
    over = threading.Event()

    def note() -> None:
        use()  # this thread serves the call's channel
        _open.pop(over, None)
        over.set()

    _open[over] = call
    if not call.add_callback(note):
        del _open[over]


def use() -> None:
    """Notes that this thread uses a call."""
    for thread in list(_threads):
        if not thread.is_alive():
            _threads.discard(thread)
    _threads.add(threading.current_thread())


def _end_calls() -> None:
    end_at = time.monotonic() + CALLS_S_MAX
    for over, call in list(_open.items()):
        call.cancel()
        over.wait(max(0.0, end_at - time.monotonic()))
    for thread in _threads:
        if thread is not threading.current_thread():
            thread.join(max(0.0, end_at - time.monotonic()))


def _end_all() -> None:
    alive = list(_alive)
    for one in alive:
        one.abort_at_exit()  # all before the first wait for a service, so that they wait together
    for one in alive:
        one.leave()
    _end_calls()


def _after_fork() -> None:
    keep_for_ever(*_open.values())
    _open.clear()
    _threads.clear()
    for one in list(_alive):
        one.after_fork_in_child()


atexit.register(_end_all)
os.register_at_fork(after_in_child=_after_fork)
