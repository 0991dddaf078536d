"""What the controller needs from a switch of any kind. `JobEntry` has the fields of `soft_switch/src/dataplane.hpp`."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

from wiresum.controller.resources import JOBS, NOTHING, SLOTS, Amounts, JobShape
from wiresum.join.constants import JOB_NUMBERS, THREADS_MAX, Reason

KINDS = ("software", "bmv2", "tofino")
"""Of switch, by what runs the data plane."""

REASONS = tuple(reason.name.lower() for reason in Reason if reason != Reason.OTHER)
"""The keys of `JobCounters.packets`, in the order of their numbers."""


class Endpoint(NamedTuple):
    """An IPv4 address in dotted form and a UDP base port: thread t uses `port + t`."""

    address: str
    port: int


def check_groups(first: str, groups: int = JOB_NUMBERS) -> ipaddress.IPv4Address:
    """The first of a run of multicast groups, one for each job number. Raises `ValueError` if one is no group."""
    try:
        address = ipaddress.IPv4Address(first)
    except ipaddress.AddressValueError:
        raise ValueError(f"{first!r} is no multicast group: it must be an IPv4 address like 239.192.0.0") from None
    if not address.is_multicast or not (address + (groups - 1)).is_multicast:
        raise ValueError(f"{first} cannot be the first of {groups} multicast groups: take one like 239.192.0.0")
    return address


@dataclass(frozen=True)
class SwitchSizes:
    """Fixed at the switch's start."""

    slots: int
    lanes_max: int
    jobs_max: int
    """Job numbers are 0 .. jobs_max - 1."""
    threads_max: int = THREADS_MAX
    """Ports that the switch listens on, so the most threads of a job."""
    tables: Amounts = NOTHING
    """Entries of tables, and multicast groups, for jobs. Pipes of one switch share them."""

    @property
    def room(self) -> Amounts:
        """Of everything that a job takes."""
        return Amounts({SLOTS: self.slots, JOBS: self.jobs_max}) + self.tables


@dataclass(frozen=True)
class Uplink:
    """Where a switch below the root of a job's tree sends its sums."""

    parent: Endpoint
    """Of the switch above: the port is that of the job's thread 0."""
    worker: int
    """This switch's number at the parent."""


@dataclass(frozen=True)
class JobEntry:
    """One admitted job."""

    job: int
    key: int
    """No cell of the switch holds it."""
    workers: int
    threads: int
    """A power of two that divides `slots`."""
    lanes: int
    slot_base: int
    slots: int
    """A power of two."""
    endpoints: tuple[Endpoint, ...]
    """Where thread 0 of each contributor, worker or switch below, sends from, by its number at this switch."""
    uplink: Uplink | None = None
    port_offset: int = 0
    """Thread t of the job talks to the switch's port `endpoint.port + port_offset + t`."""
    below: tuple[str, ...] = ()
    """Names of the switches among them, which have the last numbers: pipes of one switch have one address."""
    keys_reserved: int = field(default=0, compare=False)
    """How many keys of the sequence, from the first, may be in use. The switch is told before it is given the job, and
    remembers it as long as its cells. 0: it has been told."""

    @property
    def shape(self) -> JobShape:
        return JobShape(self.workers, len(self.below), self.threads, self.uplink is not None)


@dataclass(frozen=True)
class JobCounters:
    """What the switch counted for one job since it was admitted."""

    packets: Mapping[str, int] = field(default_factory=dict)
    """By reason: the keys are `REASONS`."""
    results: int = 0
    tensor_last: Sequence[int] = ()
    """Tag of each worker's newest contribution. Empty if the switch does not remember it."""
    contributions: Sequence[int] = ()
    """How many packets of each worker were counted into a cell."""


class DriverError(RuntimeError):
    """The switch refused, or did not answer: the text says what and why."""


class OutdatedError(DriverError):
    """The switch and this controller have different programs: the text says which side to upgrade."""


class Versions(NamedTuple):
    """Of a switch, as far as it has said; empty: not known."""

    software: str = ""
    """Of wiresum, at a software switch."""
    program: str = ""
    """Of the switch program that it runs, or can run."""
    digest: str = ""
    """Of that program's P4Info, at a software switch."""

    def __str__(self) -> str:
        """For people; empty if nothing is known."""
        known = [f"wiresum {self.software}"] if self.software else []
        return ", ".join([*known, *([f"switch program {self.program}"] if self.program else [])])


@dataclass(frozen=True)
class Reconciled:
    """What `SwitchDriver.reconcile` found and did."""

    reloaded: bool = False
    """All cells are new since the switch was last reconciled (it was restarted, or ran another program, or held cells
    of another sequence of keys), so every job on it is dead."""
    changes: tuple[str, ...] = ()
    """For people: a line for each entry that was changed."""
    added: frozenset[int] = frozenset()
    """Numbers of the jobs of which the switch held nothing."""
    keys_reserved: int = 0
    """How many keys of our sequence, from the first, other controllers may have put into its cells: those before this
    one, and any with a copy of its state."""


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
        """For people: "soft switch", "Tofino at 10.0.0.2"."""

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
        """Why the switch cannot be used, a sentence that says since when; empty if it can. After trouble the switch
        refuses every other call until it is reconciled."""
        return ""

    @property
    def parent(self) -> str:
        """The name of the switch above in a tree; empty: none."""
        return ""

    @property
    def part_of(self) -> str:
        """The name of the switch of which this is one of several pipes; empty: it is a whole switch."""
        return ""

    def reaches(self, address: str) -> bool:
        """Can a worker with this IPv4 address send its packets to this switch?"""
        return True

    def results_group(self, job: int) -> Endpoint | None:
        """Multicast group and base port of this job number's RESULTs. None: each worker is sent a copy."""
        return None

    def versions(self) -> Versions:
        """From any thread, and without blocking."""
        return Versions()

    def needs(self, shape: JobShape) -> Amounts:
        """How much a job takes of `sizes.tables`."""
        return NOTHING

    def reconcile(self, entries: Sequence[JobEntry]) -> Reconciled:
        """Makes the switch hold what the configuration says and exactly these jobs; to be called at the start and after
        every trouble. Jobs that it holds already are not disturbed. Raises `DriverError`; may be repeated.

        If there are jobs and the switch has lost its cells, it returns `reloaded` and installs nothing: end those jobs,
        and call again without them.
        """

    def admit(self, entry: JobEntry) -> None:
        """Installs a job. Raises `DriverError`, and changes nothing, if the switch refuses."""

    def evict(self, job: int) -> None:
        """Removes a job; when this returns, its packets are unknown. No error if there is none."""

    def counters(self, job: int) -> JobCounters:
        """Zeros for a job that was never admitted; the last values for one that was evicted."""

    def stray(self) -> JobCounters:
        """Packets to the switch that belong to no job, by reason."""

    def close(self) -> None:
        """Idempotent. No call follows. Jobs stay in a switch that lives on."""
