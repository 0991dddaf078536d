"""The scenarios that are played to a switch: jobs, packets in, and the required answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path

from wiresum.conformance.frames import UNCHANGED, FrameChanges
from wiresum.join.constants import PARENT

PROFILES = {
    "required": "admission, rounds, cells, DATA and EMPTY, and the RESULTs",
    "meta": "contributions of kind META",
    "question": "QUESTION, and MISSING as its answer",
    "trees": "the switch may have a parent",
    "diverged_flag": "flag bit 1 of a RESULT says that the workers call different collectives",
    "udp_checksum": "the switch, or its host, verifies UDP's checksum, and writes one",
    "frames": "the switch itself refuses and counts frames, where a host's kernel takes more and counts none",
    "network": "it answers ARP and pings, and passes on the frames of others",
}
"""Profiles that a switch may implement. A scenario names those that it needs, but its kinds of packets imply theirs."""

DROP_REASONS = frozenset({"duplicate", "stale", "out_of_lease", "unknown", "malformed"})

SCENARIO_SLOTS_MAX = 64
"""All leases of a scenario are within this many slots."""

MACS = {"broadcast": bytes.fromhex("ffffffffffff"), "multicast": bytes.fromhex("01005e000001")}
MACS |= {"stranger": bytes.fromhex("02000000fffc"), "nobody": bytes(6)}


class Verdict(Enum):
    """The required output: nothing (hold, drop); a RESULT to all workers; a RESULT or MISSING to the sender; to the
    parent, the sum (up), or the sum or a question because of a duplicate or question (again); or at most the frame
    itself, since its target is not the switch (pass)."""

    HOLD = "hold"
    DROP = "drop"
    MULTICAST = "multicast"
    RESEND = "resend"
    MISSING = "missing"
    UP = "up"
    AGAIN = "again"
    PASS = "pass"


@dataclass(frozen=True, order=True)
class Member:
    """One worker of a job, or its parent switch. Each has its own address."""

    job: int
    worker: int

    def __str__(self) -> str:
        return f"{self.job}.{'parent' if self.worker == PARENT else self.worker}"


@dataclass(frozen=True)
class Job:
    """The entry of a job when it is admitted."""

    number: int
    key: int
    workers: int
    threads: int
    lanes: int
    slot_base: int
    slots: int
    parent: int | None = None
    """The switch's number at its parent; None for the root."""
    port_offset: int = 0
    """Thread 0 talks to this port of the switch, counted from its base port."""

    @property
    def members(self) -> tuple[Member, ...]:
        return tuple(Member(self.number, worker) for worker in range(self.workers))

    def overlaps(self, other: Job) -> bool:
        """Returns whether two jobs have a slot in common."""
        return self.slot_base < other.slot_base + other.slots and other.slot_base < self.slot_base + self.slots


@dataclass(frozen=True)
class End:
    """The removal of a job."""

    job: Job


@dataclass(frozen=True)
class Expectation:
    """The required result of a packet."""

    verdict: Verdict
    reason: str
    """The counter that goes up by one: "admitted", "resent", or one of `DROP_REASONS`; empty for PASS."""
    receivers: tuple[Member, ...]
    """The receivers of `datagram`, each of one copy, at the step's thread port; empty for HOLD, DROP and PASS."""
    datagram: bytes
    """The RESULT or MISSING, as UDP payload; empty for HOLD, DROP and PASS."""

    def miscounted(self, packets: Mapping[str, int]) -> str:
        """Returns how the counters went up, if not as expected; otherwise ""."""
        if dict(packets) == ({self.reason: 1} if self.reason else {}):
            return ""
        return f"counted as {dict(packets)}, and not {f'once as {self.reason}' if self.reason else 'at all'}"


@dataclass(frozen=True)
class Arrival:
    """One packet into the switch."""

    sender: Member
    source: Member | None
    """The member whose IPv4 address the packet carries; None for a stranger's."""
    port: Member
    """The member at whose ingress port the packet arrives."""
    thread: int
    """The distance from the switch's base port to the destination port."""
    source_thread: int
    """The distance from the source's base port to the source port; a stranger has one port."""
    datagram: bytes
    """The UDP payload."""


@dataclass(frozen=True)
class Step(Arrival):
    """A packet, and the required result."""

    expectation: Expectation
    line: int = 0
    """The line number in the file; 0: there is no file."""
    text: str = ""
    """The line itself, or a description of the packet, for messages."""
    changes: FrameChanges = UNCHANGED
    """Oddities of the frame that carries the datagram."""
    mac: str | None = None
    """The frame's destination: one of `MACS`; None: the switch."""
    rules: tuple[str, ...] = ()
    """The rules that decide the result; empty: unknown."""

    @property
    def kind(self) -> int | None:
        """The packet's kind; None: the packet is too short to have one."""
        return self.datagram[0] & 0xF if self.datagram else None

    @property
    def hardware_only(self) -> bool:
        """True if the packet differs only by its ingress port, so that a switch with a single port skips it."""
        return self.port != self.sender

    @property
    def refused_by_hosts(self) -> bool:
        """True if a host refuses the frame before a socket shows the datagram."""
        refused = self.expectation.verdict in (Verdict.DROP, Verdict.PASS)
        return refused and (self.changes != UNCHANGED or self.mac is not None)


@dataclass(frozen=True)
class Scenario:
    """Events at a switch with unused cells, in order."""

    name: str
    path: Path
    line: int
    needs: frozenset[str]
    """`PROFILES` that a switch must implement for this scenario."""
    events: tuple[Job | Step | End, ...]
    """Admissions of jobs, packets in, and ends of jobs."""
    rules: tuple[str, ...] = ()
    """The rules of docs/protocol.md that the scenario proves: those that comments in the file name."""

    @cached_property
    def jobs(self) -> tuple[Job, ...]:
        """All jobs, in the order of admission. A number may be reused after its job has ended."""
        return tuple(event for event in self.events if isinstance(event, Job))

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        return tuple(event for event in self.events if isinstance(event, Step))

    @cached_property
    def members(self) -> tuple[Member, ...]:
        """All workers and parents, in the order of the declarations; a runner assigns addresses in this order."""
        workers = [member for job in self.jobs for member in job.members]
        parents = [Member(job.number, PARENT) for job in self.jobs if job.parent is not None]
        return tuple(dict.fromkeys([*workers, *parents]))

    @property
    def slots(self) -> int:
        """The slots that all leases reach to. A runner may add one offset to all of them."""
        return max(job.slot_base + job.slots for job in self.jobs)

    def where(self, step: Step) -> str:
        return " ".join(f"{self.path.name}:{step.line}: {step.text}".split())
