"""A switch with its join service, for everything that runs under mpirun."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from wiresum.controller import JoinServer
from wiresum.switch import SoftwareSwitch

HOST = "127.0.0.1"


@contextmanager
def switches(*nodes: SoftwareSwitch) -> Iterator[str]:
    """Gives the endpoint of the nodes' join service, and closes all in the end."""
    server = JoinServer(nodes)
    try:
        yield f"{HOST}:{server.start(HOST, 0)}"
    finally:
        server.stop(1.0)
        for node in nodes:
            node.close()


@pytest.fixture(scope="module")
def control() -> Iterator[str]:
    with switches(SoftwareSwitch(bind=HOST, port=0, threads=1, slots=4096)) as endpoint:
        yield endpoint
