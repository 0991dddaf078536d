"""A group's counters."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal, TypeAlias

from wiresum.agent.statistics import Moved, SessionStats

Way: TypeAlias = Literal["in place", "copied", "accelerator", "gloo"]
"""How the tensors of a call travel: the network reads and writes them in place; or they are copied on the host, since
they are sparse or not in row-major order; or from an accelerator to the host and back; or through Gloo."""


@dataclass(frozen=True)
class GroupStats:
    """A snapshot of one process group's counters at this worker."""

    job: str
    """The job's name at the switch; "" if the group has none (one worker, or no lease was free)."""
    service: str
    """The service of the job now: an endpoint of WIRESUM_SWITCH, or the fallback; one for each aggregator, joined by
    `+`."""
    moved: Moved | None
    """When and why the job last moved; None if it never did."""
    collectives_network: Counter[str]
    """Collectives that ran in the network, by name."""
    collectives_gloo: Counter[str]
    """Collectives that Gloo ran, by name."""
    bytes_reduced: int
    """Bytes of the tensors that the network summed, as the caller sees them."""
    bytes_copied: int
    """Bytes that broadcast and all-gather carried."""
    calls_by_way: Counter[Way]
    """Collectives by the way that the tensors took."""
    bytes_by_way: Counter[Way]
    """Bytes of the tensors, as the caller sees them; for Gloo, of all that it got."""
    network: SessionStats | None
    """Packets, bytes on the wire, retransmissions, round-trip time; None without a job."""
