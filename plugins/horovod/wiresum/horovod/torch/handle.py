"""The handle that an asynchronous call returns, for `poll` and `synchronize`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from wiresum.horovod.torch.request import Request


class HorovodInternalError(RuntimeError):
    """A collective failed: the ranks disagree, one is lost or has shut down, or the network failed."""


class Handle:
    """A collective that this rank has requested. `buffers` are its tensors, which results of the same shape overwrite.

    `complete` turns the collective's result into the caller's, once, in the thread that waits first.
    """

    def __init__(
        self,
        request: Request,
        buffers: Sequence[torch.Tensor] = (),
        complete: Callable[[Any], object] = lambda result: result,
    ) -> None:
        self.request = request
        self.buffers = list(buffers)
        self._result: object = None
        self._complete: Callable[[Any], object] | None = complete
        self._launched = threading.Event()
        self._works: Sequence[dist.Work] = ()
        self._lock = threading.Lock()
        self._error: str | None = None

    def launch(self, works: Sequence[dist.Work], result: object = None) -> None:
        """Called when the collective has started, as `works`; `result` is complete when all works have ended."""
        self._works, self._result = works, result
        self._launched.set()

    def fail(self, error: str) -> None:
        if not self._launched.is_set():
            self._error = error
            self._launched.set()

    def done(self) -> bool:
        return self._launched.is_set() and all(work.is_completed() for work in self._works)

    def wait(self) -> object:
        """Returns the result, or raises a `HorovodInternalError`. The wait is bounded: by the coordinator until the
        collective starts, and by the group's time-out from then on."""
        self._launched.wait()
        if self._error is not None:
            raise HorovodInternalError(self._error)
        with self._lock:
            try:
                for work in self._works:
                    work.wait()
            except RuntimeError as error:
                raise HorovodInternalError(str(error)) from error
            if self._complete is not None:
                self._result = self._complete(self._result)
                self._works, self._complete = (), None
        return self._result
