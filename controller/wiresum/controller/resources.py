"""How much a switch has, and how much a job takes of each resource: slots, job numbers, entries of tables, multicast
groups. Pure.

UDP ports are not counted, since jobs share them. Nor are the entries of `own` and `forward`, which the configuration
makes and no job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

SLOTS, JOBS, GROUPS = "slots", "jobs", "multicast_groups"
"""Resources that are no table. A table has its name in P4Info."""


class Amounts(Mapping[str, int]):
    """How many of each resource, by its name. Immutable."""

    def __init__(self, amounts: Mapping[str, int] | None = None) -> None:
        self._amounts = dict(amounts or {})

    def __getitem__(self, resource: str) -> int:
        return self._amounts[resource]

    def __iter__(self) -> Iterator[str]:
        return iter(self._amounts)

    def __len__(self) -> int:
        return len(self._amounts)

    def __hash__(self) -> int:
        return hash(frozenset(self._amounts.items()))

    def __repr__(self) -> str:
        return f"Amounts({self._amounts})"

    def __add__(self, other: Amounts) -> Amounts:
        return Amounts({name: self.of(name) + other.of(name) for name in {**self, **other}})

    def __sub__(self, other: Amounts) -> Amounts:
        return Amounts({name: self.of(name) - other.of(name) for name in {**self, **other}})

    def of(self, resource: str) -> int:
        """How many of a resource; 0 if the resource is not named."""
        return self._amounts.get(resource, 0)

    def part(self, percent: int) -> Amounts:
        """This part of each resource, rounded down, but at least one."""
        return Amounts({name: max(1, count * percent // 100) for name, count in self.items()})

    def beyond(self, room: Amounts) -> str:
        """The first resource of which these amounts are more than `room` has; empty: there is none."""
        return next((name for name, count in self.items() if count > room.of(name)), "")


NOTHING = Amounts()


class JobShape(NamedTuple):
    """The properties of a job that determine how much it takes of a switch's tables."""

    contributors: int
    """Workers at the switch, and switches right below."""
    below: int
    """Switches among the contributors."""
    threads: int
    has_parent: bool
    """True if the switch has a parent in the job's tree."""


def in_units(count: int, resource: str) -> str:
    """An amount in words, for people."""
    names = {SLOTS: "slots", JOBS: "jobs", GROUPS: "multicast groups"}
    return f"{count} {names.get(resource, f'entries of table {resource}')}"


def shortage(resource: str, switch_name: str, room: int, taken: int, wanted: int) -> str:
    """Says why a job does not fit, for people. `taken` 0: the job never fits."""
    if resource == GROUPS:
        has = f"{switch_name} has room for {room} multicast groups"
    else:
        has = f"table {resource} of {switch_name} has room for {room} entries"
    return f"{has}; {taken} are taken and this job needs {wanted}" if taken else f"{has}, and this job needs {wanted}"
