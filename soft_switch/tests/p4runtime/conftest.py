"""P4Runtime servers, each with what it takes to talk to it: this project's, and bmv2's where that is installed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from wiresum import compiled
from wiresum.switch import SoftwareSwitch
from wiresum.switch.p4runtime import P4RuntimeServer
from wiresum_lab.doubles.controller import unused_port
from wiresum_lab.doubles.p4runtime_controller import PATIENCE_S, Server

BMV2 = "simple_switch_grpc"
DEVICE = 7
LANES, SLOTS = 4, 4096


@pytest.fixture(scope="session")
def software_server() -> Iterator[Server]:
    with ExitStack() as cleanup:
        switch = cleanup.enter_context(closing(SoftwareSwitch(port=0, threads=2, slots=SLOTS, lanes_max=LANES)))
        server = P4RuntimeServer(switch, DEVICE)
        cleanup.callback(server.stop)
        port = server.start("127.0.0.1:0")
        config = b'{"lanes": %d, "slots": %d}' % (LANES, SLOTS)
        yield Server("software", f"127.0.0.1:{port}", DEVICE, config)


@pytest.fixture(scope="session")
def bmv2_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Without ports: nothing here looks at packets of a network."""
    if shutil.which(BMV2) is None:
        pytest.skip(f"not compared with bmv2: {BMV2} is not on PATH")
    address = f"127.0.0.1:{unused_port()}"
    device = os.getpid()  # bmv2 may name a file in /tmp after it
    command = [BMV2, "--no-p4", "--device-id", str(device), "--log-file", str(tmp_path_factory.mktemp("bmv2") / "log")]
    # Its Thrift server takes port 9090 unless told otherwise, and bmv2 does not start where somebody else has that.
    command += ["--thrift-port", str(unused_port()), "--", "--grpc-server-addr", address]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _await_port(address, process)
        yield Server("bmv2", address, device, compiled.load("v1model").device_config)
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


@pytest.fixture(params=["software", "bmv2"])
def server(request: pytest.FixtureRequest) -> Server:
    """Each of the two in turn."""
    made: Server = request.getfixturevalue(f"{request.param}_server")
    return made


def _await_port(address: str, process: subprocess.Popen[bytes]) -> None:
    host, _, port = address.rpartition(":")
    give_up_at = time.monotonic() + PATIENCE_S
    while True:
        try:
            socket.create_connection((host, int(port)), PATIENCE_S).close()
            return
        except OSError:
            assert process.poll() is None, f"{BMV2} ended with exit code {process.returncode}"
            assert time.monotonic() < give_up_at, f"{BMV2} does not listen"
            time.sleep(0.02)
