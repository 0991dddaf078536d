"""The switches of one service, the trees that they form, and which part of one a job gets. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from wiresum.controller.driver import Endpoint, SwitchSizes
from wiresum.controller.jobs.job import Job, State, Wants, Worker
from wiresum.controller.jobs.leases import Lease, LeasePool, power_of_two_within
from wiresum.controller.jobs.refusal import Refusal
from wiresum.controller.jobs.tree import Branch, Node, Phase, Tree, has_form, in_words, names
from wiresum.controller.topology import above
from wiresum.join.constants import BELOW_ROOT_WORKERS_MAX, SWITCH_WORKERS_MAX

HOLDERS_NAMED_MAX = 3
"""Of the jobs whose slots others wait for."""


@dataclass(eq=False)
class Switch:
    """One switch: its slots and job numbers, and whether it can be used."""

    name: str
    kind: str
    sizes: SwitchSizes
    endpoint: Endpoint
    reaches: Callable[[str], bool] = lambda _address: True
    results_group: Callable[[int], Endpoint | None] = lambda _job: None
    parent: str = ""
    """Name of the switch above; empty: none."""
    part_of: str = ""
    """Name of the switch that it is a pipe of; empty: it is one by itself."""
    draining: bool = False
    trouble: str = ""
    """Why it cannot be reached now; empty if it can."""
    trouble_since: float = 0.0
    reconciled: bool = False
    """It holds what it should; otherwise it takes no jobs."""
    reconcile_again_at: float | None = None
    numbered: dict[int, Job] = field(default_factory=dict)
    """Jobs by number. A number is free when all switches of the job's tree have forgotten it."""

    def __post_init__(self) -> None:
        self.leases = LeasePool(self.sizes.slots)
        self.number_next = 1 % self.sizes.jobs_max

    def is_usable(self) -> bool:
        """Does it take new jobs?"""
        return self.reconciled and not self.trouble and not self.draining

    def state(self) -> str:
        """In one word, for a report."""
        if self.trouble or not self.reconciled:
            return "unreachable"
        return "draining" if self.draining else "ready"

    def held(self) -> dict[Job, Node]:
        """The jobs that go on, and that the switch has been told of."""
        nodes = {job: job.nodes[self.name] for job in self.numbered.values()}
        return {
            job: node
            for job, node in nodes.items()
            if job.state in (State.ADMITTING, State.RUNNING) and node.phase in (Phase.ADMITTING, Phase.HOLDING)
        }

    def take_number(self, number: int, job: Job) -> None:
        """Numbers are taken in turn, so that it is long before one is used again."""
        assert number not in self.numbered, f"{number} is free at {self.name}"
        self.numbered[number] = job
        self.number_next = (number + 1) % self.sizes.jobs_max

    def jobs_with_slots(self) -> dict[Job, int]:
        """How many slots each has here."""
        leases = {job: job.nodes[self.name].lease for job in self.numbered.values()}
        return {job: lease.count for job, lease in leases.items() if lease is not None}

    def has_room(self, least: int) -> bool:
        return self.leases.run_max >= least

    def obstacle(self, least: int, tenant: str) -> str:
        """Why it does not take a job of so many slots, for a worker of this tenant; empty if it does."""
        if self.trouble:
            return f"{self.name} cannot be used now ({self.trouble})"
        if self.draining:
            return f"{self.name} takes no new jobs, since an operator drains it"
        if not self.reconciled:
            return f"{self.name} is just being made ready"
        if len(self.numbered) >= self.sizes.jobs_max:
            return f"{self.name} has all the jobs that it can hold, {self.sizes.jobs_max}"
        if not self.has_room(least):
            free = f"{self.leases.slots_free} of {self.leases.slots_total} are"
            return f"no {least} slots in a row are free at {self.name}, where {free}: {self._holders(tenant)}"
        return ""

    def _holders(self, tenant: str) -> str:
        """Names only jobs of this tenant."""
        counts = self.jobs_with_slots()
        own = {job: count for job, count in counts.items() if job.tenant == tenant}
        named = sorted(own, key=lambda job: (-own[job], job.name))[:HOLDERS_NAMED_MAX]
        texts = [f"{job} has {own[job]}" for job in named]
        if more := len(own) - len(named):
            texts.append(f"{more} more of the same tenant have {sum(own.values()) - sum(own[job] for job in named)}")
        if others := len(counts) - len(own):
            have = f"job{'s' * (others != 1)} of other tenants ha{'ve' if others != 1 else 's'}"
            texts.append(f"{others} {have} {sum(counts.values()) - sum(own.values())}")
        return ", ".join(texts)


