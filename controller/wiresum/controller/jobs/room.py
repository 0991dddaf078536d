"""What the jobs take of a switch's tables and multicast groups. Pure."""

from __future__ import annotations

from collections import Counter

from wiresum.controller.jobs.job import Lease
from wiresum.controller.resources import NOTHING, Amounts

KEPT_PART = 4
"""One part in so many of each resource of a switch is kept for jobs that are their program's first."""


class Tally:
    """What the jobs of each tenant have of some resources. Sums are maintained, since summing over all jobs for each
    placement would be slow."""

    def __init__(self) -> None:
        self._has: dict[str, Amounts] = {}

    def of(self, tenant: str) -> Amounts:
        return self._has.get(tenant, NOTHING)

    def add(self, tenant: str, amounts: Amounts) -> None:
        self._has[tenant] = self.of(tenant) + amounts

    def take_away(self, tenant: str, amounts: Amounts) -> None:
        left = self._has.pop(tenant, NOTHING) - amounts
        assert all(count >= 0 for count in left.values()), f"{tenant!r} has what it gives back"
        if any(left.values()):
            self._has[tenant] = left


class Room:
    """The resources of one switch, shared by its pipes."""

    def __init__(self, total: Amounts) -> None:
        self.total = total
        self.taken = Amounts(dict.fromkeys(total, 0))
        self._takers: dict[tuple[Lease, str], Amounts] = {}
        """Amounts taken, by lease and name of the switch or pipe."""
        self.tally = Tally()

    def take(self, lease: Lease, switch_name: str, need: Amounts) -> None:
        """Takes the amounts for a lease. Raises `ValueError`, and changes nothing, if there is no room."""
        assert (lease, switch_name) not in self._takers, f"{lease} has its room at {switch_name}"
        if lacking := self.lacks(need):
            raise ValueError(f"there is no room in {lacking} of {switch_name}")
        self._takers[lease, switch_name] = need
        self.taken += need
        self.tally.add(lease.job.tenant, need)

    def give_back(self, lease: Lease, switch_name: str) -> None:
        need = self._takers.pop((lease, switch_name))
        self.taken -= need
        self.tally.take_away(lease.job.tenant, need)

    def lacks(self, need: Amounts, *, further: bool = False) -> str:
        """Name of the first resource that has too little left for `need`; empty: `need` fits. A `further` job leaves a
        part of each resource to others."""
        kept = Amounts({name: count // KEPT_PART for name, count in self.total.items()}) if further else NOTHING
        return need.beyond(self.total - self.taken - kept)

    def leases_with(self, resource: str) -> dict[Lease, int]:
        """How much of the resource each lease has; a lease without any is absent."""
        counts: Counter[Lease] = Counter()
        for (lease, _), need in self._takers.items():
            counts[lease] += need.of(resource)
        return {lease: count for lease, count in counts.items() if count}
