"""Commands that start bmv2, the P4 reference switch."""

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
    """Why bmv2 cannot run here, and how to install it; empty if it can."""
    return "" if shutil.which(SWITCH_PROGRAM) else f"{SWITCH_PROGRAM} is not on PATH: {INSTALL}"


def next_device() -> int:
    """A new device id. bmv2 may name a file in /tmp after the id, and two switches must not share this file."""
    return DEVICES_A_PROCESS * os.getpid() + next(_devices) % DEVICES_A_PROCESS


def bmv2_command(
    p4runtime: str,
    device: int,
    *options: str,
    ports: Mapping[int, str] | None = None,
    thrift_port: int | None = None,
    tls: Path | None = None,
) -> list[str]:
    """The command that starts bmv2 without a P4 program, which the controller loads. `ports` has the interface at each
    port. `thrift_port` is bmv2's default unless given; bmv2 does not start if this port is in use. `tls` is the TLS
    folder of a switch; None: no TLS."""
    words = [SWITCH_PROGRAM, "--no-p4", "--device-id", str(device), *options]
    words += [word for port, interface in (ports or {}).items() for word in ("-i", f"{port}@{interface}")]
    words += [] if thrift_port is None else ["--thrift-port", str(thrift_port)]
    words += ["--", "--grpc-server-addr", p4runtime]
    if tls is not None:
        words += ["--grpc-server-ssl", "--grpc-server-with-client-auth", "--grpc-server-cacert", str(tls / "ca.crt")]
        words += ["--grpc-server-cert", str(tls / "tls.crt"), "--grpc-server-key", str(tls / "tls.key")]
    return words
