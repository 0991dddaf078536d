"""Leases that have no slots yet: which jobs may form, where, who gets slots next, and what workers are told. Pure.

Jobs that move (moving.py) come first, then the larger priority, then the job that has waited longer. A job that finds
no room does not stop those behind it: they may need less, or another switch. But each job that gets slots which an
earlier job might have used overtakes that job. After a job has been overtaken `overtaken_max` times, its switches are
kept for it until it has its slots. So a large job waits for a bounded number of smaller ones. A job of a larger
priority does not overtake. A job that continues here after it has lost a lease elsewhere comes before no other: whoever
may join could claim to be such a job.

Only a job that waits for room can be overtaken. For a job that waits for its tenant's quota, or for a switch that
cannot be used, nothing is kept. For a job that moves and stands still everything is kept at once, since it has no time;
for a job that runs on, at a drained switch, nothing is ever kept.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Iterator, Sequence, Set

from wiresum import join
from wiresum.controller.jobs.cluster import Cluster, Grounds
from wiresum.controller.jobs.job import Cause, Job, Lease, LeaseState, Presence, State, Wants
from wiresum.controller.jobs.limits import Limits
from wiresum.controller.jobs.outputs import Wait
from wiresum.controller.jobs.quota import Quotas, used, whose_quota
from wiresum.controller.jobs.refusal import Refusal
from wiresum.controller.jobs.tree import Branch, Offer, Tree, Wish, in_words, names
from wiresum.controller.resources import SLOTS
from wiresum.join.addresses import counted_as
from wiresum.join.constants import LEASE_SLOTS_MAX

POSITIONS_RETRY_S = 1.0
KINDS_MAX = 4096
"""How many kinds of leases are told apart; with more, equal requests may count as two kinds."""
FRUITLESS_MAX = 512
"""How many kinds of leases may be tried in vain between two ticks. Whatever else may get slots gets them at the next
tick, so a long queue of unequal jobs does not hold the service up, however often somebody asks."""
FURTHER_PART = 32  # R7.9
"""A job that is not its program's first, and does not say how many slots it wants, gets one part in so many of what is
left for such jobs: a program may have many."""


class WaitingRoom:
    def __init__(self, cluster: Cluster, quotas: Quotas, limits: Limits) -> None:
        self._cluster, self._quotas, self._limits = cluster, quotas, limits
        self._queue: list[Lease] = []
        """Leases that wait, the next one first."""
        self._tickets = 0
        self._kinds: dict[tuple[str, tuple[Offer, ...], frozenset[str]], int] = {}
        """Kinds of leases, by tenant, offers and, for a job that moves, the switches that it has: leases of one kind
        lack the same resources."""
        self._kinds_seen = 0
        self._allowed: dict[int, list[Offer]] = {}
        """By kind, the offers that the tenant's quota had room for when the kind was last tried."""
        self._fruitless = 0
        """How many kinds got nothing since the last tick."""
        self.due = False
        """True if a lease may get now what it did not get before: `serve` tries."""
        self.held_up = ""
        """Why no job gets slots now; empty: jobs do get slots."""

    def __len__(self) -> int:
        """Length of the queue."""
        return len(self._queue)

    def check_can_form(self, job: Job, waiting: Sequence[Job], *, sharing: bool) -> None:
        """Raises a `Refusal` if the job could never run, or if too many jobs form or wait. `waiting`: all jobs that
        form or wait. `sharing`: workers of one host may share a stream."""
        self._quotas.check_possible(job.tenant)
        self._cluster.check_size(job.members.world_size, sharing=sharing)
        self._quotas.check_waiting(job, waiting)
        address = counted_as(job.terms.asker.address)
        here = sum(bool(address) and counted_as(other.terms.asker.address) == address for other in waiting)
        if here >= self._limits.waiting_per_host_max:
            raise Refusal(
                "RESOURCE_EXHAUSTED",
                f"{here} jobs that {address} asked for form or wait for slots, and no more can: start {job} "
                f"again when some of them have begun (`wiresum jobs` lists them; waiting_per_host in the controller's "
                f"configuration)",
            )
        if len(waiting) >= self._limits.waiting_max:
            raise Refusal(
                "RESOURCE_EXHAUSTED",
                f"{len(waiting)} jobs form or wait for slots, and no more can: start {job} again when some of them "
                f"have begun (`wiresum jobs` lists them)",
            )
        self._check_positions(job, waiting)

    def _check_positions(self, job: Job, waiting: Sequence[Job]) -> None:
        """Raises a `Refusal` if there is no room for the positions of a job that continues. All its workers are counted
        when the first asks, so that no job keeps a part of what another needs."""
        if not job.positions_bytes:
            return
        same = sum(other.positions_bytes for other in waiting if other.tenant == job.tenant)
        for whose, held, most in (
            (f"jobs of {whose_quota(job.tenant)}", same, self._limits.positions_tenant_bytes_max),
            ("jobs", sum(other.positions_bytes for other in waiting), self._limits.positions_bytes_max),
        ):
            if held + job.positions_bytes > most:
                raise Refusal(
                    "RESOURCE_EXHAUSTED",
                    f"{job} needs room for {job.positions_bytes >> 10} KiB until it goes on, and {whose} that wait "
                    f"have {held >> 10} of {most >> 10} KiB: its workers ask again until some of those go on",
                    retry_s=POSITIONS_RETRY_S,
                )

    def candidates(self, job: Job, address: str) -> frozenset[str]:
        """The switches that all workers so far, and a worker at this address, are attached to, directly or through
        switches below. Raises a `Refusal`."""
        found = self._cluster.at(address)
        if not found:
            raise Refusal(
                "FAILED_PRECONDITION",
                f"no switch here knows a host with the address {address}: add it to the controller's configuration, or "
                f"set WIRESUM_ADDRESS to one that is there",
            )
        reaching = self._cluster.at_or_above(address)
        before = job.candidates or (self._cluster.within(job.terms.within) if job.terms.within else reaching)
        shared = reaching & before
        if not shared:
            raise Refusal(
                "FAILED_PRECONDITION",
                f"the workers of {job} must all be at one switch, or at switches of one tree: this one, with the "
                f"address {address}, is at {', '.join(sorted(found))}, and the job can only be at "
                f"{', '.join(sorted(before))}{self._cable_hint(found, before)}",
            )
        return shared

    def _cable_hint(self, *names: Iterable[str]) -> str:
        """A hint for an error: switches that are pipes of one switch could be joined; empty: they are not."""
        switches = self._cluster.switches
        ones, others = ({switches[name].part_of for name in some if name in switches} - {""} for some in names)
        if not ones & others:
            return ""
        both = in_words(sorted(ones & others))
        return f". Both are pipes of {both}: a cable and `cables` would join them (docs/tofino.md, Pipes)"

    def look_for_offers(self, lease: Lease, candidates: Set[str]) -> None:
        """Sets where a lease can get slots, when all workers of its job are there. `candidates`: the switches that all
        workers are attached to, directly or through switches below. Raises a `Refusal` if no tree can take the job."""
        trees = self._cluster.trees(lease.job.members.workers.values(), candidates)
        fitting = [tree for tree in trees if _overfull(tree) is None]
        if not fitting:
            raise Refusal("FAILED_PRECONDITION", _too_many_at(lease, trees[0]))
        problems = {tree: self._never(lease, tree) for tree in fitting}
        if all(problems.values()):
            raise Refusal("RESOURCE_EXHAUSTED", problems[min(problems, key=len)])
        lease.offers = tuple(self._offer(lease, tree) for tree in fitting if not problems[tree])
        lease.unfit = () if lease.is_current else tuple(filter(None, problems.values()))
        if len(self._kinds) >= KINDS_MAX:
            self._kinds.clear()
        self._kinds_seen += 1
        has = frozenset(() if lease.is_current else lease.job.lease.nodes)
        lease.kind = self._kinds.setdefault((lease.job.tenant, lease.offers, has), self._kinds_seen)

    def _never(self, lease: Lease, tree: Tree) -> str:
        """Why the lease can never be at these switches, though they have bits for all its workers; empty: it can."""
        job = lease.job
        if not lease.is_current:
            return self._unlike(lease, tree) or self._cluster.never(self._offer(lease, tree))
        if unlike := self._unlike(lease, tree):
            return f"{job} cannot go on here: {unlike}"
        quota = self._quotas.of(job.tenant)
        if quota.slots is not None and quota.slots < len(tree):
            return (
                f"{job} needs slots at each of {len(tree)} switches, and its tenant's quota is {quota.slots} slots: "
                f"the controller's configuration says so, under [[tenant]]"
            )
        offer = self._offer(lease, tree)
        if isinstance(beyond := self._cluster.within_part(offer, quota.switch_percent, None), str):
            return f"{job} can never run here: {beyond} (switch_percent in the controller's configuration, [[tenant]])"
        never = self._cluster.never(offer)
        return f"{job} can never run here: {never}. Give its workers fewer threads (WIRESUM_THREADS)" if never else ""

    def _unlike(self, lease: Lease, tree: Tree) -> str:
        """What a continuing job cannot have at this tree as it had before; empty: it can have all."""
        shape = lease.shape
        if shape is None:
            return ""
        where, switches = in_words(names(tree)), self._cluster.of(tree)
        there = min(switch.sizes.slots for switch in switches)
        if there < shape.slots:
            return f"it has {shape.slots} slots, and {where} could give it {there} at most"
        threads = self._cluster.threads(self._offer(lease, tree), shape.slots)
        if threads != shape.threads:
            return f"it has {shape.threads} threads, and would have {threads} at {where}"
        workers = lease.job.members.workers.values()
        lanes = min(*(switch.sizes.lanes_max for switch in switches), *(w.lanes_max for w in workers))
        return (
            f"its packets have {shape.lanes} words, and would have {lanes} at {where}" if lanes != shape.lanes else ""
        )

    def add(self, lease: Lease) -> None:  # R7.8
        self._tickets += 1
        lease.ticket = self._tickets
        bisect.insort(self._queue, lease, key=lambda each: (each.is_current, -each.job.terms.priority, each.ticket))
        self.due = True

    def remove(self, lease: Lease) -> None:
        """Removes a lease, and frees what was kept for it. No error if the lease is not in the queue."""
        if lease in self._queue:
            self._queue.remove(lease)
            self.due = True

    def serve(self) -> Iterator[tuple[Lease, Grounds]]:
        """Yields the leases that get slots now. Each must have taken them (granting.settle) before the next is asked
        for."""
        if self.held_up or not self.due or self._fruitless >= FRUITLESS_MAX:
            return
        self.due = False
        kept: set[str] = set()
        self._allowed.clear()
        passed: dict[int, list[Lease]] = {}
        """Leases that wait for room, by kind."""
        found_nothing: dict[int, Wants] = {}
        """What kinds wait for that were tried since slots were last given. Only the first lease of each kind is tried,
        however long the queue is."""
        for lease in list(self._queue):
            changed = []
            if lease.kind in found_nothing and lease.job.members.is_whole():
                lease.wants = found_nothing[lease.kind]
            elif isinstance(found := self._find_place(lease, kept), Grounds):
                self._queue.remove(lease)
                yield lease, found
                found_nothing.clear()
                changed = self._overtaken_by(lease, passed.values())
            else:
                lease.wants = found
                if found is not Wants.WORKER:
                    found_nothing[lease.kind] = found
                    self._fruitless += 1
            if lease.state is LeaseState.WANTED and lease.wants in (Wants.ROOM, Wants.TURN):
                passed.setdefault(lease.kind, []).append(lease)
                changed = [lease]
            for waits in changed:
                if waits.overtaken >= self._overtaken_max(waits):
                    kept |= self._rivals(waits)

    def has_tried(self, lease: Lease) -> bool:
        """True if the lease is in the queue and would get nothing now."""
        return lease.state is LeaseState.WANTED and bool(self.held_up or not self.due)

    def tick(self) -> None:
        self._fruitless = 0

    def _overtaken_max(self, lease: Lease) -> float:
        if lease.is_current:
            return self._limits.overtaken_max
        job = lease.job
        assert job.move is not None, "it moves"
        runs_on = job.state is State.RUNNING and job.move.cause is Cause.SWITCH_DRAINED
        return math.inf if runs_on else 0

    def _overtaken_by(self, lease: Lease, passed: Iterable[Sequence[Lease]]) -> list[Lease]:
        """Counts a success against earlier leases that might have used what `lease` has got, and returns them.
        `passed`: all leases that wait for room, by kind."""
        overtaken = [each for alike in passed if not self._rivals(alike[0]).isdisjoint(lease.nodes) for each in alike]
        for each in overtaken:
            each.overtaken += 1
        return overtaken

    @property
    def crowded(self) -> bool:
        """True if any job waits for slots, besides jobs that have some and move."""
        return bool(self._queue) and self._queue[-1].is_current

    def position(self, lease: Lease) -> int:
        """Position in the queue, from 1; 0: the lease is not queued."""
        return self._queue.index(lease) + 1 if lease in self._queue else 0

    def news(self, job: Job, now: float) -> Iterator[Wait]:
        """Yields what workers of a waiting job have not been told yet, at most every `waiting_said_ms`."""
        if job.waiting_said_at is None:
            job.waiting_said_at = now
        if now < job.waiting_said_at + self._limits.waiting_said_ms / 1000:
            return
        job.waiting_said_at = now
        waiting = self.what(job)
        for worker in job.members.workers.values():
            if worker.presence is Presence.WAITING and worker.heard_waiting != waiting.reason:
                worker.heard_waiting = waiting.reason
                yield Wait(worker, waiting)

    def what(self, job: Job) -> join.Waiting:  # R7.2
        """Says what a job waits for, for people."""
        if job.state is State.FORMING:
            away = [str(worker) for worker in job.members.workers.values() if worker.away_since is not None]
            if job.members.is_complete():
                return join.Waiting(reason=f"{job} waits for {', '.join(away)} to ask again, whose connection broke")
            return join.Waiting(reason=f"{job} is not complete: waiting for {job.members.missing()}")
        position = self.position(job.lease)
        if job.state is not State.QUEUED or not position:
            return join.Waiting(reason=f"{job} has its slots, and is being written into {job.lease.where()}")
        place = f"{job} is number {position} of {len(self._queue)} in the queue for slots"
        return join.Waiting(reason=f"{place}: {self.why(job.lease)}", queue_position=position)

    def why(self, lease: Lease) -> str:
        """Why a queued lease has no slots yet."""
        if self.held_up:
            return self.held_up
        tenant = lease.job.tenant
        match lease.wants:
            case Wants.WORKER:
                return "one of its workers has lost its connection, and may ask again"
            case Wants.QUOTA:
                has = used(self._cluster.slots_of(tenant))
                beyond = (self._within_part(offer, tenant) for offer in lease.offers)
                return (
                    f"the quota of {whose_quota(tenant)} is used up ({self._quotas.of(tenant).describe()}): taken are "
                    f"{has.describe()}{''.join(f'; {why}' for why in beyond if isinstance(why, str))}"
                )
            case Wants.TURN:
                return "slots are kept for jobs before it, which have been overtaken often enough"
            case _:
                obstacles = [self._obstacle(offer, lease) for offer in lease.offers]
                return "; ".join(filter(None, [*obstacles, *lease.unfit])) or "it is its turn"

    def _obstacle(self, offer: Offer, lease: Lease) -> str:
        tenant = lease.job.tenant
        beyond = self._within_part(offer, tenant) if lease.is_current else offer
        return beyond if isinstance(beyond, str) else self._cluster.obstacle(offer, tenant)

    def _find_place(self, lease: Lease, kept: Set[str]) -> Grounds | Wants:
        job = lease.job
        if not lease.is_current:  # a job that moves counts in its tenant's quota already
            return self._place_to_move_to(lease, kept)
        if not job.members.is_whole():
            return Wants.WORKER
        allowance = self._quotas.allowance(job.tenant, self._cluster.slots_of)
        if allowance.jobs is not None and allowance.jobs < 1:
            return Wants.QUOTA
        offers = self._allowed[lease.kind] = []
        for full in lease.offers:
            offer = self._within_part(full, job.tenant)
            if isinstance(offer, str):
                continue
            if allowance.slots is not None:
                share = allowance.slots // len(offer.tree)
                if share < offer.wish.least:
                    continue
                offer = offer._replace(wish=offer.wish.within(share))
            offers.append(offer)
        return self._cluster.place(offers, kept) if offers else Wants.QUOTA

    def _place_to_move_to(self, lease: Lease, kept: Set[str]) -> Grounds | Wants:
        """A place for the next lease of a job that moves. A job that has lost a switch continues wherever there is
        room. Where its switches are in order, its workers have halted by themselves: then the job takes no more of
        another switch than its tenant may have there."""
        offers = self._allowed[lease.kind] = list(lease.offers)
        has, tenant = lease.job.lease.nodes, lease.job.tenant
        if all(self._cluster.switches[name].is_usable() for name in has):
            offers[:] = [
                offer
                for offer in offers
                if has.keys() >= {*names(offer.tree)} or not isinstance(self._within_part(offer, tenant), str)
            ]
        return self._cluster.place(offers, kept) if offers else Wants.QUOTA

    def _within_part(self, offer: Offer, tenant: str) -> Offer | str:
        """What the tenant may have of the offer now, at each switch, or a reason why it may have nothing."""
        return self._cluster.within_part(offer, self._quotas.of(tenant).switch_percent, tenant)

    def _rivals(self, lease: Lease) -> set[str]:
        """The switches where later jobs may take what this lease waits for: only these are ever kept for it."""
        offers = self._allowed.get(lease.kind, lease.offers)
        return {name for offer in offers for name in self._cluster.rivals(offer)}

    def _offer(self, lease: Lease, tree: Tree) -> Offer:
        if lease.shape is not None:
            return Offer(tree, Wish(lease.shape.slots, lease.shape.slots), lease.shape.threads)
        members = lease.job.members
        threads_max = min(worker.threads_max for worker in members.workers.values())
        return Offer(tree, self._wish(lease.job, tree), threads_max, members.further)

    def _wish(self, job: Job, tree: Tree) -> Wish:
        said = (worker.slots_wanted for worker in job.members.workers.values() if worker.slots_wanted)
        wanted = min(said, default=job.terms.slots_reserved)
        switches = self._cluster.of(tree)
        there = min(switch.sizes.slots for switch in switches)
        usual, least = self._limits.slots_default, self._limits.slots_least
        if job.members.further:
            spare = min(switch.slots_spare(further=True) for switch in switches)
            usual = min(usual, max(least, spare // FURTHER_PART))
        wish = Wish(wanted or usual, least).within(min(there, LEASE_SLOTS_MAX))
        quota = self._quotas.of(job.tenant)
        wish = wish.within(min(switch.sizes.room.part(quota.switch_percent).of(SLOTS) for switch in switches))
        return wish if quota.slots is None else wish.within(quota.slots // len(tree))


def _overfull(tree: Tree) -> Branch | None:
    """A switch with more contributors than it has bits for; None: there is none."""
    return next((branch for branch in tree if branch.contributors > branch.contributors_max), None)


def _too_many_at(lease: Lease, tree: Tree) -> str:
    branch = _overfull(tree)
    assert branch is not None
    name, hosts = branch.switch_name, len(branch.hosts)
    room = branch.contributors_max - len(branch.below)
    why = f"one switch sums for {branch.contributors_max}"
    if branch.parent:
        why = f"a switch that has another above it, as {name} has {branch.parent}, sums for {branch.contributors_max}"
    if branch.below:
        why += f", and {in_words(branch.below)} below it count among them"
    counted = "" if hosts == len(branch.ranks) else " (those of one host count once)"
    return (
        f"{lease} has {hosts} workers{counted} on hosts of {name}, and at most {room} can be there: {why}. Start fewer "
        f"on these hosts, and the others on hosts of another switch of the tree (docs/cluster.md, Racks)"
    )
