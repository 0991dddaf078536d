"""The switches of one service, as far as jobs are concerned, and which of them a job gets. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from wiresum.controller.driver import Endpoint, Sizes
from wiresum.controller.jobs.job import Job, State, Wants
from wiresum.controller.jobs.leases import Lease, LeasePool
from wiresum.controller.jobs.refusal import LEASE_SLOTS_MAX

HOLDERS_NAMED_MAX = 3
"""Of the jobs whose slots others wait for."""


@dataclass(eq=False)
class Switch:
    """One switch: its slots and job numbers, and whether it can be used."""

    name: str
    kind: str
    sizes: Sizes
    endpoint: Endpoint
    reaches: Callable[[str], bool] = lambda _address: True
    results_group: Callable[[int], Endpoint | None] = lambda _job: None
    draining: bool = False
    trouble: str = ""
    """Why it cannot be reached now; empty if it can."""
    trouble_since: float = 0.0
    reconciled: bool = False
    """It holds what it should; otherwise it takes no jobs."""
    reconcile_again_at: float | None = None
    numbered: dict[int, Job] = field(default_factory=dict)
    """Those that have slots here."""

    def __post_init__(self) -> None:
        self.leases = LeasePool(self.sizes.slots)
        self._number_next = 1 % self.sizes.jobs_max

    def is_usable(self) -> bool:
        """Does it take new jobs?"""
        return self.reconciled and not self.trouble and not self.draining

    def state(self) -> str:
        """In one word, for a report."""
        if self.trouble or not self.reconciled:
            return "unreachable"
        return "draining" if self.draining else "ready"

    def held(self) -> list[Job]:
        """The jobs that the switch should hold entries for."""
        return [job for job in self.numbered.values() if job.state in (State.ADMITTING, State.RUNNING)]

    def take_number(self, job: Job) -> int:
        """The next one in turn, so that a number comes back late. There must be a free one."""
        while self._number_next in self.numbered:
            self._number_next = (self._number_next + 1) % self.sizes.jobs_max
        number = self._number_next
        self.numbered[number] = job
        self._number_next = (number + 1) % self.sizes.jobs_max
        return number

    def has_room(self, least: int) -> bool:
        return len(self.numbered) < self.sizes.jobs_max and self.leases.run_max >= least

    def obstacle(self, least: int, tenant: str) -> str:
        """Why it does not take a job of so many slots: a phrase, for a worker of this tenant; empty if it does."""
        if self.trouble:
            return f"{self.name} cannot be used now ({self.trouble})"
        if self.draining:
            return f"{self.name} takes no new jobs, since an operator drains it"
        if not self.reconciled:
            return f"{self.name} is just being made ready"
        if len(self.numbered) >= self.sizes.jobs_max:
            return f"{self.name} has all the jobs that it can hold, {self.sizes.jobs_max}"
        if self.leases.run_max < least:
            free = f"{self.leases.slots_free} of {self.leases.slots_total} are"
            return f"no {least} slots in a row are free at {self.name}, where {free}: {self._holders(tenant)}"
        return ""

    def _holders(self, tenant: str) -> str:
        """By name only the tenant's own: what others call their jobs is theirs."""
        counts = {job: job.lease.count for job in self.numbered.values() if job.lease is not None}
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
    """How many slots a job is content with: powers of two."""

    most: int
    least: int

    def within(self, slots: int) -> Wish:
        """The same, where there are no more than so many."""
        most = min(self.most, power_of_two_within(slots))
        return Wish(most, min(most, self.least))


class Cluster:
    def __init__(self, switches: Iterable[Switch]) -> None:
        self.switches = {switch.name: switch for switch in switches}

    def is_usable(self) -> bool:
        """Does any switch take new jobs?"""
        return any(switch.is_usable() for switch in self.switches.values())

    def reaching(self, address: str) -> frozenset[str]:
        """The names of the switches that a worker at this address can use."""
        return frozenset(name for name, switch in self.switches.items() if switch.reaches(address))

    def of(self, job: Job) -> list[Switch]:
        """The switches that a job can be at."""
        return [self.switches[name] for name in sorted(job.candidates)]

    def holders(self) -> list[Job]:
        """All jobs that have slots."""
        return [job for switch in self.switches.values() for job in switch.numbered.values()]

    def place(self, job: Job, wish: Wish, kept: Set[str]) -> tuple[Switch, Lease] | Wants:
        """Slots at the switch that has the most free ones, but at none that is kept for others."""
        usable = [switch for switch in self.of(job) if switch.is_usable()]
        roomy = [switch for switch in usable if switch.has_room(wish.within(switch.sizes.slots).least)]
        for switch in sorted(roomy, key=lambda switch: -switch.leases.slots_free):
            if switch.name not in kept:
                fitting = wish.within(switch.sizes.slots)
                lease = switch.leases.take_up_to(fitting.most, fitting.least)
                assert lease is not None, "there is room"
                return switch, lease
        if roomy:
            return Wants.TURN
        return Wants.ROOM if usable else Wants.SWITCH


def wish_of(wanted: int, least: int) -> Wish:
    most = power_of_two_within(min(wanted, LEASE_SLOTS_MAX))
    return Wish(most, min(most, least))


def power_of_two_within(most: int) -> int:
    """The largest power of two that is at most `most`."""
    return 1 << (most.bit_length() - 1)
