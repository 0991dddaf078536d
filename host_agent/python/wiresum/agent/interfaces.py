"""What the kernel says of this host's network interfaces (netdevice(7)). IPv4 on Linux, as the data path is."""

from __future__ import annotations

import array
import fcntl
import socket
import struct
from pathlib import Path

_SIOCGIFCONF = 0x8912
_SIOCGIFMTU = 0x8921
_NAME_BYTES = 16
_REQUEST_BYTES = 40
"""sizeof(struct ifreq) where pointers have 64 bits: a name, and a union whose largest member is a struct ifmap."""
_ADDRESS_OFFSET = _NAME_BYTES + 4
"""Of the IPv4 address: behind a sockaddr_in's family and port."""
_ADDRESSES_MAX = 1024


def mtu_of(address: str) -> int | None:
    """The MTU, in bytes, of the interface that has this IPv4 address. None if the kernel names no such interface, as
    for the many addresses of the loopback interface that are its own without being listed."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        name = _interface_names(any_socket).get(socket.inet_aton(address))
        if name is None:
            return None
        answer = fcntl.ioctl(any_socket, _SIOCGIFMTU, name + bytes(_REQUEST_BYTES - _NAME_BYTES))
    (mtu,) = struct.unpack_from("i", answer, _NAME_BYTES)
    return int(mtu)


def name_of(address: str) -> str | None:
    """Of the interface that has this IPv4 address; None if the kernel names none, as `mtu_of` says."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        name = _interface_names(any_socket).get(socket.inet_aton(address))
    return None if name is None else name.rstrip(b"\0").decode()


def has_carrier(name: str) -> bool:
    """Has the interface a link, as far as the kernel knows?"""
    try:
        return Path("/sys/class/net", name, "carrier").read_text().strip() != "0"
    except OSError:  # EINVAL of one that is down
        return False


def _interface_names(any_socket: socket.socket) -> dict[bytes, bytes]:
    """By address, secondary addresses too."""
    requests = array.array("B", bytes(_REQUEST_BYTES * _ADDRESSES_MAX))
    where, length = requests.buffer_info()
    answer = fcntl.ioctl(any_socket, _SIOCGIFCONF, struct.pack("iP", length, where))
    (filled,) = struct.unpack_from("i", answer)
    found = requests.tobytes()[:filled]
    return {
        found[begin + _ADDRESS_OFFSET : begin + _ADDRESS_OFFSET + 4]: found[begin : begin + _NAME_BYTES]
        for begin in range(0, filled, _REQUEST_BYTES)
    }
