from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from wiresum.controller.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with contextlib.closing(Store(tmp_path)) as store:
        store.begin()
        yield store
