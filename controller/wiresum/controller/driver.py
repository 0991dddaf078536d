"""What the controller needs from a switch of any kind. `JobEntry` has the fields of `soft_switch/src/dataplane.hpp`."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

from wiresum.controller.resources import JOBS, NOTHING, SLOTS, Amounts, JobShape
from wiresum.join.constants import JOB_NUMBERS, THREADS_MAX, Reason

KINDS = ("software", "bmv2", "tofino")
KINDS_THAT_VERIFY = ("software", "bmv2")
"""Kinds of switches that drop a packet whose UDP checksum is wrong (docs/tofino.md, Checksums)."""
"""Kinds of switch, by what runs the data plane."""

REASONS = tuple(reason.name.lower() for reason in Reason if reason != Reason.OTHER)
"""The keys of `JobCounters.packets`, in the order of their numbers."""


class Endpoint(NamedTuple):
    """An IPv4 address in dotted form and a UDP base port: thread t uses `port + t`."""

    address: str
    port: int


def check_groups(first: str, groups: int = JOB_NUMBERS) -> ipaddress.IPv4Address:
    """Returns the first of a run of multicast groups, one for each job number. Raises `ValueError` if any address of
    the run is no multicast group."""
    try:
        address = ipaddress.IPv4Address(first)
    except ipaddress.AddressValueError:
        raise ValueError(f"{first!r} is no multicast group: it must be an IPv4 address like 239.192.0.0") from None
    if not address.is_multicast or not (address + (groups - 1)).is_multicast:
        raise ValueError(f"{first} cannot be the first of {groups} multicast groups: take one like 239.192.0.0")
    return address


@dataclass(frozen=True)
class SwitchSizes:
    """Sizes of a switch, fixed at its start."""

    slots: int
    lanes_max: int
    jobs_max: int
    """Job numbers are 0 .. jobs_max - 1."""
    threads_max: int = THREADS_MAX
    """How many ports the switch listens on, which is also the most threads of a job."""
    tables: Amounts = NOTHING
    """Entries of tables, and multicast groups, for jobs. Pipes of one switch share them."""

    @property
    def room(self) -> Amounts:
        """How much the switch has of each resource that jobs take."""
        return Amounts({SLOTS: self.slots, JOBS: self.jobs_max}) + self.tables


@dataclass(frozen=True)
class Uplink:
    """Where a switch below the root of a job's tree sends its sums."""

    parent: Endpoint
    """Endpoint of the parent switch: the port is that of the job's thread 0."""
    worker: int
    """This switch's number at the parent."""


@dataclass(frozen=True)
class JobEntry:
    """A job as a switch holds it."""

    job: int
    key: int
    """Key of the job's packets; no cell of the switch holds this key when the job is admitted."""
    workers: int
    threads: int
    """A power of two that divides `slots`."""
    lanes: int
    slot_base: int
    slots: int
    """A power of two."""
    endpoints: tuple[Endpoint, ...]
    """Where thread 0 of each contributor, worker or switch below, sends from, by the contributor's number at this
    switch."""
    uplink: Uplink | None = None
    port_offset: int = 0
    """Thread t of the job sends to the switch's port `endpoint.port + port_offset + t`."""
    below: tuple[str, ...] = ()
    """Names of the switches among the contributors, which have the last numbers: pipes of one switch have one
    address."""
    keys_reserved: int = field(default=0, compare=False)
    """How many keys of the sequence, from the first, may be in use. The switch is told this number before it is given
    the job, and keeps it as long as its cells. 0: the switch has been told."""

    @property
    def shape(self) -> JobShape:
        return JobShape(self.workers, len(self.below), self.threads, self.uplink is not None)


@dataclass(frozen=True)
class JobCounters:
    """What the switch counted for one job since it was admitted."""

    packets: Mapping[str, int] = field(default_factory=dict)
    """Packets by reason: the keys are `REASONS`."""
    results: int = 0
    tensor_last: Sequence[int] = ()
    """Tag of each worker's newest contribution. Empty if the switch does not remember tags."""
    contributions: Sequence[int] = ()
    """How many packets of each worker were counted into a cell."""


