from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from wiresum_lab.doubles.workers import Bench


@pytest.fixture
def bench() -> Iterator[Bench]:
    with ExitStack() as cleanup:
        yield Bench(cleanup)
