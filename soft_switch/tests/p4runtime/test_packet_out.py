from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.all import IP, UDP, Ether

from wiresum.switch.p4runtime.packet_out import parse
from wiresum.switch.software_switch import DATA_PORT

OWN = 0x0A000001
FRAME = bytes(
    Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
    / IP(src="10.0.0.1", dst="10.0.0.1")
    / UDP(sport=DATA_PORT, dport=DATA_PORT, chksum=0)
    / bytes(range(24))
)
AT_ETHERNET, AT_IPV4, AT_UDP = 0, 14, 34


def changed(at: int, value: bytes, *, repair: bool = True) -> bytes:
    """With other bytes at a place; the IPv4 checksum is right again, unless it is not to be."""
    frame = FRAME[:at] + value + FRAME[at + len(value) :]
    if not repair:
        return frame
    header = frame[AT_IPV4 : AT_IPV4 + 10] + b"\0\0" + frame[AT_IPV4 + 12 : AT_UDP]
    total = sum(struct.unpack("!10H", header))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return frame[: AT_IPV4 + 10] + struct.pack("!H", ~total & 0xFFFF) + frame[AT_IPV4 + 12 :]


def test_what_the_controller_sends_is_understood() -> None:
    assert parse(FRAME, {OWN}) == ((OWN, DATA_PORT), 0, FRAME[42:])
    assert parse(changed(AT_UDP, b"\x12\x34"), {OWN}) == ((OWN, 0x1234), 0, FRAME[42:])
    assert parse(changed(AT_UDP + 2, b"\xa9\xe7"), {OWN}) == ((OWN, DATA_PORT), 7, FRAME[42:])
    assert parse(FRAME + b"\0\0", {OWN}) == ((OWN, DATA_PORT), 0, FRAME[42:]), "padded by a network card"


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        FRAME[:41],
        FRAME[:-1],
        changed(AT_ETHERNET + 12, b"\x86\xdd"),
        changed(AT_IPV4, b"\x46"),
        changed(AT_IPV4 + 6, b"\x20\0"),
        changed(AT_IPV4 + 9, b"\x06"),
        changed(AT_IPV4 + 16, b"\x0a\0\0\x02"),
        changed(AT_IPV4 + 12, b"\x0b", repair=False),
        changed(AT_UDP + 2, b"\xa9\xf0"),
        changed(AT_UDP + 4, b"\0\x07"),
    ],
    ids=[
        "empty",
        "short",
        "cut",
        "IPv6",
        "options",
        "fragment",
        "TCP",
        "address",
        "checksum",
        "port",
        "length",
    ],
)
def test_anything_else_goes_nowhere(frame: bytes) -> None:
    assert parse(frame, {OWN}) is None


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.binary(max_size=80), st.integers(0, len(FRAME)))
def test_no_bytes_are_too_strange(noise: bytes, keep: int) -> None:
    parsed = parse(FRAME[:keep] + noise, {OWN})
    assert parsed is None or parsed[1] < 16
