"""What several tests here need: network namespaces, and PyTorch's Gloo."""

import pytest

from wiresum_lab.namespaces.star import Star, StarError
from wiresum_lab.benchmarks.systems import Gloo


@pytest.fixture(scope="session")
def namespaces() -> None:
    """Skips where stars cannot be built, and says why."""
    try:
        Star(1).close()
    except StarError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def gloo_on_a_star(namespaces: None) -> None:
    """Skips where Gloo cannot run on a star, and says why."""
    if reason := Gloo().missing():
        pytest.skip(reason)
