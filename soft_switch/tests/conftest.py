from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from wiresum.switch.testing import Bench


@pytest.fixture
def bench() -> Iterator[Bench]:
    with ExitStack() as cleanup:
        yield Bench(cleanup)
