"""Blocking calls, to a switch or to the disk, made one at a time and in order by a thread of their own.

Executors of the standard library wait for their calls when the interpreter ends; with this class a call that hangs does
not keep the process from ending.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class SerialCalls:
    """A thread that makes calls for one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        """`name`: name of the thread."""
        self._loop = loop
        # Bounded by its callers: an admission and an eviction for each job, a reconciliation for each switch, and a
        # question for each call of a client, whose number gRPC limits.
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def submit(self, function: Callable[[], T]) -> asyncio.Future[T]:
        result: asyncio.Future[T] = self._loop.create_future()
        self._calls.put((function, result))
        return result

    def close(self) -> None:
        """Lets the thread end after the calls in its queue. Does not wait for the end."""
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            self._make(*call)
            del call  # while the thread waits, and when the process ends, it refers to nothing of the switch's

    def _make(self, function: Callable[[], Any], result: asyncio.Future[Any]) -> None:
        try:
            value, error = function(), None
        except Exception as caught:
            value, error = None, caught
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(_settle, result, value, error)


def _settle(result: asyncio.Future[Any], value: object, error: Exception | None) -> None:
    if result.done():  # its waiter was cancelled
        return
    if error is None:
        result.set_result(value)
    else:
        result.set_exception(error)
