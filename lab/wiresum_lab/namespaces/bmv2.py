"""How bmv2, the P4 reference switch, is started."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

SWITCH_PROGRAM = "simple_switch_grpc"
INSTALL = "install bmv2: p4lang's own packages (p4lang-bmv2), or the container image p4lang/behavioral-model"
DEVICES_A_PROCESS = 64
_devices = itertools.count()


def bmv2_missing() -> str:
    """What is missing for bmv2 to run here, and how to get it; empty if nothing is."""
    return "" if shutil.which(SWITCH_PROGRAM) else f"{SWITCH_PROGRAM} is not on PATH: {INSTALL}"


def next_device() -> int:
    """A device id. bmv2 may name a file in /tmp after it, and two switches must not share that."""
    return DEVICES_A_PROCESS * os.getpid() + next(_devices) % DEVICES_A_PROCESS


def bmv2_command(
    p4runtime: str,
    device: int,
    *options: str,
    ports: Mapping[int, str] | None = None,
    thrift_port: int | None = None,
    tls: Path | None = None,
) -> list[str]:
    """Starts it without a P4 program, which the controller loads. `ports`: the interface at each port. `thrift_port`:
    the usual one unless given; if it is in use bmv2 does not start. `tls`: the TLS folder of a switch."""
    words = [SWITCH_PROGRAM, "--no-p4", "--device-id", str(device), *options]
    words += [word for port, interface in (ports or {}).items() for word in ("-i", f"{port}@{interface}")]
    words += [] if thrift_port is None else ["--thrift-port", str(thrift_port)]
    words += ["--", "--grpc-server-addr", p4runtime]
    if tls is not None:
        words += ["--grpc-server-ssl", "--grpc-server-with-client-auth", "--grpc-server-cacert", str(tls / "ca.crt")]
        words += ["--grpc-server-cert", str(tls / "tls.crt"), "--grpc-server-key", str(tls / "tls.key")]
    return words
