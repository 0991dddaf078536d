"""P4Runtime servers with clients: this project's, and bmv2's where that is installed."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from wiresum import compiled
from wiresum_lab.absent import leave_one_for_each_reason
from wiresum_lab.doubles.p4runtime_controller import Server
from wiresum_lab.doubles.p4runtime_proxy import programmed_switch
from wiresum_lab.namespaces.bmv2 import bmv2_command, bmv2_missing, next_device
from wiresum_lab.processes import Program, unused_port

DEVICE = 7
FOLDER = Path(__file__).parent
LANES, SLOTS = 4, 4096


@pytest.fixture(scope="session")
def software_server() -> Iterator[Server]:
    with programmed_switch(DEVICE, threads=2, slots=SLOTS, lanes_max=LANES) as switch:
        config = b'{"lanes": %d, "slots": %d}' % (LANES, SLOTS)
        yield Server("software", switch.p4runtime, DEVICE, config)


@pytest.fixture(scope="session")
def bmv2_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Without ports: nothing here examines packets."""
    folder, port = tmp_path_factory.mktemp("bmv2"), unused_port()
    device = next_device()
    log = ["--log-file", str(folder / "log")]
    command = bmv2_command(f"127.0.0.1:{port}", device, *log, thrift_port=unused_port())
    with Program(command, folder / "output") as bmv2:
        bmv2.await_ready(lambda: not socket.socket().connect_ex(("127.0.0.1", port)))
        yield Server("bmv2", f"127.0.0.1:{port}", device, compiled.load("v1model").device_config)


def why_not(item: pytest.Item) -> str:
    uses = getattr(item, "fixturenames", ()) if item.path.is_relative_to(FOLDER) else ()
    needs_bmv2 = "bmv2_server" in uses or ("server" in uses and item.callspec.params["server"] == "bmv2")
    return f"not run on bmv2: {missing}" if needs_bmv2 and (missing := bmv2_missing()) else ""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    leave_one_for_each_reason(items, why_not)


@pytest.fixture(params=["software", "bmv2"])
def server(request: pytest.FixtureRequest) -> Server:
    """Each of the two servers in turn."""
    made: Server = request.getfixturevalue(f"{request.param}_server")
    return made
