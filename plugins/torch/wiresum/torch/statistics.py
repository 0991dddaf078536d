"""A group's counters."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from wiresum.agent.statistics import Moved, SessionStats


@dataclass(frozen=True)
class GroupStats:
    """A snapshot of one process group's counters at this worker."""

    job: str
    """The job's name at the switch; "" if the group has none (one worker, or no lease was free)."""
    service: str
    """Which serves the job now: an endpoint of WIRESUM_SWITCH, or the fallback; of each aggregator one, with `+`."""
    moved: Moved | None
    """When and why it last moved; None if it is served where it began."""
    collectives_network: Counter[str]
    """Collectives that ran in the network, by name."""
    collectives_gloo: Counter[str]
    """Those that Gloo ran."""
    bytes_reduced: int
    """Bytes of the tensors that the network summed, as the caller sees them."""
    bytes_copied: int
    """Bytes that broadcast and all-gather carried."""
    network: SessionStats | None
    """Packets, bytes on the wire, retransmissions, round-trip time; None without a job."""
