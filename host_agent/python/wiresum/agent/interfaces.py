"""The kernel's view of this host's network interfaces (netdevice(7)), for IPv4 on Linux, like the data path."""

from __future__ import annotations

import ctypes
import fcntl
import socket
import struct
import sys
from pathlib import Path

from wiresum.agent import _native

_SIOCGIFMTU, _SIOCETHTOOL = 0x8921, 0x8946
# From linux/ethtool.h.
_ETHTOOL_GDRVINFO = 0x03
_ETHTOOL_GET = {"tx": 0x16, "tso": 0x1E, "gso": 0x23}
_DRVINFO_BYTES, _DRIVER = 196, slice(4, 36)
_REQUEST = struct.Struct("16si20x")
"""struct ifreq with pointers of 64 bits: a name, and a union of 24 bytes."""


def name_of(address: str) -> str | None:
    """Returns the name of the interface that has this IPv4 address. None if the kernel names no such interface, as for
    the many unlisted addresses of the loopback interface."""
    return _native.interface_with(address)


def mtu_of(address: str) -> int | None:
    """Returns the MTU, in bytes, of the interface that has this IPv4 address; None if the kernel names none."""
    name = name_of(address)
    if name is None:
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        answer = fcntl.ioctl(any_socket, _SIOCGIFMTU, _REQUEST.pack(name.encode(), 0))
    return int(_REQUEST.unpack(answer)[1])


def has_carrier(name: str) -> bool:
    """Returns whether the interface has a link, as far as the kernel knows."""
    try:
        return Path("/sys/class/net", name, "carrier").read_text().strip() != "0"
    except OSError:  # EINVAL: the interface is down
        return False


def driver_of(name: str) -> str:
    """Returns the name of the interface's driver, like "veth"; empty if the kernel does not say."""
    request = _ETHTOOL_GDRVINFO.to_bytes(4, sys.byteorder) + bytes(_DRVINFO_BYTES - 4)
    answer = _ethtool(name, request)
    return "" if answer is None else answer[_DRIVER].split(b"\0")[0].decode(errors="replace")


def left_to_card(name: str) -> tuple[str, ...]:
    """Returns what the kernel leaves to the sending interface, by ethtool's names: checksums of packets ("tx"), and the
    cutting of long ones ("tso", "gso")."""
    found = []
    for feature, command in _ETHTOOL_GET.items():
        answer = _ethtool(name, command.to_bytes(4, sys.byteorder) + bytes(4))
        if answer is not None and any(answer[4:]):
            found.append(feature)
    return tuple(found)


def _ethtool(name: str, request: bytes) -> bytes | None:
    """Calls the ioctl once; returns None if the interface, or its driver, has no answer."""
    content = ctypes.create_string_buffer(request, len(request))
    asked = struct.pack("16sP16x", name.encode(), ctypes.addressof(content))
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            fcntl.ioctl(any_socket, _SIOCETHTOOL, asked)
    except OSError:
        return None
    return content.raw
