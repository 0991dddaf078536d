from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from wiresum_lab.doubles.workers import DataplaneHarness


@pytest.fixture
def harness() -> Iterator[DataplaneHarness]:
    with ExitStack() as cleanup:
        yield DataplaneHarness(cleanup)
