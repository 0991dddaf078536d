"""A cluster of processes: see `wiresum_lab.laboratory`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from wiresum_lab.laboratory import Laboratory


@pytest.fixture
def laboratory(tmp_path: Path) -> Iterator[Laboratory]:
    with Laboratory(tmp_path) as laboratory:
        yield laboratory
