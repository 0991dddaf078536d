"""The switches of one service, the trees that they form, and the choice of a part of a tree for a job. Pure."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from wiresum.controller.driver import KINDS_THAT_VERIFY, DriverError, Endpoint, OutdatedError, SwitchSizes, Versions
from wiresum.controller.jobs.job import Lease, LeaseState, Wants, Worker
from wiresum.controller.jobs.refusal import Refusal
from wiresum.controller.jobs.room import KEPT_PART, Room, Tally
from wiresum.controller.jobs.slot_pool import SlotPool, SlotRange, power_of_two_within
from wiresum.controller.jobs.tree import Branch, Node, Offer, Phase, Tree, has_form, in_words, names, shape_at
from wiresum.controller.resources import JOBS, NOTHING, SLOTS, Amounts, JobShape, in_units, shortage
from wiresum.controller.topology import above
from wiresum.join.constants import BELOW_ROOT_WORKERS_MAX, SWITCH_WORKERS_MAX

HOST_RANKS_MAX = BELOW_ROOT_WORKERS_MAX
"""How many ranks may share one stream. They are summed as at a child switch, and so have its limit."""
HOLDERS_NAMED_MAX = 3
"""How many jobs an error names that hold what a waiting job lacks."""
BEING_MADE_READY = "it is just being made ready"


@dataclass(eq=False)
class Switch:
    """A switch: its slots, job numbers and tables, and whether it can be used."""

    name: str
    kind: str
    sizes: SwitchSizes
    endpoint: Endpoint
    reaches: Callable[[str], bool] = lambda _address: True
    results_group: Callable[[int], Endpoint | None] = lambda _job: None
    parent: str = ""
    """Name of the parent switch; empty: this switch is a root."""
    part_of: str = ""
    """Name of the switch that this one is a pipe of; empty: this is a whole switch."""
    needs: Callable[[JobShape], Amounts] = lambda _shape: NOTHING
    """How much of the switch's tables a job takes."""
    versions: Callable[[], Versions] = Versions
    """The versions of the switch's software and program, as far as they are known."""
    draining: bool = False
    trouble: str = ""
    """Why the switch cannot be reached now; empty if it can."""
    trouble_since: float = 0.0
    reconciled: bool = False
    """True if the switch holds exactly the jobs that it should; otherwise it takes no jobs."""
    unready: DriverError | None = None
    """Why the switch could be reached but not reconciled; None: nothing has failed."""
    reconcile_again_at: float | None = None
    sums_wrong: int = 0
    """Wrong sums that workers of this switch have reported."""
    numbered: dict[int, Lease] = field(default_factory=dict)
    """Leases by number. A number is free when all switches of the lease have forgotten the lease."""

    def __post_init__(self) -> None:
        self.pool = SlotPool(self.sizes.slots)
        self.room = Room(self.sizes.tables)
        self.tally = Tally()
        """Slots and job numbers taken, by tenant."""
        self.number_next = 1 % self.sizes.jobs_max

    def is_usable(self) -> bool:
        """True if the switch takes new jobs."""
        return self.reconciled and not self.trouble and not self.draining

    def state(self) -> str:
        """The state as one word, for a report."""
        if self.trouble or not self.reconciled:
            return "outdated" if isinstance(self.unready, OutdatedError) else "unreachable"
        return "draining" if self.draining else "ready"

    def why_unusable(self) -> str:
        """A sentence that says why the switch cannot be used; empty if it can."""
        if self.trouble or self.reconciled:
            return self.trouble
        return str(self.unready) if self.unready else BEING_MADE_READY

    def note_unready(self, failure: DriverError | None = None, again_at: float | None = None) -> None:
        """Notes that the switch has just come in reach, or that reconciling it failed with `failure` and is tried again
        at `again_at`."""
        self.reconciled, self.unready, self.reconcile_again_at = False, failure, again_at

    def held(self) -> dict[Lease, Node]:
        """Leases that the switch has been told of and that are not released."""
        nodes = {lease: lease.nodes[self.name] for lease in self.numbered.values()}
        return {
            lease: node
            for lease, node in nodes.items()
            if lease.state is not LeaseState.RELEASED and node.phase in (Phase.ADMITTING, Phase.HOLDING)
        }

    def hold(self, lease: Lease) -> None:
        """Records the lease with its number and the slots that it has been given."""
        assert lease.number not in self.numbered, f"{lease.number} is free at {self.name}"
        self.numbered[lease.number] = lease
        slots = lease.nodes[self.name].slots
        self.tally.add(lease.job.tenant, Amounts({SLOTS: slots.count if slots is not None else 0, JOBS: 1}))

    def free_number(self, lease: Lease) -> None:
        """Frees the number of a lease that has no slots here any more."""
        del self.numbered[lease.number]
        self.tally.take_away(lease.job.tenant, Amounts({JOBS: 1}))

    def taken(self) -> Amounts:
        """How much all jobs have of each resource. The tables of a switch are shared by its pipes, so they count the
        jobs of all its pipes."""
        slots = self.sizes.slots - self.pool.slots_free
        return Amounts({SLOTS: slots, JOBS: len(self.numbered)}) + self.room.taken

    def taken_by(self, tenant: str) -> Amounts:
        """How much the jobs of this tenant have of each resource."""
        return self.tally.of(tenant) + self.room.tally.of(tenant)

    def leases_with_slots(self) -> dict[Lease, int]:
        """How many slots each lease has here."""
        slots = {lease: lease.nodes[self.name].slots for lease in self.numbered.values()}
        return {lease: taken.count for lease, taken in slots.items() if taken is not None}

    def slots_spare(self, *, further: bool) -> int:
        """How many of the free slots a job may have. A `further` job leaves a part to others."""
        return max(0, self.pool.slots_free - (self.sizes.slots // KEPT_PART if further else 0))

    def run_max(self, *, further: bool) -> int:
        """The longest lease, in slots, that a job could have now; 0: none."""
        spare = self.slots_spare(further=further)
        return min(self.pool.run_max, power_of_two_within(spare)) if spare else 0

    def numbers_spare(self, *, further: bool) -> int:
        """How many more jobs could get a number here."""
        most = self.sizes.jobs_max
        return most - len(self.numbered) - (most // KEPT_PART if further else 0)

    def obstacle(self, least: int, tenant: str, *, further: bool) -> str:
        """Why the switch does not take a job of `least` slots, in words for a worker of this tenant; empty if it
        does."""
        if why := self.why_unusable():
            return f"{self.name} cannot be used now ({why})"
        if self.draining:
            return f"{self.name} takes no new jobs, since an operator drains it"
        if self.numbers_spare(further=further) <= 0:
            return f"{self.name} has all the jobs that it can hold, {self.sizes.jobs_max}{_but(further)}"
        if self.run_max(further=further) < least:
            free = f"{self.pool.slots_free} of {self.pool.slots_total} are{_but(further)}"
            holders = _holders(self.leases_with_slots(), tenant)
            return f"no {least} slots in a row are free at {self.name}, where {free}: {holders}"
        return ""


def _hosts(workers: Iterable[Worker]) -> tuple[tuple[int, ...], ...]:
    """For each host, in order, the ranks that share its stream. `workers`: the workers of one switch, by rank."""
    hosts: list[list[int]] = []
    open_hosts: dict[tuple[bytes, str], list[int]] = {}
    for worker in workers:
        at = worker.host_id, worker.endpoint.address  # a host with several links has a stream over each
        host = open_hosts.get(at) if worker.host_id else None
        if host is None or len(host) == HOST_RANKS_MAX:
            hosts.append(host := [])
            open_hosts[at] = host
        host.append(worker.rank)
    return tuple(map(tuple, hosts))


def _but(further: bool) -> str:
    return f" (one in {KEPT_PART} is kept for other programs)" if further else ""


def _holders(counts: Mapping[Lease, int], tenant: str) -> str:
    """Says who holds a resource, naming only jobs of this tenant. `counts`: how much each lease has of the resource."""
    own = {lease: count for lease, count in counts.items() if lease.job.tenant == tenant}
    named = sorted(own, key=lambda lease: (-own[lease], lease.job.name))[:HOLDERS_NAMED_MAX]
    texts = [f"{lease} has {own[lease]}" for lease in named]
    if more := len(own) - len(named):
        texts.append(f"{more} more of the same tenant have {sum(own.values()) - sum(own[lease] for lease in named)}")
    if others := len(counts) - len(own):
        have = f"job{'s' * (others != 1)} of other tenants ha{'ve' if others != 1 else 's'}"
        texts.append(f"{others} {have} {sum(counts.values()) - sum(own.values())}")
    return ", ".join(texts)


@dataclass(frozen=True)
class Grounds:
    """What a lease gets: its tree, slots, number and threads."""

    tree: Tree
    slots: tuple[SlotRange, ...]
    """The slots at each switch of the tree, equally many."""
    number: int
    """A job number that is free at all switches of the tree."""
    threads: int


class Cluster:
    def __init__(self, switches: Iterable[Switch]) -> None:
        """Raises `ValueError` if the parent of a switch does not exist."""
        self.switches = {switch.name: switch for switch in switches}
        rooms: dict[str, Room] = {}
        for switch in self.switches.values():
            switch.room = rooms.setdefault(switch.part_of or switch.name, switch.room)
        self._parents = {switch.name: switch.parent for switch in self.switches.values()}
        if strangers := {parent for parent in self._parents.values() if parent} - self.switches.keys():
            raise ValueError(f"there is no switch {', '.join(sorted(strangers))} to hang another one below")
        self._ways = {name: (name, *above(name, self._parents)) for name in self.switches}
        """The path from each switch to the root of its tree."""
        self._hosts_max = max((self._room_at(name, SWITCH_WORKERS_MAX) for name in self.switches), default=0)
        """How many hosts the largest possible job can have."""

    def check_size(self, world_size: int, *, sharing: bool) -> None:
        """Raises a `Refusal` if no switch, and no tree of switches, could have a job of so many workers. `sharing`:
        workers of one host may share a stream."""
        most = self._hosts_max * (HOST_RANKS_MAX if sharing else 1)
        if world_size > most:
            raise Refusal(
                "RESOURCE_EXHAUSTED",
                f"{world_size} workers are more than the switches here sum for in one job, {most}: start fewer, or "
                f"make a tree of several switches (docs/cluster.md, Racks)",
            )

    def is_usable(self) -> bool:
        """True if any switch takes new jobs."""
        return any(switch.is_usable() for switch in self.switches.values())

    @property
    def needs_check_words(self) -> bool:
        """True if a switch here does not verify checksums. A job may move to any of them, and keeps what it has."""
        return any(switch.kind not in KINDS_THAT_VERIFY for switch in self.switches.values())

    def at(self, address: str) -> list[str]:
        """The switches that reach a worker at this address: in each tree at most one."""
        return [name for name, switch in self.switches.items() if switch.reaches(address)]

    def at_or_above(self, address: str) -> frozenset[str]:
        """The switches that reach a worker at this address, and all switches above them."""
        return frozenset(name for found in self.at(address) for name in self._ways[found])

    def named(self, switch_name: str) -> list[Switch]:
        """The switch of this name, or its pipes; empty if no switch has the name. An empty name means the only switch,
        if there is only one."""
        switches = list(self.switches.values())
        if not switch_name and len({switch.part_of or switch.name for switch in switches}) == 1:
            return switches
        return [switch for switch in switches if switch_name and switch_name in (switch.name, switch.part_of)]

    def drain(self, switch_name: str, *, resume: bool) -> list[Switch]:
        """Drains the switch, or with `resume` lets it take jobs again. Raises a `Refusal` if there is no such
        switch."""
        switches = self.named(switch_name)
        if not switches:
            there = ", ".join(self.switches)
            raise Refusal("NOT_FOUND", f"there is no switch {switch_name!r} here; there are: {there}")
        for switch in switches:
            switch.draining = not resume
        return switches

    def within(self, switch_name: str) -> frozenset[str]:
        """Names of this switch, all its pipes, and all switches below."""
        tops = {switch_name, *(switch.name for switch in self.named(switch_name))}
        return frozenset(name for name, way in self._ways.items() if tops & {*way}) | {switch_name}

    def trees(self, workers: Collection[Worker], candidates: Set[str]) -> list[Tree]:
        """For each tree of the `candidates`, the smallest part that covers all the workers, even with too many workers
        at a switch."""
        tops = dict.fromkeys(self._ways[name][-1] for name in self.switches if name in candidates)
        return [self._cover(workers, top) for top in tops]

    def of(self, tree: Tree) -> list[Switch]:
        return [self.switches[name] for name in names(tree)]

    def holders(self) -> list[Lease]:
        """All leases that have slots, each once."""
        return list(dict.fromkeys(lease for switch in self.switches.values() for lease in switch.numbered.values()))

    def slots_of(self, tenant: str) -> dict[Lease, int]:
        """The slots of each lease that counts in the tenant's quota, summed over its switches. What is over counts only
        where a switch can be made to forget it: nobody can free the rest, and no other job could have it."""
        slots: dict[Lease, int] = {}
        for lease in self.holders():
            if lease.job.tenant != tenant:
                continue
            counts = [
                node.slots.count
                for name, node in lease.nodes.items()
                if node.slots is not None and not (lease.is_over and self.switches[name].why_unusable())
            ]
            if counts or not lease.is_over:
                slots[lease] = sum(counts)
        return slots

    def jobs_of(self, tenant: str) -> int:
        """How many jobs of this tenant have slots. A job with several switches counts at each of them."""
        return sum(switch.tally.of(tenant).of(JOBS) for switch in self.switches.values())

    def place(self, offers: Sequence[Offer], kept: Set[str]) -> Grounds | Wants:
        """Takes slots in the smallest tree that has room; among several such trees, in the one with room for the most
        jobs like this. Switches in `kept` are reserved for another job. Returns what the job waits for if no tree has
        room."""
        usable = [offer for offer in offers if all(switch.is_usable() for switch in self.of(offer.tree))]
        roomy = [offer for offer in usable if self._fits(offer)]
        for offer in sorted(roomy, key=self._preference):
            if kept.isdisjoint(names(offer.tree)):
                return self._take(offer)
        if roomy:
            return Wants.TURN
        return Wants.ROOM if usable else Wants.SWITCH

    def take_again(self, lease: Lease) -> None:
        """Takes again what the lease had before a restart. Raises `ValueError`, and changes nothing, if a part of that
        cannot be had any more."""
        if absent := [name for name in lease.nodes if name not in self.switches]:
            raise ValueError(f"there is no switch {in_words(absent)} any more")
        if not has_form(lease.nodes, self._parents):
            raise ValueError("the configuration has its switches below other ones now")
        for name in lease.nodes:
            sizes = self.switches[name].sizes
            if lease.number >= sizes.jobs_max or lease.lanes > sizes.lanes_max:
                raise ValueError(
                    f"{name} has no job number {lease.number}, or no packets of {lease.lanes} words, any more"
                )
            if lease.port_offset + lease.threads > sizes.threads_max:
                raise ValueError(f"{name} has no {lease.threads} ports from the {lease.port_offset}th any more")
        addresses = {
            (name, lease.job.members.workers[rank].endpoint.address)
            for name, node in lease.nodes.items()
            for rank in node.branch.ranks
        }
        strangers = {address for name, address in addresses if not self.switches[name].reaches(address)}
        if strangers:
            raise ValueError(
                f"the configuration has no host with the address {', '.join(sorted(strangers))} there any more"
            )
        with contextlib.ExitStack() as undo:
            for name, node in lease.nodes.items():
                if node.slots is not None:
                    switch = self.switches[name]
                    switch.pool.take_again(node.slots)
                    undo.callback(switch.pool.give_back, node.slots)
                    switch.room.take(lease, name, self._need(node.branch, lease.threads))
                    undo.callback(switch.room.give_back, lease, name)
            if any(lease.number in self.switches[name].numbered for name in lease.nodes):
                raise ValueError(f"another job has its number, {lease.number}")
            undo.pop_all()
        for name in lease.nodes:
            self.switches[name].hold(lease)

    def hold(self, lease: Lease) -> None:
        """Takes the number of a placed lease, and its room in the tables, at all its switches."""
        for name, node in lease.nodes.items():
            switch = self.switches[name]
            switch.hold(lease)
            switch.number_next = (lease.number + 1) % switch.sizes.jobs_max  # in turn: long before it comes again
            switch.room.take(lease, name, self._need(node.branch, lease.threads))

    def give_back(self, lease: Lease, node: Node) -> None:
        """Returns the slots and the table entries of the lease at this switch; the number stays taken."""
        assert node.slots is not None
        switch = self.switches[node.branch.switch_name]
        switch.pool.give_back(node.slots)
        switch.tally.take_away(lease.job.tenant, Amounts({SLOTS: node.slots.count}))
        switch.room.give_back(lease, switch.name)
        node.slots = node.entry = None

    def obstacle(self, offer: Offer, tenant: str) -> str:
        """Why these switches do not take a job, in words for a worker of this tenant; empty if they do."""
        switches, further = self.of(offer.tree), offer.further
        found = [switch.obstacle(offer.wish.least, tenant, further=further) for switch in switches]
        found = list(filter(None, found))
        if not found and self._free_number(switches) is None:
            return f"no number of a job is free at all of {in_words(names(offer.tree))}"
        if not found:
            for room, (name, need) in self._needs(offer, self._slots(offer)).items():
                if lacking := room.lacks(need, further=further):
                    short = shortage(lacking, name, *(a.of(lacking) for a in (room.total, room.taken, need)))
                    found.append(f"{short}{_but(further)}: {_holders(room.leases_with(lacking), tenant)}")
        return ", and ".join(found)

    def never(self, offer: Offer) -> str:
        """Why these switches can never take such a job; empty if they can."""
        for room, (name, need) in self._needs(offer, offer.wish.most).items():
            if lacking := need.beyond(room.total):
                return shortage(lacking, name, room.total.of(lacking), 0, need.of(lacking))
        return ""

    def within_part(self, offer: Offer, percent: int, tenant: str | None) -> Offer | str:
        """The offer, reduced to the slots that the tenant may have there, or why the tenant may have none. A tenant's
        jobs may have `percent` of each resource of each switch. `tenant`: whose present jobs count; None: no jobs
        count."""
        if percent >= 100:
            return offer
        switches = self.of(offer.tree)
        most = {switch.name: switch.sizes.room.part(percent) for switch in switches}
        has = {switch.name: NOTHING if tenant is None else switch.taken_by(tenant) for switch in switches}
        spare = {name: most[name] - has[name] for name in most}
        slots = max(0, min(each.of(SLOTS) for each in spare.values()))
        if slots >= offer.wish.least:
            offer = offer._replace(wish=offer.wish.within(slots))
        numbered = Amounts({SLOTS: offer.wish.least, JOBS: 1})
        needs = [(name, need) for name, need in self._needs(offer, offer.wish.most).values()]
        for name, need in [*((name, numbered) for name in most), *needs]:
            if lacking := need.beyond(spare[name]):
                may = f"one tenant may have {percent}% of {name}, {in_units(most[name].of(lacking), lacking)}"
                held = has[name].of(lacking)
                return f"{may}; its jobs have {held}" if held else f"{may}, and this job needs {need.of(lacking)}"
        return offer

    def rivals(self, offer: Offer) -> set[str]:
        """The switches where other jobs may take what this job waits for. Pipes of one switch share its tables."""
        short = [
            room
            for room, (_, need) in self._needs(offer, offer.wish.most).items()
            if room.lacks(need, further=offer.further)
        ]
        return {*names(offer.tree), *(name for name, switch in self.switches.items() if switch.room in short)}

    def threads(self, offer: Offer, slots: int) -> int:
        """How many threads the job would have with so many slots."""
        ports = min(switch.sizes.threads_max for switch in self.of(offer.tree))
        return power_of_two_within(min(slots, ports, offer.threads_max))

    def _cover(self, workers: Iterable[Worker], top: str) -> Tree:
        here: dict[str, list[Worker]] = {}
        for worker in sorted(workers, key=lambda worker: worker.rank):
            name = next(name for name in self.at(worker.endpoint.address) if self._ways[name][-1] == top)
            here.setdefault(name, []).append(worker)
        shared = frozenset.intersection(*(frozenset(self._ways[name]) for name in here))
        root = max(shared, key=lambda name: len(self._ways[name]))
        used = {name for leaf in here for name in self._ways[leaf] if name not in shared} | {root}
        return tuple(
            Branch(
                switch_name=name,
                parent="" if name == root else self._parents[name],
                hosts=_hosts(here.get(name, ())),
                below=tuple(other for other in self.switches if other in used and self._parents[other] == name),
            )
            for name in sorted(used, key=lambda name: (len(self._ways[name]), name))
        )

    def _room_at(self, name: str, contributors_max: int) -> int:
        """How many hosts of one job can be attached to this switch and to the switches below."""
        below = [other for other, parent in self._parents.items() if parent == name]
        return contributors_max - len(below) + sum(self._room_at(other, BELOW_ROOT_WORKERS_MAX) for other in below)

    def _preference(self, offer: Offer) -> tuple[int, float]:
        """Sort key: the smallest tree first, then the tree with room for the most such jobs, by its scarcest
        resource."""
        needs = self._needs(offer, self._slots(offer)).items()
        switches = self.of(offer.tree)
        jobs_more = [
            *(switch.pool.slots_free / offer.wish.most for switch in switches),
            *(switch.sizes.jobs_max - len(switch.numbered) for switch in switches),
            *((room.total - room.taken).of(name) / n for room, (_, need) in needs for name, n in need.items() if n),
        ]
        return len(offer.tree), -min(jobs_more)

    def _fits(self, offer: Offer) -> bool:
        switches = self.of(offer.tree)
        further = offer.further
        if self._slots(offer) < offer.wish.least or self._free_number(switches) is None:
            return False
        if any(switch.numbers_spare(further=further) <= 0 for switch in switches):
            return False
        needs = self._needs(offer, self._slots(offer)).items()
        return not any(room.lacks(need, further=further) for room, (_, need) in needs)

    def _slots(self, offer: Offer) -> int:
        """How many slots the job would get: as many as the switch with the shortest free run can give."""
        return min(offer.wish.most, *(switch.run_max(further=offer.further) for switch in self.of(offer.tree)))

    def _need(self, branch: Branch, threads: int) -> Amounts:
        return self.switches[branch.switch_name].needs(shape_at(branch, threads))

    def _needs(self, offer: Offer, slots: int) -> dict[Room, tuple[str, Amounts]]:
        """What the job would take with so many slots, by room, each with the name of the first switch or pipe that
        takes from the room."""
        threads = self.threads(offer, slots)
        found: dict[Room, tuple[str, Amounts]] = {}
        for branch in offer.tree:
            room = self.switches[branch.switch_name].room
            name, before = found.get(room, (branch.switch_name, NOTHING))
            need = self._need(branch, threads)
            found[room] = name, before + need if before else need
        return found

    def _free_number(self, switches: Sequence[Switch]) -> int | None:
        """The next job number, in the first switch's order, that is free at all the switches; None: no number is."""
        count = min(switch.sizes.jobs_max for switch in switches)
        in_turn = ((switches[0].number_next + step) % count for step in range(count))
        return next((number for number in in_turn if all(number not in s.numbered for s in switches)), None)

    def _take(self, offer: Offer) -> Grounds:
        switches = self.of(offer.tree)
        count = self._slots(offer)
        slots = tuple(switch.pool.take(count) for switch in switches)
        number = self._free_number(switches)
        assert number is not None, "there is room"
        threads = self.threads(offer, count)
        return Grounds(offer.tree, tuple(each for each in slots if each is not None), number, threads)
