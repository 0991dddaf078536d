"""What a configuration says of its switches, and of the machines that hang on them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DEVICE_CONFIGS = ("stratum", "pi")
"""How P4Runtime servers for Tofino want the device configuration: Stratum's way, or that of servers made of p4lang's
PI, as the vendor's own (docs/tofino_deploy.md)."""


@dataclass(frozen=True)
class Host:
    """A machine that hangs on a switch: what the controller must know of it, and cannot ask the switch for."""

    name: str
    address: str
    """IPv4, dotted."""
    mac: str = ""
    """Empty at a software switch."""
    port: int = 0
    """Of the switch, if it has ports. Several hosts may be behind one."""


@dataclass(frozen=True)
class SwitchConfig:
    name: str
    kind: str
    """One of `driver.KINDS`."""
    p4runtime: str
    """A gRPC target: host:port, or unix:PATH."""
    device: int
    address: str
    """Where workers send their packets: IPv4, dotted."""
    port: int
    """UDP port of thread 0."""
    mac: str = ""
    """Of a software switch, that of its host, which answers ARP requests; may be empty there."""
    program: Path | None = None
    """Tofino: the folder that the compiler filled (`bfrt.json`, `pipe/tofino.bin`, `pipe/context.json`)."""
    p4info: Path | None = None
    """Tofino: the file of its P4Info, as text."""
    device_config: str = DEVICE_CONFIGS[0]
    """Tofino: one of `DEVICE_CONFIGS`."""
    lanes: int = 0
    """Software: of all jobs. 0: what the program was compiled for."""
    slots: int = 0
    """Software. 0: what the program was compiled for."""
    multicast: str = ""
    """Software: the group of job 0, IPv4, dotted; job j's is j addresses further. Empty: each worker is sent a copy."""
    tls: Path | None = None
    """For P4Runtime: a folder as in `config.SecurityConfig`. None: plaintext."""
    insecure: bool = False
    """Plaintext P4Runtime is wanted, also over a network."""
    parent: str = ""
    """Name of the switch above; empty: none."""
    parent_port: int | None = None
    """Of this switch, towards its parent. None: it has no ports, or no parent."""
    port_at_parent: int | None = None
    """Of the parent, towards this switch."""
    cables: tuple[tuple[int, int], ...] = ()
    """Tofino: ports of two pipes each, which a cable joins (nodes.py)."""
    loops: tuple[tuple[int, int], ...] = ()
    """Tofino: likewise, but each of the two ports leads back to itself."""
    hosts: tuple[Host, ...] = ()
    """None: it has hosts only through switches below it, or is a software switch that any host reaches."""
