"""A join service in front of a switch that records its calls, and a client of the service."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from wiresum.controller import JoinServer, Limits, SwitchSizes
from wiresum_lab.doubles.controller import Client, RecordingDriver


@pytest.fixture
def sizes() -> SwitchSizes | None:
    """The sizes of the switch; a test module may override them."""
    return None


@pytest.fixture
def driver(sizes: SwitchSizes | None) -> Iterator[RecordingDriver]:
    driver = RecordingDriver(sizes)
    yield driver
    driver.released.set()


@pytest.fixture
def limits() -> Limits:
    """The limits of the service; a test module may override them."""
    return Limits()


@pytest.fixture
def server(driver: RecordingDriver, limits: Limits) -> Iterator[JoinServer]:
    server = JoinServer(driver, limits)
    server.start("127.0.0.1", 0)
    yield server
    server.stop(0.5)


@pytest.fixture
def client(server: JoinServer) -> Iterator[Client]:
    client = Client(server.port)
    yield client
    client.close()
