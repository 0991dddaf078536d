from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from wiresum.controller.store import Store
from wiresum_lab.doubles.controller import Attendance, Client


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with contextlib.closing(Store(tmp_path)) as store:
        store.begin()
        yield store


@pytest.fixture
def job(client: Client) -> Iterator[list[Attendance]]:
    """Two attending workers of a running job."""
    streams = [Attendance(client, reply) for reply in client.join_all(2)]
    yield streams
    for stream in streams:
        stream.hang_up()
