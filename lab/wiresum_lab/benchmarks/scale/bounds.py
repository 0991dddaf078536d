"""The least time that an all-reduce can take: in the network, in a ring, and by recursive halving and doubling.

All three have packets of the same size and headers, on links of the same rate, delay and loss. Hosts compute in no
time.

In the network, each link carries the tensor once in each direction, and the last packet makes one round trip to the
root.

A ring takes 2 (N - 1) steps, in each of which a worker sends an N-th of the tensor to the next worker. Halving and
doubling takes 2 log2 N steps, with a half of the tensor, a quarter, ..., in all 2 (N - 1) / N of the tensor, to
partners that are 1, 2, 4, ... away. The bounds assume a path of the full rate for each pair of workers. A tree with one
link from a rack to the spine has no such paths: that link is enough for aggregation, but not for the other two.

With loss. A packet is lost on a path with q = 1 - (1 - p)^links. The transport is ideal: it knows which packets are
lost, and resends them one round trip after the first time, without stopping. So a transfer of n packets takes the time
of n / (1 - q) packets, and ends R round trips late, where R is how often the unluckiest of its packets is lost: the
mean is the sum over k >= 1 of 1 - (1 - q^k)^n. Each step of a chain waits for the one before, so a chain's delays add
up. An all-reduce is no faster than the mean of one of its chains; it is slower, since it waits for the slowest of N.

The bound in the network is given without loss, also where there is some.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

PAYLOAD_BYTES = 1440
PACKET_BYTES = 1506
"""Bytes of a packet with 360 words, with headers of Ethernet (14), IPv4 (20), UDP (8) and Wiresum (24), as a shaper and
the simulation count them."""
ROUNDS_MAX = 64


@dataclass(frozen=True)
class Path:
    """The links and switches between workers."""

    gbit: float
    link_ns: float
    """Delay of each link, with the switch at its end."""
    racks: tuple[int, ...] = ()
    """Fan-out of a regular tree by level: workers at a leaf, leaves below a switch, and so on, all below one root.
    Empty: one switch."""
    loss: float = 0.0

    @property
    def packet_s(self) -> float:
        return PACKET_BYTES * 8e-9 / self.gbit

    def links_between(self, distance: int) -> int:
        """How many links there are on the path of two workers whose ranks differ by `distance`, a power of two: up to
        their lowest common switch, and down."""
        below, links = 1, 2
        for size in self.racks:
            below *= size
            if distance < below:
                return links
            links += 2
        return links

    def latency_s(self, links: int) -> float:
        """Latency of a packet's last bit over so many links, without the time in which the packet leaves its sender."""
        return links * self.link_ns * 1e-9 + (links - 1) * self.packet_s

    def transfer_s(self, payload_bytes: float, links: int) -> float:
        """The mean time of a transfer over so many links."""
        packets = max(1, math.ceil(payload_bytes / PAYLOAD_BYTES))
        lost = 1 - (1 - self.loss) ** links
        late = 2 * self.latency_s(links) * mean_rounds_lost(packets, lost)
        return payload_bytes / PAYLOAD_BYTES * self.packet_s / (1 - lost) + self.latency_s(links) + late


def mean_rounds_lost(packets: int, lost: float) -> float:
    """Mean number of consecutive losses of the unluckiest of so many packets; `lost` is the probability of each
    loss."""
    if lost <= 0:
        return 0.0
    return sum(-math.expm1(packets * math.log1p(-(lost**k))) for k in range(1, ROUNDS_MAX))


def in_network_s(workers: int, tensor_bytes: float, path: Path, *, bits: int = 32) -> float:
    """The bound of aggregation in the network, for a tensor in fp32 that travels with `bits` an element."""
    levels = len(path.racks) + 1 if workers > 1 else 1
    return tensor_bytes * bits / 32 / PAYLOAD_BYTES * path.packet_s + path.latency_s(2 * levels)


def ring_s(workers: int, tensor_bytes: float, path: Path) -> float:
    """The bound of a ring: a chain of 2 (N - 1) steps between neighbours, most of which stay in a rack."""
    steps = 2 * (workers - 1)
    part = tensor_bytes / workers
    total = 0.0
    below = [1]
    for size in path.racks:
        below.append(below[-1] * size)
    for level, workers_below in enumerate(below):
        above = below[level + 1] if level + 1 < len(below) else workers
        # The fraction of steps between neighbours whose highest switch is of the next level.
        share = (1 / workers_below - (1 / above if above < workers else 0)) if workers_below < workers else 0
        total += steps * share * path.transfer_s(part, 2 * (level + 1))
    return total


def halving_doubling_s(workers: int, tensor_bytes: float, path: Path) -> float:
    """The bound of recursive halving and doubling, for a power of two of workers."""
    assert workers & (workers - 1) == 0
    total, part, distance = 0.0, tensor_bytes / 2, 1
    while distance < workers:
        total += 2 * path.transfer_s(part, path.links_between(distance))
        distance, part = 2 * distance, part / 2
    return total
