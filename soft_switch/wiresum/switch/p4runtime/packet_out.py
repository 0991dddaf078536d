"""Packets that a controller sends through the switch: Ethernet frames, of which those to the switch itself matter here.

What a hardware switch would forward, or answer by itself (ARP, ping), goes nowhere: behind this switch there are no
ports but its UDP sockets.
"""

from __future__ import annotations

import struct
from collections.abc import Container

from wiresum.switch.software_switch import DATA_PORT

_ETHERNET_BYTES = 14
_ETHERNET = struct.Struct("!12xH")
_IPV4 = struct.Struct("!BxHxxHxBxxII")
_UDP = struct.Struct("!HHHxx")
_ETHERTYPE_IPV4, _PROTOCOL_UDP = 0x0800, 17
_VERSION_AND_LENGTH = 0x45
_MORE_OR_LATER_FRAGMENT = 0x3FFF
_THREAD_MASK = 0x000F

Packet = tuple[tuple[int, int], int, bytes]
"""Source address and port, thread, and UDP payload."""


def parse(frame: bytes, own_addresses: Container[int]) -> Packet | None:
    """None for what is not a whole UDP packet to one of the switch's own addresses and data ports."""
    if len(frame) < _ETHERNET_BYTES + _IPV4.size + _UDP.size or _ETHERNET.unpack_from(frame) != (_ETHERTYPE_IPV4,):
        return None
    header = frame[_ETHERNET_BYTES : _ETHERNET_BYTES + _IPV4.size]
    version, length, fragment, protocol, source, target = _IPV4.unpack(header)
    if (version, protocol) != (_VERSION_AND_LENGTH, _PROTOCOL_UDP) or fragment & _MORE_OR_LATER_FRAGMENT:
        return None
    if target not in own_addresses or not _checksum_is_right(header):
        return None
    source_port, port, udp_bytes = _UDP.unpack_from(frame, _ETHERNET_BYTES + _IPV4.size)
    datagram = frame[_ETHERNET_BYTES + _IPV4.size + _UDP.size : _ETHERNET_BYTES + _IPV4.size + udp_bytes]
    if port & ~_THREAD_MASK != DATA_PORT or udp_bytes != _UDP.size + len(datagram) or length != _IPV4.size + udp_bytes:
        return None
    return (source, source_port), port & _THREAD_MASK, datagram


def _checksum_is_right(header: bytes) -> bool:
    """RFC 1071."""
    total: int = sum(struct.unpack("!10H", header))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total == 0xFFFF
