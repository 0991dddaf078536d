"""A join service in front of a switch that records its calls, and a client of the service."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from wiresum.controller import JoinServer, Limits, SwitchSizes
from wiresum.controller.service.effects import Times
from wiresum_lab.clocks.by_hand import FrozenClock, SteadyClock
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
def clock() -> FrozenClock:
    """The clock of the service; a test module may override it."""
    return SteadyClock()


@pytest.fixture
def times() -> Times:
    """How long the service waits for others; a test may override it."""
    return Times()


@pytest.fixture
def server(driver: RecordingDriver, limits: Limits, clock: FrozenClock, times: Times) -> Iterator[JoinServer]:
    server = JoinServer(driver, limits, clock=clock, times=times)
    server.start("127.0.0.1", 0)
    yield server
    server.stop(0.0)


@pytest.fixture
def client(server: JoinServer) -> Iterator[Client]:
    client = Client(server.port)
    yield client
    client.close()
