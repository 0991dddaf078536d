"""Starts a software switch and its workers in a star, over any transport."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from wiresum_lab.namespaces.star import STAR_DEVICE, Host, Star
from wiresum_lab.processes import Program, wiresum

TRANSPORTS = ("udp", "xdp", "dpdk")
EAL = f"--no-huge --no-pci -m 256 --vdev=net_af_packet0,iface={STAR_DEVICE}"


def missing(transport: str) -> str | None:
    """Why this transport is not available; None if it is available."""
    if transport != "udp":
        from wiresum import agent, switch

        for package in (agent, switch):
            if not any(list(Path(folder).glob(f"wiresum_{transport}*.so")) for folder in package.__path__):
                return f"nothing is sent over {transport}: wiresum was built without it (docs/transports.md)"
    return None


def spec(transport: str) -> str:
    return f"dpdk:{EAL}" if transport == "dpdk" else transport


def start_switch(star: Star, transport: str, log: Path, *options: str) -> Program:
    ends = ["--bind", star.switch.address, "--control", star.switch.control_endpoint]
    command = wiresum("switch", *ends, "--insecure", "--transport", spec(transport), *options)
    switch = Program(command, log, at=star.switch.popen)
    switch.await_text("ready: ")
    return switch


def start_worker(
    star: Star,
    host: Host,
    transport: str,
    arguments: Sequence[str],
    log: Path,
    variables: Mapping[str, str] | None = None,
) -> Program:
    """Starts a worker as a Python process; `arguments` are for the interpreter."""
    own = {"WIRESUM_TRANSPORT": spec(transport)} | host.variables(star.switch.control_endpoint)
    return Program([sys.executable, *arguments], log, {**own, **(variables or {})}, at=host.popen)