class Wish(NamedTuple):
    """How many slots a job wants at each of its switches."""

    most: int
    least: int

    def within(self, slots: int) -> Wish:
        """The same, as powers of two that are at most so many."""
        most = power_of_two_within(min(self.most, slots))
        return Wish(most, min(most, self.least))


class Offer(NamedTuple):
    """Where a job would go, and for how many slots."""

    tree: Tree
    wish: Wish


@dataclass(frozen=True)
class Grounds:
    """What a job gets."""

    tree: Tree
    leases: tuple[Lease, ...]
    """At each switch of the tree, of one size."""
    number: int
    """Free at all of them."""


class Cluster:
    def __init__(self, switches: Iterable[Switch]) -> None:
        """Raises `ValueError` if a switch hangs below one that is not there."""
        self.switches = {switch.name: switch for switch in switches}
        self._parents = {switch.name: switch.parent for switch in self.switches.values()}
        if strangers := {parent for parent in self._parents.values() if parent} - self.switches.keys():
            raise ValueError(f"there is no switch {', '.join(sorted(strangers))} to hang another one below")
        self._ways = {name: (name, *above(name, self._parents)) for name in self.switches}
        """From each switch to the top of its tree."""
        self._workers_max = max((self._room_at(name, SWITCH_WORKERS_MAX) for name in self.switches), default=0)
        """Of the largest possible job."""

    def check_size(self, world_size: int) -> None:
        """Raises a `Refusal` if no switch, and no tree of them, could have a job of so many workers."""
        if world_size > self._workers_max:
            raise Refusal(
                "RESOURCE_EXHAUSTED",
                f"{world_size} workers are more than the switches here sum for in one job, {self._workers_max}: start "
                f"fewer, or make a tree of several switches (docs/cluster.md, Racks)",
            )

    def is_usable(self) -> bool:
        """Does any switch take new jobs?"""
        return any(switch.is_usable() for switch in self.switches.values())

    def at(self, address: str) -> list[str]:
        """The switches that a worker at this address hangs on: in each tree at most one."""
        return [name for name, switch in self.switches.items() if switch.reaches(address)]

    def at_or_above(self, address: str) -> frozenset[str]:
        """The switches that a worker at this address hangs on, or below."""
        return frozenset(name for found in self.at(address) for name in self._ways[found])

    def named(self, switch_name: str) -> list[Switch]:
        """The switch of this name, or its pipes; empty: there is none. Without a name, the only one that there is."""
        switches = list(self.switches.values())
        if not switch_name and len({switch.part_of or switch.name for switch in switches}) == 1:
            return switches
        return [switch for switch in switches if switch_name and switch_name in (switch.name, switch.part_of)]

    def within(self, switch_name: str) -> frozenset[str]:
        """This switch, all its pipes, and all below."""
        tops = {switch_name, *(switch.name for switch in self.named(switch_name))}
        return frozenset(name for name, way in self._ways.items() if tops & {*way}) | {switch_name}

    def trees(self, job: Job) -> list[Tree]:
        """The smallest part of each tree that covers all the job's workers, even with too many of them at a switch."""
        tops = dict.fromkeys(self._ways[name][-1] for name in self.switches if name in job.candidates)
        return [self._cover(job.workers.values(), top) for top in tops]

    def of(self, tree: Tree) -> list[Switch]:
        return [self.switches[name] for name in names(tree)]

    def holders(self) -> list[Job]:
        """All jobs that have slots, each once."""
        return list(dict.fromkeys(job for switch in self.switches.values() for job in switch.numbered.values()))

    def place(self, offers: Sequence[Offer], kept: Set[str]) -> Grounds | Wants:
        """Slots in the smallest tree with enough free slots; of several, in the one with the most; at no switch that is
        kept for another job."""
        usable = [offer for offer in offers if all(switch.is_usable() for switch in self.of(offer.tree))]
        roomy = [offer for offer in usable if self._has_room(offer)]
        for offer in sorted(roomy, key=self._preference):
            if kept.isdisjoint(names(offer.tree)):
                return self._take(offer)
        if roomy:
            return Wants.TURN
        return Wants.ROOM if usable else Wants.SWITCH

    def take_again(self, job: Job) -> None:
        """What a job had before a restart. Raises `ValueError`, and changes nothing, if it cannot have it any more."""
        if absent := [name for name in job.nodes if name not in self.switches]:
            raise ValueError(f"there is no switch {in_words(absent)} any more")
        if not has_form(job.nodes, self._parents):
            raise ValueError("the configuration has its switches below other ones now")
        strangers = {
            job.workers[rank].endpoint.address
            for name, node in job.nodes.items()
            for rank in node.branch.ranks
            if not self.switches[name].reaches(job.workers[rank].endpoint.address)
        }
        if strangers:
            raise ValueError(
                f"the configuration has no host with the address {', '.join(sorted(strangers))} there any more"
            )
        taken: list[tuple[Switch, Lease]] = []
        try:
            for name, node in job.nodes.items():
                if node.lease is not None:
                    self.switches[name].leases.take_again(node.lease)
                    taken.append((self.switches[name], node.lease))
            if any(job.number in self.switches[name].numbered for name in job.nodes):
                raise ValueError(f"another job has its number, {job.number}")
        except ValueError:
            for switch, lease in taken:
                switch.leases.give_back(lease)
            raise
        for name in job.nodes:
            self.switches[name].numbered[job.number] = job

    def obstacle(self, offer: Offer, tenant: str) -> str:
        """Why these switches do not take a job, for a worker of this tenant; empty if they do."""
        switches = self.of(offer.tree)
        found = list(filter(None, (switch.obstacle(offer.wish.least, tenant) for switch in switches)))
        if not found and self._free_number(switches) is None:
            return f"no number of a job is free at all of {in_words(names(offer.tree))}"
        return ", and ".join(found)

    def _cover(self, workers: Iterable[Worker], top: str) -> Tree:
        ranks: dict[str, list[int]] = {}
        for worker in sorted(workers, key=lambda worker: worker.rank):
            name = next(name for name in self.at(worker.endpoint.address) if self._ways[name][-1] == top)
            ranks.setdefault(name, []).append(worker.rank)
        shared = frozenset.intersection(*(frozenset(self._ways[name]) for name in ranks))
        root = max(shared, key=lambda name: len(self._ways[name]))
        used = {name for leaf in ranks for name in self._ways[leaf] if name not in shared} | {root}
        return tuple(
            Branch(
                switch_name=name,
                parent="" if name == root else self._parents[name],
                ranks=tuple(ranks.get(name, ())),
                below=tuple(other for other in self.switches if other in used and self._parents[other] == name),
            )
            for name in sorted(used, key=lambda name: (len(self._ways[name]), name))
        )

    def _room_at(self, name: str, contributors_max: int) -> int:
        """How many workers of one job can hang on this switch, and below it."""
        below = [other for other, parent in self._parents.items() if parent == name]
        return contributors_max - len(below) + sum(self._room_at(other, BELOW_ROOT_WORKERS_MAX) for other in below)

    def _preference(self, offer: Offer) -> tuple[int, int]:
        return len(offer.tree), -min(switch.leases.slots_free for switch in self.of(offer.tree))

    def _has_room(self, offer: Offer) -> bool:
        switches = self.of(offer.tree)
        return all(switch.has_room(offer.wish.least) for switch in switches) and self._free_number(switches) is not None

    def _free_number(self, switches: Sequence[Switch]) -> int | None:
        """The next one, in the first switch's turn, that is free at all of them."""
        count = min(switch.sizes.jobs_max for switch in switches)
        in_turn = ((switches[0].number_next + step) % count for step in range(count))
        return next((number for number in in_turn if all(number not in s.numbered for s in switches)), None)

    def _take(self, offer: Offer) -> Grounds:
        switches = self.of(offer.tree)
        count = min(offer.wish.most, *(switch.leases.run_max for switch in switches))
        leases = tuple(switch.leases.take(count) for switch in switches)
        number = self._free_number(switches)
        assert number is not None, "there is room"
        return Grounds(offer.tree, tuple(lease for lease in leases if lease is not None), number)
