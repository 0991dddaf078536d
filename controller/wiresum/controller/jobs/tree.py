"""The switches of a job, which form a tree, and what each of them has been told. Pure.

A job whose hosts hang on several switches uses the smallest part of the configured tree that covers them; that of most
jobs is one switch. The job has one number, one key and one size of lease at all its switches, and at each of them slots
of that switch. Each switch has numbers of its own for whoever contributes there: the job's workers first, by rank, and
then the switches right below (docs/protocol.md, section 8).

The root is told of the job first and the leaves last, so that no switch sends its sums to one that does not know the
job; and they forget it in the other order. One that cannot be told to forget it now holds up none of those above: what
it still sends them has a key that is nobody's any more.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from wiresum.controller.driver import JobEntry
from wiresum.controller.jobs.leases import Lease
from wiresum.join.constants import BELOW_ROOT_WORKERS_MAX, SWITCH_WORKERS_MAX


@dataclass(frozen=True)
class Branch:
    """A switch of a tree, and what hangs on it."""

    switch_name: str
    parent: str
    """Name of the switch above; empty: this is the root."""
    ranks: tuple[int, ...]
    """Of the job's workers that hang on it, in the order of their numbers there."""
    below: tuple[str, ...] = ()
    """Names of the switches right below; their numbers follow."""

    @property
    def contributors(self) -> int:
        return len(self.ranks) + len(self.below)

    @property
    def contributors_max(self) -> int:
        return BELOW_ROOT_WORKERS_MAX if self.parent else SWITCH_WORKERS_MAX

    def number_of(self, switch_name: str) -> int:
        """Of a switch right below."""
        return len(self.ranks) + self.below.index(switch_name)


Tree = tuple[Branch, ...]
"""Each switch before those below it, so the root first."""


class Phase(enum.Enum):
    """What a switch knows of a job."""

    LEASED = "leased"
    """Nothing yet, but it has slots for it: the switch above is told first."""
    ADMITTING = "admitting"
    HOLDING = "holding"
    EVICTING = "evicting"
    FORGOTTEN = "forgotten"
    """Nothing any more, or it was never told."""


FOLLOWING: Mapping[Phase, frozenset[Phase]] = {
    Phase.LEASED: frozenset({Phase.ADMITTING, Phase.FORGOTTEN}),
    Phase.ADMITTING: frozenset({Phase.HOLDING, Phase.EVICTING}),
    Phase.HOLDING: frozenset({Phase.EVICTING, Phase.FORGOTTEN}),
    Phase.EVICTING: frozenset({Phase.FORGOTTEN}),
    Phase.FORGOTTEN: frozenset(),
}
"""Which phases may follow which; FORGOTTEN right after HOLDING, when the switch was reconciled without the job."""


@dataclass(eq=False)
class Node:
    """A switch of one job's tree. Compared by identity."""

    branch: Branch
    lease: Lease | None
    """None: given back."""
    phase: Phase = Phase.LEASED
    entry: JobEntry | None = None
    """What it is told; None only where there is no lease any more."""
    evict_again_at: float | None = None
    """It could not be told to forget the job, and is told again then."""
    counting: bool = False
    """It has been asked what it counted, and has not answered yet."""
    presumed: bool = False
    """That the switch has the job is read from the disk, and the switch has not been looked at since."""

    def move(self, phase: Phase) -> None:
        assert phase in FOLLOWING[self.phase], f"{self.branch.switch_name} is {self.phase.value}: {phase.value}"
        self.phase = phase
        self.evict_again_at = None


Nodes = Mapping[str, Node]
"""Of one job, by the switches' names, in the order of the tree."""


def to_admit(nodes: Nodes) -> list[Node]:
    """Those that can be told of the job now: whatever is above them has it."""
    return [
        node
        for node in nodes.values()
        if node.phase is Phase.LEASED and (not node.branch.parent or nodes[node.branch.parent].phase is Phase.HOLDING)
    ]


def to_evict(nodes: Nodes) -> list[Node]:
    """Those that can be told now to forget the job: whatever is below them has, or cannot be told."""
    return [
        node
        for node in nodes.values()
        if node.phase in (Phase.ADMITTING, Phase.HOLDING)
        and all(
            nodes[name].phase is Phase.FORGOTTEN or nodes[name].evict_again_at is not None for name in node.branch.below
        )
    ]


def has_form(nodes: Nodes, parents: Mapping[str, str]) -> bool:
    """Are the switches still there, and below each other as they were? `parents`: of all switches, by name."""
    return all(name in parents and node.branch.parent in ("", parents[name]) for name, node in nodes.items())


def names(tree: Iterable[Branch]) -> list[str]:
    return [branch.switch_name for branch in tree]


def in_words(switch_names: Iterable[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    *most, last = switch_names
    return f"{', '.join(most)} and {last}" if most else last
