from __future__ import annotations

from collections.abc import Iterator

import pytest

from wiresum_lab.doubles.operator_service import WrittenService


@pytest.fixture
def service() -> Iterator[WrittenService]:
    written = WrittenService()
    written.start()
    yield written
    written.stop()
