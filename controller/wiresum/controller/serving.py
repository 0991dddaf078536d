"""What every command that serves needs."""

from __future__ import annotations

import contextlib
import resource
import signal
import threading
from collections.abc import Iterator


def raise_file_limit() -> None:
    """To what this process may have: each connection is a file. (The usual limit of 1024 is for users of select().)"""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextlib.contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """An event that the first SIGINT or SIGTERM sets; a second one ends the process at once."""
    stop = threading.Event()

    def request_stop(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        stop.set()

    before = {number: signal.signal(number, request_stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
