"""A software switch and its workers in a star, over any transport."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from wiresum import agent, switch
from wiresum.join.constants import CONTROL_PORT
from wiresum_lab.namespaces.star import STAR_DEVICE, Host, Star

TRANSPORTS = ("udp", "xdp", "dpdk")
EAL = f"--no-huge --no-pci -m 256 --vdev=net_af_packet0,iface={STAR_DEVICE}"


def missing(transport: str) -> str | None:
    """Why nothing can be sent over this transport, None if it can."""
    if transport != "udp":
        for package in (agent, switch):
            if not any(list(Path(folder).glob(f"wiresum_{transport}*.so")) for folder in package.__path__):
                return f"nothing is sent over {transport}: wiresum was built without it (docs/transports.md)"
    return None


def start_switch(star: Star, transport: str, log: IO[str], *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "wiresum.cli", "switch", "--bind", star.switch.address, "--insecure"]
    command += ["--control", _control(star), "--transport", transport, *options]
    if transport == "dpdk":
        command += ["--device", EAL]
    return star.switch.popen(command, stdout=log)


def start_worker(
    star: Star,
    host: Host,
    transport: str,
    command: Sequence[str],
    output: int | IO[str] | None,
    errors: IO[str] | None = None,
    **variables: str,
) -> subprocess.Popen[str]:
    environment = {**os.environ, "WIRESUM_SWITCH": _control(star), "WIRESUM_INSECURE": "1"}
    environment |= {"WIRESUM_ADDRESS": host.address, "WIRESUM_TRANSPORT": transport, **variables}
    if transport == "dpdk":
        environment["WIRESUM_DEVICE"] = EAL
    return host.popen([sys.executable, *command], environment=environment, stdout=output, stderr=errors)


def _control(star: Star) -> str:
    return f"{star.switch.management_address}:{CONTROL_PORT}"
