"""P4Runtime to bmv2 over mutual TLS, with certificates of `wiresum ca`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from wiresum.controller import DriverError
from wiresum.controller.p4runtime import Client, device_config
from wiresum.controller.p4runtime.connection import Runs
from wiresum.controller.security.authority import Authority, Holder
from wiresum.controller.security.names import CONTROLLER, SWITCH, Claims
from wiresum_lab.namespaces.bmv2 import bmv2_command, next_device
from wiresum_lab.processes import Program, unused_port, wait_until

DEVICE = next_device()


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """TLS directories of the switch, of a controller, and of a controller of another cluster."""
    for authority, roles in (("ours", (SWITCH, CONTROLLER)), ("theirs", (CONTROLLER,))):
        made = Authority.create(tmp_path / authority, authority)
        for role in roles:
            holder = Holder(role, Claims(frozenset({role})), ("127.0.0.1",))
            made.issue(holder, tmp_path / f"{authority}-{role}", days=1)
    return tmp_path


@pytest.fixture
def address(bmv2: None, folders: Path) -> Iterator[str]:
    """The address of a bmv2 without interfaces that requires a client certificate."""
    address = f"127.0.0.1:{unused_port()}"
    command = bmv2_command(address, DEVICE, thrift_port=unused_port(), tls=folders / f"ours-{SWITCH}")
    with Program(command, folders / "bmv2.log"):
        yield address


def test_only_a_controller_of_the_same_cluster_can_connect(address: str, folders: Path) -> None:
    pipeline = device_config.bmv2()
    with contextlib.closing(Client(address, DEVICE, election_id=2, tls=folders / f"ours-{CONTROLLER}")) as client:
        client.wait_ready()
        client.load(pipeline)
        assert client.runs(pipeline) is Runs.OURS
    for tls in (None, folders / f"theirs-{CONTROLLER}"):
        with contextlib.closing(Client(address, DEVICE, election_id=3, tls=tls)) as client:
            wait_until(lambda: "out of reach" in client.trouble, "the switch has turned it away")
            with pytest.raises(DriverError, match="out of reach"):
                client.wait_ready(0.5)
