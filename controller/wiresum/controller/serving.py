"""What every command that serves needs: more files, and an orderly end on signals."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import threading
from collections.abc import Iterator


def raise_file_limit() -> None:
    """Raises the limit of open files to what this process may have: each connection is a file. (The usual limit of 1024
    is for users of select().)"""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class _Stop(threading.Event):
    """An event that a signal handler may set in the midst of a `wait` of its own thread. With a plain event `set` would
    wait for ever for the lock that `wait` has then."""

    def __init__(self) -> None:
        super().__init__()
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._given = False

    def set(self) -> None:
        self._given = True
        os.eventfd_write(self._descriptor, 1)

    def is_set(self) -> bool:
        return self._given

    def wait(self, timeout: float | None = None) -> bool:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        poll.poll(None if timeout is None else 1000 * max(0.0, timeout))
        return self._given

    def close(self) -> None:
        os.close(self._descriptor)


@contextlib.contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """An event that the first SIGINT or SIGTERM sets; a second one ends the process at once."""
    stop = _Stop()

    def request_stop(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        stop.set()

    before = {number: signal.signal(number, request_stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        stop.close()
