from __future__ import annotations

from collections.abc import Iterator

import pytest

from wiresum.cli.testing import WrittenService


@pytest.fixture
def service() -> Iterator[WrittenService]:
    written = WrittenService()
    written.start()
    yield written
    written.stop()
