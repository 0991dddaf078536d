"""What the controller must know of a host that it cannot ask the switch for."""

from __future__ import annotations

from dataclasses import dataclass

PORT_MAX = 510
"""Largest port of the switch: ports have 9 bits, and 511 is where v1model sends what it drops."""


@dataclass(frozen=True)
class Host:
    """A machine behind a port of the switch."""

    name: str
    address: str
    """IPv4, dotted."""
    mac: str
    port: int
    """Of the switch. Several hosts may be behind one."""
