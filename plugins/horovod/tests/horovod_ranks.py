"""Functions that the tests run in every rank, with its rank and their number."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import wiresum.horovod.torch as hvd

AWAIT_S = 30.0


def begin(rank: int, size: int) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(size))
    hvd.init()


def end(rank: int, size: int) -> None:
    hvd.shutdown()


def await_text(read: Callable[[], str], expected: str) -> None:
    """Waits until a log contains the text."""
    deadline = time.monotonic() + AWAIT_S
    while expected not in read():
        assert time.monotonic() < deadline, f"no {expected!r} in\n{read()}"
        time.sleep(0.02)
