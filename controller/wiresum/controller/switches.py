"""Switches and hosts of a configuration, as data. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DEVICE_CONFIGS = ("stratum", "pi")
"""The form in which a Tofino's P4Runtime server wants the device configuration: Stratum's, or that of servers based on
p4lang's PI, like the vendor's own (docs/tofino_deploy.md)."""


@dataclass(frozen=True)
class Host:
    """A machine at a switch."""

    name: str
    address: str
    """IPv4 address, dotted."""
    mac: str = ""
    """MAC address; empty at a software switch."""
    port: int = 0
    """Port of the switch, if it has ports. Several hosts may be behind one port."""


@dataclass(frozen=True)
class SwitchConfig:
    name: str
    kind: str
    """One of `driver.KINDS`."""
    p4runtime: str
    """A gRPC target: host:port, or unix:PATH."""
    device: int
    address: str
    """IPv4 address, dotted, that workers send their packets to."""
    port: int
    """UDP port of thread 0."""
    mac: str = ""
    """MAC address. At a software switch, its machine's; may be empty."""
    program: Path | None = None
    """Tofino: the compiler's folder (`bfrt.json`, `pipe/tofino.bin`, `pipe/context.json`)."""
    p4info: Path | None = None
    """Tofino: the file of its P4Info, as text."""
    device_config: str = DEVICE_CONFIGS[0]
    """Tofino: one of `DEVICE_CONFIGS`."""
    lanes: int = 0
    """Software switch: words of a packet. 0, here and for `slots`: what the program was compiled for."""
    slots: int = 0
    multicast: str = ""
    """Software switch: the IPv4 group of job 0; job j's is j addresses further. Empty: each worker is sent a copy."""
    tls: Path | None = None
    """The TLS folder for P4Runtime, as in `config.SecurityConfig`. None: plaintext."""
    insecure: bool = False
    """True if plaintext P4Runtime is wanted, even over a network."""
    parent: str = ""
    """Name of the parent switch; empty: none."""
    parent_port: int | None = None
    """Port of this switch towards its parent. None: there are no ports, or no parent."""
    port_at_parent: int | None = None
    """Port of the parent towards this switch."""
    cables: tuple[tuple[int, int], ...] = ()
    """Tofino: pairs of ports of two pipes that a cable joins (nodes.py)."""
    hosts: tuple[Host, ...] = ()
    """Machines at the switch; empty if it has hosts only below, or is a software switch that any host reaches."""
