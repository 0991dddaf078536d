"""A group's counters."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal, TypeAlias

from wiresum.agent.statistics import Moved, SessionStats

Way: TypeAlias = Literal["in place", "copied", "accelerator", "gloo"]
"""How the tensors of a call travel. The network reads and writes their memory in place; or they are copied on the host,
since they are not in row-major order, or are sparse; or from an accelerator to the host and back. Or Gloo has them."""


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
    calls_by_way: Counter[Way]
    """Collectives by the way that the tensors took."""
    bytes_by_way: Counter[Way]
    """Of the tensors, as the caller sees them; for Gloo, of all that it got."""
    network: SessionStats | None
    """Packets, bytes on the wire, retransmissions, round-trip time; None without a job."""
