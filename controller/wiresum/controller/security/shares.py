"""Room that callers share: connections, calls in progress. Pure.

There are no fixed parts, since nobody knows how many tenants there will be, and a cluster with one tenant should not be
kept to the part of one among many. Instead, what a party may have follows from what is free: a tenant may take one more
while it has fewer than are free, an address while it has fewer than three times as many, a certificate while it has
fewer than seven eighths. (Switches share their packet buffers among ports by the same rule: Choudhury and Hahne,
"Dynamic Queue Length Thresholds", 1998.) The rule has these results:

- One tenant alone gets half of all, and two get a third each.
- Whatever a tenant holds, as much is free for others when it takes its last one.
- An eighth of what a tenant may have is left for other certificates of that tenant, and at least a half of what an
  address may have for other tenants behind it (NAT, a proxy).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

ADDRESS, CERTIFICATE, TENANT = "address", "certificate", "tenant"
PART_OF_FREE = {ADDRESS: (3, 1), CERTIFICATE: (7, 8), TENANT: (1, 1)}
"""For each kind of party, the part of the free room, as a fraction."""


class Party(NamedTuple):
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} '{self.name}'"


class Shares:
    """The room and who has how much of it. Used from one event loop."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.taken = 0
        self._held: Counter[Party] = Counter()

    def __len__(self) -> int:
        """How many parties hold something."""
        return len(self._held)

    def held(self, party: Party) -> int:
        return self._held[party]

    def full(self, parties: Iterable[Party]) -> Party | None:
        """The first of these parties that may take no more; None: all may."""
        free = self.room - self.taken
        for party in parties:
            part, of = PART_OF_FREE[party.kind]
            if of * self._held[party] >= part * free:
                return party
        return None

    def take(self, parties: Iterable[Party]) -> None:
        """Takes one, which counts for all these parties."""
        self.taken += 1
        assert self.taken <= self.room, "`full` was asked before"
        self._held.update(parties)

    def give_back(self, parties: Iterable[Party]) -> None:
        """Gives back one that was taken by these parties."""
        self.taken -= 1
        for party in parties:
            self._held[party] -= 1
            assert self._held[party] >= 0, "it was taken"
            if not self._held[party]:
                del self._held[party]

    def why_full(self, party: Party, what: str) -> str:
        """Says why a party may take no more. `what`: names what is shared, in the plural."""
        return (
            f"{party} has {self._held[party]} {what}, and no more while {self.room - self.taken} of {self.room} are "
            f"free for others"
        )
