"""Which slots of the switch belong to which job.

A lease is a run of slots whose length is a power of two and whose start is a multiple of its length: a buddy
allocator, so that runs which come back merge again and the pool never crumbles. Among the free runs that fit, the
shortest is split, and the lowest of those.

Each slot remembers the newest round that it may have seen, and the next lease of that slot starts with newer ones:
a packet that was delayed in the network since the lease before is then stale, on top of having the wrong job and key.
How much newer depends on how well the newest round is known: a worker that leaves says it exactly, one that dies has
said it in its last heartbeat.

Rounds on the wire are 32-bit serial numbers (RFC 1982); here they are kept unwrapped, so that slots of very
different ages can be compared when they come to lie in one lease. A cell that no job of a lease has used still holds
a round of long ago, and half the circle later a new one would look older than that. So each slot also remembers the
oldest round that its cells may hold, and a lease that begins too far ahead of it, or of which nothing is known, is to
be washed: the switch makes its cells older than the first round, whatever they hold. So is one whose slots another
tenant has used, since all that is known of their rounds is what that one's workers said.

Pure: no clock, no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass

ROUND_BITS = 32
ROUND_MARGIN = 1 << 22
"""How much newer than the newest round known the next lease starts, if a worker died. More rounds than a slot can do
between two heartbeats: 2^22 rounds in half a second would be 8 million round trips a second."""
ROUND_MARGIN_LEFT = 16
"""The same, if all workers left and said which round was their newest."""
ROUNDS_PER_SECOND_MAX = 1 << 20
"""Of one slot: a round trip takes longer than a microsecond. For times in which no heartbeat could be written down."""
ROUND_MARGIN_MAX = 1 << 31
"""A margin need not be more: a lease that begins so far ahead is washed anyway."""
ROUND_FIRST_EVER = 1
WASHED_BEHIND = 2
"""A washed cell holds one of the two rounds before the first: the one of its parity."""
AHEAD_MAX = 1 << 30
"""How far a first round may be ahead of what a cell holds. RFC 1982 would allow twice that, but jobs go on from it."""


def round_is_newer(a: int, b: int) -> bool:
    """RFC 1982 on the 32-bit rounds of the wire: is `a` newer than `b`?"""
    return 0 < (a - b) % (1 << ROUND_BITS) < 1 << (ROUND_BITS - 1)


@dataclass
class Lease:
    """Slots `[base, base + count)`. Give it back to the pool that it came from, once."""

    base: int
    count: int
    first_unwrapped: int
    newest_unwrapped: int
    tenant: str = ""
    wash: bool = False
    """The switch must make its cells older than the first round."""
    margin: int = ROUND_MARGIN
    """How far the newest round may be ahead of what was last heard of it."""

    @property
    def round_first(self) -> int:
        """As on the wire."""
        return self.first_unwrapped % (1 << ROUND_BITS)

    def saw(self, round_newest: int) -> None:
        """A worker says which round, as on the wire, is the newest that it has used. An older one changes nothing."""
        ahead = (round_newest - self.newest_unwrapped) % (1 << ROUND_BITS)
        if ahead < 1 << (ROUND_BITS - 1):
            self.newest_unwrapped += ahead


@dataclass(frozen=True)
class Seen:
    """What is known of slots `[base, base + count)` since they were last given back."""

    base: int
    count: int
    first_next: int
    """Unwrapped: the next lease begins with this round, or a newer one."""
    oldest: int | None
    """Unwrapped: no cell holds an older round. None: nothing is known."""
    tenant: str | None
    """Who used them last, and so who said all this. None: nobody since the cells were made."""


class LeasePool:
    """The slots of one switch."""

    def __init__(self, slots: int) -> None:
        if slots < 1:
            raise ValueError(f"a switch with {slots} slots has nothing to lease")
        self.slots_total = slots
        self._first_next = [ROUND_FIRST_EVER] * slots
        self._oldest: list[int | None] = [None] * slots
        self._tenant: list[str | None] = [None] * slots
        self._free: dict[int, set[int]] = {}  # length of a run -> where such runs start
        self._taken: dict[int, Lease] = {}  # by base
        self._free_slots = slots
        base = 0
        while base < slots:  # at most once for each bit of `slots`: its binary digits, the largest first
            count = _power_of_two_within(slots - base)
            self._free[count] = {base}
            base += count

    @property
    def slots_free(self) -> int:
        return self._free_slots

    @property
    def run_max(self) -> int:
        """The longest lease that could be had now; 0 if all is taken."""
        return max((count for count, bases in self._free.items() if bases), default=0)

    def take(self, count: int, tenant: str = "") -> Lease | None:
        """A lease of `count` slots, a power of two; None if no free run is that long."""
        _check_power_of_two(count)
        run = min((run for run, bases in self._free.items() if run >= count and bases), default=0)
        if not run:
            return None
        base = min(self._free[run])
        self._take_out(run, base, count, base)
        first = max(self._first_next[base : base + count])
        lease = Lease(base, count, first, first, tenant, wash=self._must_wash(base, count, first, tenant))
        self._taken[base] = lease
        return lease

    def take_up_to(self, count: int, least: int, tenant: str = "") -> Lease | None:
        """The longest lease of `least` to `count` slots, both powers of two, that can be had."""
        while count > least and count > self.run_max:
            count //= 2
        return self.take(count, tenant)

    def take_again(self, lease: Lease) -> None:
        """A lease that was taken before the service was started again. Raises `ValueError` if it cannot be one."""
        _check_power_of_two(lease.count)
        for run, bases in self._free.items():
            base = lease.base & ~(run - 1)
            if run >= lease.count and lease.base % lease.count == 0 and base in bases:
                self._take_out(run, base, lease.count, lease.base)
                self._taken[lease.base] = lease
                return
        raise ValueError(f"slots {lease.base}..{lease.base + lease.count - 1} are no free run of {self.slots_total}")

    def give_back(self, lease: Lease, margin: int | None = None) -> Seen:
        """`margin`: how far the newest round may be ahead of what was heard, if not as the lease says."""
        if self._taken.get(lease.base) is not lease:
            raise ValueError(f"slots {lease.base}..{lease.base + lease.count - 1} are not leased by this lease")
        del self._taken[lease.base]
        base, count = lease.base, lease.count
        oldest = self._oldest_of(base, count)
        first_next = lease.newest_unwrapped + min(lease.margin if margin is None else margin, ROUND_MARGIN_MAX)
        seen = Seen(base, count, first_next, oldest, lease.tenant)
        self._remember(seen)
        self._free_slots += count
        while (base ^ count) in self._free.get(count, ()):  # the other half of the pair is free too
            self._free[count].remove(base ^ count)
            base &= ~count
            count *= 2
        self._free.setdefault(count, set()).add(base)
        return seen

    def washed(self, lease: Lease) -> None:
        """The switch has made all cells of the lease just older than its first round."""
        lease.wash = False
        oldest = lease.first_unwrapped - WASHED_BEHIND
        self._remember(Seen(lease.base, lease.count, lease.first_unwrapped, oldest, lease.tenant))

    def cells_are_zero(self) -> None:
        """The switch was loaded: the round of every cell is 0."""
        self._oldest = [0] * self.slots_total
        self._tenant = [None] * self.slots_total

    def recall(self, seen: Seen) -> None:
        """What was written down of slots before the service was started again. Slots may be in several of those: the
        newest that is known of each counts, and both rounds only ever grow."""
        end = min(seen.base + seen.count, self.slots_total)
        for slot in range(seen.base, end):
            if seen.first_next >= self._first_next[slot]:
                self._first_next[slot], self._tenant[slot] = seen.first_next, seen.tenant
            if seen.oldest is not None:
                known = self._oldest[slot]
                self._oldest[slot] = seen.oldest if known is None else max(known, seen.oldest)

    def _remember(self, seen: Seen) -> None:
        self._first_next[seen.base : seen.base + seen.count] = [seen.first_next] * seen.count
        self._oldest[seen.base : seen.base + seen.count] = [seen.oldest] * seen.count
        self._tenant[seen.base : seen.base + seen.count] = [seen.tenant] * seen.count

    def _take_out(self, run: int, base: int, count: int, wanted: int) -> None:
        """Splits the free run at `base` until the part that begins at `wanted` is `count` long."""
        self._free[run].remove(base)
        while run > count:
            run //= 2
            if wanted & run:
                self._free.setdefault(run, set()).add(base)
                base += run
            else:
                self._free.setdefault(run, set()).add(base + run)
        self._free_slots -= count

    def _must_wash(self, base: int, count: int, first: int, tenant: str) -> bool:
        oldest = self._oldest_of(base, count)
        others = any(user not in (None, tenant) for user in self._tenant[base : base + count])
        return oldest is None or first - oldest > AHEAD_MAX or others

    def _oldest_of(self, base: int, count: int) -> int | None:
        oldest = self._oldest[base : base + count]
        known = [round_ for round_ in oldest if round_ is not None]
        return min(known) if len(known) == count else None


def _check_power_of_two(count: int) -> None:
    if count < 1 or count & (count - 1):
        raise ValueError(f"a lease of {count} slots: it must be a power of two")


def _power_of_two_within(most: int) -> int:
    """The largest power of two that is at most `most`."""
    return 1 << (most.bit_length() - 1)
