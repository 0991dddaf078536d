"""Counters of a session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True, kw_only=True)
class TrafficStats:
    """Counters since the session began, by the names in host_agent/src/engine/counters.hpp. Bytes are UDP payload,
    headers of lower layers not counted."""

    packets_sent: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    results: int = 0
    results_marked: int = 0
    """Marked RESULTs (ECN): a queue on the way was long, and the window shrinks."""
    by_group: int = 0
    """Packets that came by a multicast group, where the switch sends results to one (`wiresum switch --multicast`)."""
    retransmissions: int = 0
    questions: int = 0
    """Headers that ask the switch whether a packet that has no sum yet has come; a missing one is sent again."""
    duplicates: int = 0
    rejected: int = 0
    rtt_ns: int = 0
    rtt_least_ns: int = 0
    """The shortest round trip so far: about the path's without a queue."""
    rto_ns: int = 0
    window: int = 0
    round_newest: int = 0
    tensor_newest: int = 0
    """1 more than the tag of the latest collective that a packet was sent for; 0: no packet was sent."""
    chunks_exact: int = 0
    """Packets' worth of floats that block floating point could not carry, and that were therefore summed exactly."""
    chunks_wide: int = 0
    """Packets' worth of this worker's floats in which small ones lost more than an eighth of themselves beside larger
    ones, or became 0. Always 0 with the precisions `adaptive` and `exact`; docs/numerics.md has the bound."""
    sums_wrong: int = 0
    """Packets whose check word did not fit (AgentConfig.check_word): each was asked for again."""
    slot_wrong: int = 0
    """1 more than the slot of the lease whose sum was wrong twice, which ended the job; 0: no slot's."""
    send_calls: int = 0
    receive_calls: int = 0
    send_failures: int = 0
    transport_error: int = 0
    """The newest errno that the system reported for a packet, 0 for none."""

    @property
    def rtt_s(self) -> float:
        return self.rtt_ns * 1e-9

    @property
    def rto_s(self) -> float:
        return self.rto_ns * 1e-9


NO_TRAFFIC = TrafficStats()


@dataclass(frozen=True, kw_only=True)
class AggregatorStats(TrafficStats):
    """The part of one aggregator; times and window are those of the first thread that talks to it."""

    switch: str
    """The aggregator's control endpoint, as WIRESUM_SWITCH names it."""


@dataclass(frozen=True)
class SparseStats:
    """Choices for the collectives that may be sparse, and their savings. A block is what a packet carries."""

    prologues: int
    """Collectives that asked in a round trip of their own which blocks there are."""
    streams: int
    """Collectives among `prologues` that then left blocks out."""
    whole: int
    """Collectives that were sent whole without asking, since the ones before them were dense."""
    refined: int
    """Collectives that asked, and of which then only finer blocks were sent, packed together."""
    refinements: int
    """Round trips that asked about finer blocks."""
    blocks_skipped: int
    """Blocks that no worker had, and nobody sent."""
    blocks_empty: int
    """Blocks that others had, and this worker sent as a header alone."""
    bytes_saved: int
    """UDP payload in bytes that sparse sums saved this worker, less what the prologues took."""


class Moved(NamedTuple):
    """The last time that a job went to another lease."""

    at: float
    """Seconds since 1970."""
    why: str
    """The cause, a clause."""


@dataclass(frozen=True, kw_only=True)
class SessionStats(TrafficStats):
    """Sums over all aggregators; times and window are those of the first one. Each aggregator counts rounds of its own,
    so the newest of all means something only if there is one aggregator."""

    aggregators: tuple[AggregatorStats, ...]
    transport: str
    """The obtained transport of packets: "udp", or "xdp (native, zero copy)"."""
    sharing: tuple[int, ...]
    """The ranks of this host that share one stream to the switch, this worker's among them; empty: it has its own."""
    sparse: SparseStats
    exact_sums: int
    """Collectives whose sums of floats were rounded once (AgentConfig.precision)."""


def session_stats_of(raw: Mapping[str, Any], switches: Sequence[str], sharing: Sequence[int]) -> SessionStats:
    """Builds statistics from the native session's; `switches` are the aggregators' control endpoints, in its order;
    `sharing`: as in `SessionStats`."""
    parts = zip(raw["aggregators"], switches, strict=True)
    own = {
        "aggregators": tuple(AggregatorStats(**part, switch=switch) for part, switch in parts),
        "sharing": tuple(sharing),
        "sparse": SparseStats(**raw["sparse"]),
    }
    return SessionStats(**(dict(raw) | own))
