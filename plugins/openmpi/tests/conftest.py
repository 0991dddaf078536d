"""A switch with its join service, for everything that runs under mpirun."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from wiresum.controller import JoinServer
from wiresum.switch import SoftwareSwitch

HOST = "127.0.0.1"


@pytest.fixture(scope="module")
def control() -> Iterator[str]:
    switch = SoftwareSwitch(bind=HOST, port=0, threads=1, slots=4096)
    server = JoinServer(switch)
    yield f"{HOST}:{server.start(HOST, 0)}"
    server.stop(1.0)
    switch.close()
