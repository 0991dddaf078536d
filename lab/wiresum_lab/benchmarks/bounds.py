"""The most goodput that a link allows, in Mbit/s of fp32, headers counted as the shaper and the kernel count them.

Aggregation in the network moves a tensor once up and once down each link, whatever the number of workers: Ethernet 14,
IPv4 20, UDP 8, Wiresum 24 bytes, and whole vectors of lanes: up to 1440 bytes at an MTU of 1500. Lanes of 16 or 8 bits
carry a float in half or a quarter of the bytes. A ring sends 2 (N - 1) / N of the tensor over each link, in TCP
segments of 1448 bytes with 66 bytes of headers. The burst that a shaped link lets through at once (`burst_bytes`) does
not wait for its rate, and is subtracted. A bound is None if no bytes are left then, or if the link is not shaped.
"""

from __future__ import annotations

from wiresum.join.constants import WORD_BYTES
from wiresum.join.lanes import lanes_of_mtu, packet_bytes
from wiresum_lab.namespaces.links import ETHERNET_HEADER_BYTES, MTU_BYTES, burst_bytes

# IP, UDP and Wiresum headers.
PACKET_HEADER_BYTES = packet_bytes(0)
TCP_HEADER_BYTES = 20 + 32
FLOAT_BITS = 32


def network_mbit(tensor_bytes: int, link_mbit: float | None, bits: int = 32, mtu: int = MTU_BYTES) -> float | None:
    """The bound of aggregation in the network."""
    return _bound_mbit(tensor_bytes, link_mbit, tensor_wire_bytes(tensor_bytes, bits, mtu))


def ring_mbit(tensor_bytes: int, link_mbit: float | None, workers: int, mtu: int = MTU_BYTES) -> float | None:
    """The bound of a ring over TCP."""
    ring_bytes = tensor_bytes * 2 * (workers - 1) / workers
    return _bound_mbit(tensor_bytes, link_mbit, _wire_bytes(ring_bytes, mtu - TCP_HEADER_BYTES, TCP_HEADER_BYTES))


def tensor_wire_bytes(tensor_bytes: int, bits: int = 32, mtu: int = MTU_BYTES) -> float:
    """Bytes of the packets in which Wiresum sends the tensor, Ethernet headers included."""
    return _wire_bytes(tensor_bytes * bits / FLOAT_BITS, WORD_BYTES * lanes_of_mtu(mtu), PACKET_HEADER_BYTES)


def _bound_mbit(tensor_bytes: int, link_mbit: float | None, wire_bytes: float) -> float | None:
    if link_mbit is None:
        return None
    paced_bytes = wire_bytes - burst_bytes(link_mbit)
    return link_mbit * tensor_bytes / paced_bytes if paced_bytes > 0 else None


def _wire_bytes(payload_bytes: float, payload_bytes_max: int, header_bytes: int) -> float:
    return payload_bytes + -(-payload_bytes // payload_bytes_max) * (header_bytes + ETHERNET_HEADER_BYTES)
