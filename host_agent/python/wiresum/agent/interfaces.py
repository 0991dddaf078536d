"""What the kernel says of this host's network interfaces (netdevice(7)). IPv4 on Linux, as the data path is."""

from __future__ import annotations

import fcntl
import socket
import struct
from pathlib import Path

from wiresum.agent import _native

_SIOCGIFMTU = 0x8921
_REQUEST = struct.Struct("16si20x")
"""struct ifreq where pointers have 64 bits: a name, and a union of 24 bytes."""


def name_of(address: str) -> str | None:
    """Of the interface that has this IPv4 address. None if the kernel names no such interface, as for the many
    addresses of the loopback interface that are its own without being listed."""
    return _native.interface_with(address)


def mtu_of(address: str) -> int | None:
    """The MTU, in bytes, of the interface that has this IPv4 address; None if the kernel names none."""
    name = name_of(address)
    if name is None:
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        answer = fcntl.ioctl(any_socket, _SIOCGIFMTU, _REQUEST.pack(name.encode(), 0))
    return int(_REQUEST.unpack(answer)[1])


def has_carrier(name: str) -> bool:
    """Has the interface a link, as far as the kernel knows?"""
    try:
        return Path("/sys/class/net", name, "carrier").read_text().strip() != "0"
    except OSError:  # EINVAL of one that is down
        return False
