"""What a session counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class TrafficStats:
    """Counters since the session began. Bytes are UDP payload, headers of lower layers not counted."""

    packets_sent: int
    bytes_sent: int
    bytes_received: int
    results: int
    by_group: int
    """Packets that came by a multicast group, where the switch sends results to one (`wiresum switch --multicast`)."""
    retransmissions: int
    questions: int
    """To the switch, whether a packet without a sum has come: headers. Who has sent what is missing sends it again."""
    duplicates: int
    rejected: int
    rtt_s: float
    rto_s: float
    window: int
    round_newest: int
    send_calls: int
    receive_calls: int
    send_failures: int
    transport_error: int


@dataclass(frozen=True)
class AggregatorStats(TrafficStats):
    """The part of one aggregator; times and window are those of the first thread that talks to it."""

    switch: str
    """Its control endpoint, as WIRESUM_SWITCH names it."""


@dataclass(frozen=True)
class SparseStats:
    """What was chosen for the collectives that may be sparse, and what it saved. A block is what a packet carries."""

    prologues: int
    """Collectives that asked which blocks there are, in a round trip of their own ..."""
    streams: int
    """... and those of them that then left blocks out."""
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
    """UDP payload that this worker did not send for all that, less what the prologues took."""


@dataclass(frozen=True)
class SessionStats(TrafficStats):
    """Summed over all aggregators; times and window are those of the first one. Each counts rounds of its own, so the
    newest one of all means something only where there is one aggregator."""

    aggregators: tuple[AggregatorStats, ...]
    transport: str
    """What packets go by, as it was obtained: "udp", or "xdp (native, zero copy)"."""
    sparse: SparseStats
    exact_sums: int
    """Collectives whose sums of floats were rounded once (AgentConfig.precision)."""


def session_stats_of(raw: Mapping[str, Any], switches: Sequence[str]) -> SessionStats:
    """From what the native session gives; `switches` are the aggregators' control endpoints, in its order."""
    return SessionStats(
        **_traffic_of(raw),
        aggregators=tuple(
            AggregatorStats(**_traffic_of(part), switch=switch)
            for part, switch in zip(raw["aggregators"], switches, strict=True)
        ),
        transport=raw["transport"],
        sparse=SparseStats(**raw["sparse"]),
        exact_sums=raw["exact_sums"],
    )


def _traffic_of(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {field.name: raw[field.name] for field in fields(TrafficStats)}
