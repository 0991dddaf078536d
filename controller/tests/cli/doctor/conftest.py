from __future__ import annotations

from collections.abc import Iterator

import pytest

from wiresum_lab.namespaces.star import Star, StarError


@pytest.fixture
def star() -> Iterator[Star]:
    """A host with a switch, and two for workers."""
    try:
        made = Star(2)
    except StarError as error:
        pytest.skip(str(error))
    with made:
        yield made
