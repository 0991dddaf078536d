"""What the controller needs from a switch, whatever kind it is.

The software switch in this process, a Tofino and bmv2 are each a `SwitchDriver`. The fields of `JobEntry` are
those of `soft_switch/src/dataplane.hpp`: what goes into the admission and multicast tables.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

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
    """The first of a run of multicast groups, one for each job number. `ValueError` if they are not all groups."""
    try:
        address = ipaddress.IPv4Address(first)
    except ipaddress.AddressValueError:
        raise ValueError(f"{first!r} is no multicast group: it must be an IPv4 address like 239.192.0.0") from None
    if not address.is_multicast or not (address + (groups - 1)).is_multicast:
        raise ValueError(f"{first} cannot be the first of {groups} multicast groups: take one like 239.192.0.0")
    return address


@dataclass(frozen=True)
class SwitchSizes:
    """What the switch has room for, fixed at its start."""

    slots: int
    lanes_max: int
    jobs_max: int
    """Job numbers are 0 .. jobs_max - 1."""
    threads_max: int = THREADS_MAX
    """Ports that the switch listens on: a job cannot use more threads than that."""


@dataclass(frozen=True)
class Uplink:
    """Where a switch that is not the root of a job's tree sends its sums."""

    parent: Endpoint
    """The switch above: its address, and the port that thread 0 of the job talks to."""
    worker: int
    """The number that the parent knows this switch by."""


@dataclass(frozen=True)
class JobEntry:
    """One admitted job."""

    job: int
    key: int
    """One that the switch's cells do not hold: what they hold of other keys is nothing to this job."""
    workers: int
    threads: int
    """A power of two, at most 16, that divides `slots`."""
    lanes: int
    slot_base: int
    slots: int
    """A power of two."""
    endpoints: tuple[Endpoint, ...]
    """One for each that contributes at this switch, workers and switches below, by the numbers that it knows them
    by: where thread 0 of the job sends from."""
    uplink: Uplink | None = None
    port_offset: int = 0
    """Thread t of the job talks to the switch's port `endpoint.port + port_offset + t`."""
    below: tuple[str, ...] = ()
    """Names of the switches among them, whose numbers are the last: pipes of one switch have one address."""
    keys_reserved: int = field(default=0, compare=False)
    """So many keys of the sequence, from the first, may be in use when the switch is given this job: it is told before,
    and remembers it for as long as its cells hold anything. 0: it was told when it was given the job."""


@dataclass(frozen=True)
class JobCounters:
    """What the switch counted for one job since it was admitted."""

    packets: Mapping[str, int] = field(default_factory=dict)
    """By reason: the keys are `REASONS`."""
    results: int = 0
    tensor_last: Sequence[int] = ()
    """For each worker, the tag of its newest contribution. Empty if the switch does not remember it."""
    contributions: Sequence[int] = ()
    """For each worker, how many packets of it were counted into a cell."""


class DriverError(RuntimeError):
    """The switch refused, or could not be told: the text says what and why."""


@dataclass(frozen=True)
class Reconciled:
    """What `SwitchDriver.reconcile` found, and did."""

    reloaded: bool = False
    """The switch has lost its cells since a controller last reconciled it (it was restarted, or ran another program, or
    held cells of another sequence of keys): all are new now, and whatever job was believed to run there is dead."""
    changes: tuple[str, ...] = ()
    """What was changed so that the switch holds what it should, a line for each entry, for people."""
    added: frozenset[int] = frozenset()
    """Numbers of the jobs of which the switch held nothing."""
    keys_reserved: int = 0
    """So many keys of our sequence, from the first, may be in its cells on account of other controllers: those before
    this one, and any that used a copy of its state."""


@runtime_checkable
class SwitchDriver(Protocol):
    """A switch. Calls may block for as long as a round trip to the switch takes; the service makes them one at
    a time, from one thread that does nothing else, so an implementation needs no lock against itself. Attributes
    may be read from any thread at any time, and never block.

    Some methods have a body: it is what a switch in this process needs, and a class that derives from this one has
    it. Which then needs an `on_change` of its own: `self.on_change = lambda: None`.
    """

    on_change: Callable[[], None]
    """Set by whoever uses the driver, before its first call: called, from any thread, whenever `trouble` has changed.
    It must return at once, and call nothing of the driver."""

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
        """Where workers send their packets. An address of "0.0.0.0" stands for "the one that the worker
        reached the join service at", for a software switch that listens on every interface."""

    @property
    def trouble(self) -> str:
        """Why the switch cannot be used now, a sentence that says since when; empty while it can. After it has been
        in trouble the switch must be reconciled: until then it refuses every other call."""
        return ""

    @property
    def parent(self) -> str:
        """The name of the switch above, where switches form a tree; empty: none."""
        return ""

    @property
    def part_of(self) -> str:
        """The name of the switch that this is a pipe of, with others; empty: it is one by itself."""
        return ""

    def reaches(self, address: str) -> bool:
        """Can a worker with this IPv4 address send its packets to the switch? In a tree that is one of its switches."""
        return True

    def results_group(self, job: int) -> Endpoint | None:
        """The multicast group, and base port, that the RESULTs of this job number go to. None: each worker is sent a
        copy of its own."""
        return None

    def reconcile(self, entries: Sequence[JobEntry]) -> Reconciled:
        """Makes the switch hold what the configuration says and exactly these jobs, whatever it held before; to be
        called once at the start, and after every trouble. Those jobs that it holds already go on undisturbed.

        If the switch has lost its cells while jobs were believed to run there, that is `Reconciled.reloaded`, and
        nothing is installed: end those jobs, and call again without them. Raises `DriverError`; may be repeated.
        """

    def admit(self, entry: JobEntry) -> None:
        """Installs a job. Raises `DriverError`, and changes nothing, if the switch refuses."""

    def evict(self, job: int) -> None:
        """Removes a job; when this returns, its packets are unknown. No error if there is none such."""

    def counters(self, job: int) -> JobCounters:
        """Zeros for a job that was never admitted; the last values for one that was evicted."""

    def stray(self) -> JobCounters:
        """Packets to the switch that belong to no job, by reason."""

    def close(self) -> None:
        """Idempotent. No call follows. Jobs stay in a switch that lives on."""
