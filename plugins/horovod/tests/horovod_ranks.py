"""Functions that the tests run in every rank, with its rank and their number."""

from __future__ import annotations

import os
from collections.abc import Callable

import wiresum.horovod.torch as hvd
from wiresum_lab.processes import wait_until


def begin(rank: int, size: int) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(size))
    hvd.init()


def end(rank: int, size: int) -> None:
    hvd.shutdown()


def await_text(read: Callable[[], str], expected: str) -> None:
    """Waits until a log contains the text."""
    wait_until(lambda: expected in read(), f"{expected!r} is in the log")
