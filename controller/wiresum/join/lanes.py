"""How many words a packet holds."""

from __future__ import annotations

from wiresum.join.constants import HEADER_BYTES, IPV4_BYTES, LANES_UNIT, UDP_BYTES, UDP_PAYLOAD_BYTES_MAX, WORD_BYTES


def packet_bytes(lanes: int) -> int:
    """Bytes of an IP packet with so many words."""
    return IPV4_BYTES + UDP_BYTES + HEADER_BYTES + WORD_BYTES * lanes


def lanes_of_mtu(mtu_bytes: int) -> int:
    """Words of the largest packet that an MTU carries, in whole units if it carries one: 360 at 1500 bytes. Raises
    `ValueError` if it carries no word."""
    payload_bytes = min(mtu_bytes - IPV4_BYTES - UDP_BYTES, UDP_PAYLOAD_BYTES_MAX) - HEADER_BYTES
    words = payload_bytes // WORD_BYTES
    if words <= 0:
        raise ValueError(f"an MTU of {mtu_bytes} bytes does not hold a packet: one word needs {packet_bytes(1)} bytes")
    return words if words < LANES_UNIT else words // LANES_UNIT * LANES_UNIT  # R2.18