class DriverError(RuntimeError):
    """Raised if the switch refused, or did not answer: the text says what and why."""


class OutdatedError(DriverError):
    """Raised if the switch and this controller have different programs: the text says which side to upgrade."""


class Versions(NamedTuple):
    """Versions of a switch, as far as it has said; empty: not known."""

    software: str = ""
    """Version of wiresum, at a software switch."""
    program: str = ""
    """Version of the switch program that the switch runs, or can run."""
    digest: str = ""
    """Digest of the P4Info of a software switch's program."""

    def __str__(self) -> str:
        """The versions in words; empty if nothing is known."""
        known = [f"wiresum {self.software}"] if self.software else []
        return ", ".join([*known, *([f"switch program {self.program}"] if self.program else [])])


@dataclass(frozen=True)
class Reconciled:
    """What `SwitchDriver.reconcile` found and did."""

    reloaded: bool = False
    """True if all cells are new since the switch was last reconciled (it was restarted, or ran another program, or held
    cells of another sequence of keys), so every job on the switch is dead."""
    changes: tuple[str, ...] = ()
    """For people: a line for each entry that was changed."""
    added: frozenset[int] = frozenset()
    """Numbers of the jobs of which the switch held nothing."""
    keys_reserved: int = 0
    """How many keys of our sequence, from the first, other controllers may have put into the switch's cells: earlier
    controllers, and any with a copy of the state."""


@runtime_checkable
class SwitchDriver(Protocol):
    """A switch. Calls may block for a round trip to the switch; the service makes them one at a time, from one thread.
    Attributes may be read from any thread, and never block. Default bodies suit switches in this process.
    """

    on_change: Callable[[], None]
    """Set by the user of the driver before its first call; implementations set `lambda: None`. Called from any thread
    whenever `trouble` has changed. Must return at once, and not call the driver."""

    @property
    def name(self) -> str:
        """Name for people: "soft switch", "Tofino at 10.0.0.2"."""

    @property
    def kind(self) -> str:
        """One of `KINDS`."""

    @property
    def sizes(self) -> SwitchSizes: ...

    @property
    def endpoint(self) -> Endpoint:
        """Where workers send their packets. 0.0.0.0: at the address where they reached the join service."""

    @property
    def trouble(self) -> str:
        """A sentence that says why the switch cannot be used, and since when; empty if it can. After trouble the switch
        refuses every other call until it is reconciled."""
        return ""

    @property
    def parent(self) -> str:
        """Name of the parent switch; empty: there is none."""
        return ""

    @property
    def part_of(self) -> str:
        """Name of the switch of which this is one of several pipes; empty: this is a whole switch."""
        return ""

    def reaches(self, address: str) -> bool:
        """True if a worker with this IPv4 address can send its packets to this switch."""
        return True

    def results_group(self, job: int) -> Endpoint | None:
        """Multicast group and base port of this job number's RESULTs. None: each worker is sent a copy."""
        return None

    def versions(self) -> Versions:
        """The switch's versions. May be called from any thread, and does not block."""
        return Versions()

    def needs(self, shape: JobShape) -> Amounts:
        """How much a job takes of `sizes.tables`."""
        return NOTHING

    def reconcile(self, entries: Sequence[JobEntry]) -> Reconciled:
        """Makes the switch hold what the configuration says and exactly these jobs; to be called at the start and after
        every trouble. Jobs that the switch holds already are not disturbed. Raises `DriverError`; may be repeated.

        If there are jobs and the switch has lost its cells, the call returns `reloaded` and installs nothing: end those
        jobs, and call again without them.
        """

    def admit(self, entry: JobEntry) -> None:
        """Installs a job. Raises `DriverError`, and changes nothing, if the switch refuses."""

    def evict(self, job: int) -> None:
        """Removes a job; when this returns, its packets are unknown. No error if there is no such job."""

    def counters(self, job: int) -> JobCounters:
        """Counters of a job: zeros if it was never admitted, the last values if it was evicted."""

    def stray(self) -> JobCounters:
        """Packets to the switch that belong to no job, by reason."""

    def close(self) -> None:
        """Closes the driver. Idempotent. No call follows. Jobs stay in a switch that lives on."""
