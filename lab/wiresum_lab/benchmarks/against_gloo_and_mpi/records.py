"""What the benchmark measures, and what it derives from that.

*Goodput* is the tensor's bits over the time of one all-reduce, whatever crosses the wire.

*The physical bound.* Aggregation in the network moves a tensor once up and once down each link, whatever the number of
workers, so it takes at least the time that a link needs for the tensor's packets, headers counted as the shaper counts
them: Ethernet 14, IPv4 20, UDP 8, Wiresum 24, and whole vectors of lanes: up to 1440 bytes at an MTU of 1500. Lanes of
16 or 8 bits carry a float in half or a quarter of the bytes, and are held against a bound that much higher. A ring
sends 2 (N - 1) / N of the tensor over each link, in TCP segments of 1448 bytes with 66 bytes of headers: that is
`own_bound_ratio` for the peers, while their `bound_ratio` is against the same bound as everybody's. What a shaped link
lets through at once (`burst_bytes`) is taken off the bytes that must wait for its rate: no ratio can come to more than
1 by it.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from wiresum.join.constants import WORD_BYTES
from wiresum.join.lanes import lanes_of_mtu, packet_bytes
from wiresum_lab.namespaces.links import ETHERNET_HEADER_BYTES, MTU_BYTES, burst_bytes

# Of an IP packet.
PACKET_HEADER_BYTES = packet_bytes(0)
TCP_HEADER_BYTES = 20 + 32
FLOAT_BITS = 32
# The systems whose sums are made in the network; the others' are rings.
AGGREGATING = ("wiresum", "wiresum-xdp", "wiresum-dpdk", "openmpi-wiresum")


@dataclass(frozen=True)
class Case:
    """One system, one link, one tensor of fp32."""

    system: str
    workers: int
    link_mbit: float | None
    bytes: int
    bits: int = FLOAT_BITS
    loss: float = 0.0
    mtu: int = MTU_BYTES

    @property
    def elements(self) -> int:
        return self.bytes * 8 // FLOAT_BITS

    @property
    def is_aggregated(self) -> bool:
        """In the network; the others are rings."""
        return self.system in AGGREGATING

    def of_system(self, system: str) -> Case:
        """The same of a system that sends floats as they are."""
        return replace(self, system=system, bits=FLOAT_BITS)


@dataclass(frozen=True)
class Repetition:
    """One all-reduce. The clock runs from the first rank's start to the last rank's end."""

    seconds: float
    cpu_seconds_worker: float
    """Mean over ranks of the processor time that the rank's process took."""
    cpu_seconds_switch: float | None
    wrong_elements: int
    retransmissions: int | None


@dataclass
class Measurement:
    """A case and its repetitions; the first one, which warms up, is not among them."""

    case: Case
    repetitions: list[Repetition] = field(default_factory=list)
    error: str | None = None

    @property
    def seconds(self) -> list[float]:
        return [repetition.seconds for repetition in self.repetitions]

    @property
    def correct(self) -> bool:
        """Did every repetition give exactly the sum?"""
        return bool(self.repetitions) and all(repetition.wrong_elements == 0 for repetition in self.repetitions)

    @property
    def goodput_mbit(self) -> float | None:
        return self.case.bytes * 8 / statistics.median(self.seconds) / 1e6 if self.seconds else None

    def record(self) -> dict[str, Any]:
        """One entry of allreduce.json."""
        bound_mbit = physical_bound_mbit(self.case)
        own_bound_mbit = bound_mbit if self.case.is_aggregated else ring_bound_mbit(self.case)
        again = self._all("retransmissions")
        return {
            **asdict(self.case),
            "seconds": [round(seconds, 9) for seconds in self.seconds],
            "goodput_mbit": _ratio(self.goodput_mbit, 1.0),
            "bound_ratio": _ratio(self.goodput_mbit, bound_mbit),
            "own_bound_ratio": _ratio(self.goodput_mbit, own_bound_mbit),
            "cpu_seconds_per_gb_worker": self._cpu_seconds_per_gb("cpu_seconds_worker"),
            "cpu_seconds_per_gb_switch": self._cpu_seconds_per_gb("cpu_seconds_switch"),
            "retransmissions": None if again is None else sum(again),
            "correct": self.correct,
            "error": self.error,
        }

    def _all(self, name: str) -> list[Any] | None:
        """A figure of all repetitions, or None if one does not have it."""
        values = [getattr(repetition, name) for repetition in self.repetitions]
        return None if not values or None in values else values

    def _cpu_seconds_per_gb(self, name: str) -> float | None:
        values = self._all(name)
        return None if values is None else _ratio(statistics.median(values), self.case.bytes / 1e9)


def physical_bound_mbit(case: Case) -> float | None:
    """The most goodput that aggregation in the network can have on this link."""
    if case.link_mbit is None:
        return None
    return _bound_mbit(case, case.link_mbit, tensor_wire_bytes(case))


def tensor_wire_bytes(case: Case) -> float:
    """The packets of the tensor as Wiresum sends it, as the shaper and the kernel count them."""
    lane_bytes = case.bytes * case.bits / FLOAT_BITS
    return _wire_bytes(lane_bytes, WORD_BYTES * lanes_of_mtu(case.mtu), PACKET_HEADER_BYTES)


def ring_bound_mbit(case: Case) -> float | None:
    """The most goodput that a ring over TCP can have on this link."""
    if case.link_mbit is None:
        return None
    ring_bytes = case.bytes * 2 * (case.workers - 1) / case.workers
    return _bound_mbit(case, case.link_mbit, _wire_bytes(ring_bytes, case.mtu - TCP_HEADER_BYTES, TCP_HEADER_BYTES))


def _bound_mbit(case: Case, link_mbit: float, wire_bytes: float) -> float | None:
    """None for a tensor that fits the burst: then the rate bounds nothing."""
    paced_bytes = wire_bytes - burst_bytes(link_mbit)
    return link_mbit * case.bytes / paced_bytes if paced_bytes > 0 else None


def _wire_bytes(payload_bytes: float, payload_bytes_max: int, header_bytes: int) -> float:
    return payload_bytes + -(-payload_bytes // payload_bytes_max) * (header_bytes + ETHERNET_HEADER_BYTES)


def _ratio(value: float | None, bound: float | None) -> float | None:
    return None if value is None or bound is None else round(value / bound, 4)
