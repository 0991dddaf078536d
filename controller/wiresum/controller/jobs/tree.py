"""The switches of a job, which form a tree, and what each of them has been told. Pure.

A job uses the smallest part of the configured tree that covers its hosts; for most jobs this is one switch. The job has
one number, one key and one lease size at all its switches. Each switch numbers its contributors: the job's hosts first,
by their first rank, then the switches right below (docs/protocol.md, section 8). Workers of one host that share their
stream are one contributor; a worker that shares its stream with nobody is a host by itself.

The root is told of the job first and the leaves last, so that no switch sends sums to a switch that does not know the
job; they forget the job in the other order. A switch that cannot be told to forget it does not hold up the switches
above: its packets have a key that no job uses any more.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from wiresum.controller.driver import JobEntry
from wiresum.controller.jobs.slot_pool import SlotRange, power_of_two_within
from wiresum.controller.resources import JobShape
from wiresum.join.constants import BELOW_ROOT_WORKERS_MAX, SWITCH_WORKERS_MAX


@dataclass(frozen=True)
class Branch:
    """A switch of a tree, with the hosts and switches right below."""

    switch_name: str
    parent: str
    """Name of the parent switch; empty: this is the root."""
    hosts: tuple[tuple[int, ...], ...]
    """The ranks of each host that is attached to the switch, by the host's number."""
    below: tuple[str, ...] = ()
    """Names of the switches right below, whose numbers follow those of the hosts."""

    @property
    def ranks(self) -> list[int]:
        """Ranks of the job's workers that are attached to the switch."""
        return [rank for host in self.hosts for rank in host]

    @property
    def contributors(self) -> int:
        return len(self.hosts) + len(self.below)

    @property
    def contributors_max(self) -> int:
        return BELOW_ROOT_WORKERS_MAX if self.parent else SWITCH_WORKERS_MAX

    def number_of(self, switch_name: str) -> int:
        """Number of a switch right below."""
        return len(self.hosts) + self.below.index(switch_name)


def shape_at(branch: Branch, threads: int) -> JobShape:
    """The shape at this switch of a job with so many threads: what its needs depend on."""
    return JobShape(branch.contributors, len(branch.below), threads, bool(branch.parent))


Tree = tuple[Branch, ...]
"""The branches of a tree, each before those below it, so the root comes first."""


class Wish(NamedTuple):
    """How many slots a job wants at each of its switches."""

    most: int
    least: int

    def within(self, slots: int) -> Wish:
        """This wish reduced to `slots` at most, as powers of two."""
        most = power_of_two_within(min(self.most, slots))
        return Wish(most, min(most, self.least))


class Offer(NamedTuple):
    """Where a job would go, for how many slots, how many threads its workers can have, and whether the job is not its
    program's first."""

    tree: Tree
    wish: Wish
    threads_max: int
    further: bool = False


class Phase(enum.Enum):
    """What a switch knows of a job."""

    LEASED = "leased"
    """The switch knows nothing yet, but has slots for the job: its parent is told first."""
    ADMITTING = "admitting"
    HOLDING = "holding"
    EVICTING = "evicting"
    FORGOTTEN = "forgotten"
    """The switch knows nothing any more, or was never told."""


FOLLOWING: Mapping[Phase, frozenset[Phase]] = {
    Phase.LEASED: frozenset({Phase.ADMITTING, Phase.FORGOTTEN}),
    Phase.ADMITTING: frozenset({Phase.HOLDING, Phase.EVICTING}),
    Phase.HOLDING: frozenset({Phase.EVICTING, Phase.FORGOTTEN}),
    Phase.EVICTING: frozenset({Phase.FORGOTTEN}),
    Phase.FORGOTTEN: frozenset(),
}
"""FORGOTTEN follows HOLDING when the switch is reconciled without the job."""


@dataclass(eq=False)
class Node:
    """A switch of one job's tree. Compared by identity."""

    branch: Branch
    slots: SlotRange | None
    """The job's slots at the switch; None: they are given back."""
    phase: Phase = Phase.LEASED
    entry: JobEntry | None = None
    """The entry that the switch is told; None: the slots are given back."""
    evict_again_at: float | None = None
    """When a failed eviction is tried again; None: no eviction has failed."""
    counting: bool = False
    """True if the switch has been asked for its counters and has not answered yet."""
    presumed: bool = False
    """True if the disk says that the switch has the job, and the switch has not been read since."""

    def step(self, phase: Phase) -> None:
        assert phase in FOLLOWING[self.phase], f"{self.branch.switch_name} is {self.phase.value}: {phase.value}"
        self.phase = phase
        self.evict_again_at = None


Nodes = Mapping[str, Node]
"""Nodes of one job, by switch name, the root first."""


def to_admit(nodes: Nodes) -> list[Node]:  # R7.4
    """Nodes that can be told of the job now: their parent has it."""
    return [
        node
        for node in nodes.values()
        if node.phase is Phase.LEASED and (not node.branch.parent or nodes[node.branch.parent].phase is Phase.HOLDING)
    ]


def to_evict(nodes: Nodes) -> list[Node]:  # R7.16
    """Nodes that can be told to forget the job now: the switches below have forgotten it, or cannot be told."""
    return [
        node
        for node in nodes.values()
        if node.phase in (Phase.ADMITTING, Phase.HOLDING)
        and all(
            nodes[name].phase is Phase.FORGOTTEN or nodes[name].evict_again_at is not None for name in node.branch.below
        )
    ]


def has_form(nodes: Nodes, parents: Mapping[str, str]) -> bool:
    """True if the switches still exist and have their former parents. `parents`: the parents of all switches, by
    name."""
    return all(name in parents and node.branch.parent in ("", parents[name]) for name, node in nodes.items())


def names(tree: Iterable[Branch]) -> list[str]:
    return [branch.switch_name for branch in tree]


def in_words(switch_names: Iterable[str]) -> str:
    """Joins names as "a", "a and b", or "a, b and c"."""
    *most, last = switch_names
    return f"{', '.join(most)} and {last}" if most else last
