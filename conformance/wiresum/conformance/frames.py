"""Builds and parses Ethernet frames byte by byte, as hosts at a hardware switch send and receive them."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from ipaddress import IPv4Address

ETHERTYPE_IPV4 = 0x0800
ETHERTYPE_ARP = 0x0806
PROTOCOL_ICMP = 1
PROTOCOL_UDP = 17
DO_NOT_FRAGMENT = 0x4000
TTL = 64

_ETHERNET = struct.Struct("!6s6sH")
_IPV4 = struct.Struct("!BBHHHBBH4s4s")
_UDP = struct.Struct("!HHHH")
_ARP = struct.Struct("!HHBBH6s4s6s4s")


@dataclass(frozen=True)
class Host:
    """The sender or receiver of a packet."""

    mac: bytes
    address: IPv4Address


@dataclass(frozen=True)
class FrameChanges:
    """Faults and oddities of a frame. Checksums fit changed lengths; then bits are flipped."""

    ip_length: int | None = None
    udp_length: int | None = None
    without_udp_checksum: bool = False
    flip: int | None = None
    """The number of a bit, from the start of the IPv4 header."""
    trailer: int = 0
    """The bytes that follow the datagram."""
    cut: int = 0
    """The bytes that the frame lacks at its end."""


UNCHANGED = FrameChanges()
TRAILER_BYTE = b"\xee"


@dataclass(frozen=True)
class UdpFrame:
    """A UDP datagram over IPv4 and Ethernet, with the fields that a switch may change."""

    source: Host
    target: Host
    source_port: int
    target_port: int
    payload: bytes
    ecn: int = 0
    dscp: int = 0
    ttl: int = TTL
    identification: int = 0
    has_checksum: bool = True
    """True if UDP has a checksum; a switch that cannot compute one sends none."""

    def pack(self, changes: FrameChanges = UNCHANGED) -> bytes:
        length = changes.udp_length if changes.udp_length is not None else _UDP.size + len(self.payload)
        has_checksum = self.has_checksum and not changes.without_udp_checksum
        ports = (self.source_port, self.target_port, length)
        checksum = udp_checksum(self, length, _UDP.pack(*ports, 0) + self.payload) if has_checksum else 0
        udp = _UDP.pack(*ports, checksum) + self.payload
        header = ipv4_header(self, len(udp), total_bytes=changes.ip_length)
        frame = bytearray(_ETHERNET.pack(self.target.mac, self.source.mac, ETHERTYPE_IPV4) + header + udp)
        if changes.flip is not None:
            frame[_ETHERNET.size + changes.flip // 8] ^= 0x80 >> changes.flip % 8
        return bytes(frame[: len(frame) - changes.cut]) + TRAILER_BYTE * changes.trailer

    @staticmethod
    def split(frame: bytes) -> tuple[UdpFrame, bytes]:
        """Returns the datagram of a frame, and the bytes after it. Raises `ValueError` like `unpack`."""
        (length,) = struct.unpack_from("!H", frame.ljust(_ETHERNET.size + 4), _ETHERNET.size + 2)
        end = _ETHERNET.size + length
        return UdpFrame.unpack(frame[:end]), frame[end:]

    @staticmethod
    def unpack(frame: bytes) -> UdpFrame:
        """Raises `ValueError` unless all lengths agree and the checksums are right."""
        if len(frame) < _ETHERNET.size + _IPV4.size + _UDP.size:
            raise ValueError(f"a frame of {len(frame)} bytes: {frame.hex()}")
        target_mac, source_mac, ethertype = _ETHERNET.unpack_from(frame)
        header = frame[_ETHERNET.size : _ETHERNET.size + _IPV4.size]
        version, tos, length, identification, fragment, ttl, protocol, _, source, target = _IPV4.unpack(header)
        plain = (ethertype, version, protocol) == (ETHERTYPE_IPV4, 0x45, PROTOCOL_UDP)
        if not plain or fragment not in (0, DO_NOT_FRAGMENT):
            raise ValueError(f"not UDP over plain IPv4: {frame[:42].hex()}")
        if internet_checksum(header) != 0:
            raise ValueError(f"the IPv4 checksum is wrong: {header.hex()}")
        udp = frame[_ETHERNET.size + _IPV4.size :]
        source_port, target_port, udp_length, checksum = _UDP.unpack_from(udp)
        if length != _IPV4.size + len(udp) or udp_length != len(udp):
            raise ValueError(f"lengths {length} and {udp_length} with {len(udp)} bytes")
        read = UdpFrame(
            source=Host(source_mac, IPv4Address(source)),
            target=Host(target_mac, IPv4Address(target)),
            source_port=source_port,
            target_port=target_port,
            payload=udp[_UDP.size :],
            ecn=tos & 3,
            dscp=tos >> 2,
            ttl=ttl,
            identification=identification,
            has_checksum=checksum != 0,
        )
        if checksum != 0 and (right := udp_checksum(read, len(udp), udp[:6] + b"\0\0" + udp[8:])) != checksum:
            raise ValueError(f"the UDP checksum is {checksum:#06x}, and not {right:#06x}: {frame.hex()}")
        return read


def udp_checksum(frame: UdpFrame, length: int, datagram: bytes) -> int:
    """Computes RFC 768's sum of a datagram whose checksum is zero; a sum of zero is written as its other form."""
    pseudo_header = frame.source.address.packed + frame.target.address.packed + struct.pack("!HH", PROTOCOL_UDP, length)
    return internet_checksum(pseudo_header + datagram) or 0xFFFF


def ipv4_header(
    frame: UdpFrame, payload_bytes: int, protocol: int = PROTOCOL_UDP, *, total_bytes: int | None = None
) -> bytes:
    """Makes the header, with its checksum, and the flag "don't fragment"."""
    total = total_bytes if total_bytes is not None else _IPV4.size + payload_bytes
    fields = [0x45, frame.dscp << 2 | frame.ecn, total, frame.identification, DO_NOT_FRAGMENT]
    ends = (frame.source.address.packed, frame.target.address.packed)
    checksum = internet_checksum(_IPV4.pack(*fields, frame.ttl, protocol, 0, *ends))
    return _IPV4.pack(*fields, frame.ttl, protocol, checksum, *ends)


def arp_frame(operation: int, sender: Host, target: Host, *, to: bytes) -> bytes:
    ends = (sender.mac, sender.address.packed, target.mac, target.address.packed)
    return _ETHERNET.pack(to, sender.mac, ETHERTYPE_ARP) + _ARP.pack(1, ETHERTYPE_IPV4, 6, 4, operation, *ends)


def icmp_frame(icmp_type: int, source: Host, target: Host, body: bytes, *, ttl: int = TTL) -> bytes:
    message = struct.pack("!BBH", icmp_type, 0, 0) + body
    message = struct.pack("!BBH", icmp_type, 0, internet_checksum(message)) + body
    ends = UdpFrame(source, target, 0, 0, b"", ttl=ttl)
    return (
        _ETHERNET.pack(target.mac, source.mac, ETHERTYPE_IPV4)
        + ipv4_header(ends, len(message), PROTOCOL_ICMP)
        + message
    )


def internet_checksum(content: bytes) -> int:
    """Computes RFC 1071's sum; 0 for content that includes its right checksum."""
    padded = content + b"\0" * (len(content) % 2)
    total: int = sum(word for (word,) in struct.iter_unpack("!H", padded))
    while total > 0xFFFF:
        total = (total >> 16) + (total & 0xFFFF)
    return ~total & 0xFFFF
