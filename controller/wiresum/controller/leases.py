"""Which slots of the switch belong to which job.

A lease is a run of slots whose length is a power of two and whose start is a multiple of its length: a buddy
allocator, so that runs which come back merge again and the pool never crumbles. Among the free runs that fit, the
shortest is split, and the lowest of those.

Each slot remembers the newest round that it may have seen, and the next lease of that slot starts with newer ones:
a packet that was delayed in the network since the lease before is then stale, on top of having the wrong job and key.
Rounds on the wire are 32-bit serial numbers (RFC 1982); here they are kept unwrapped, so that slots of very
different ages can be compared when they come to lie in one lease. What a cell of the switch still holds may then be
any distance away from the first round, so it is for the switch to make its cells older than `round_first` when it
admits the job.

Pure: no clock, no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass

ROUND_BITS = 32
ROUND_MARGIN = 1 << 22
"""How much newer than the newest round known the next lease starts. More rounds than a slot can do between two
heartbeats, the last thing that was heard of a worker that died: 2^22 rounds in half a second would be 8 million
round trips a second."""
ROUND_FIRST_EVER = 1


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

    @property
    def round_first(self) -> int:
        """As on the wire."""
        return self.first_unwrapped % (1 << ROUND_BITS)

    def saw(self, round_newest: int) -> None:
        """A worker says which round, as on the wire, is the newest that it has used. An older one changes nothing."""
        ahead = (round_newest - self.newest_unwrapped) % (1 << ROUND_BITS)
        if ahead < 1 << (ROUND_BITS - 1):
            self.newest_unwrapped += ahead


class LeasePool:
    """The slots of one switch."""

    def __init__(self, slots: int) -> None:
        if slots < 1:
            raise ValueError(f"a switch with {slots} slots has nothing to lease")
        self.slots_total = slots
        self._newest = [ROUND_FIRST_EVER - ROUND_MARGIN] * slots
        self._free: dict[int, set[int]] = {}  # length of a run -> where such runs start
        self._taken: dict[int, Lease] = {}  # by base
        self._free_slots = slots
        base = 0
        while base < slots:  # at most once for each bit of `slots`: its binary digits, the largest first
            count = 1 << ((slots - base).bit_length() - 1)
            self._free[count] = {base}
            base += count

    @property
    def slots_free(self) -> int:
        return self._free_slots

    @property
    def run_max(self) -> int:
        """The longest lease that could be had now; 0 if all is taken."""
        return max((count for count, bases in self._free.items() if bases), default=0)

    def take(self, count: int) -> Lease | None:
        """A lease of `count` slots, a power of two; None if no free run is that long."""
        if count < 1 or count & (count - 1):
            raise ValueError(f"a lease of {count} slots: it must be a power of two")
        run = min((run for run, bases in self._free.items() if run >= count and bases), default=0)
        if not run:
            return None
        base = min(self._free[run])
        self._free[run].remove(base)
        while run > count:  # the lower half is kept, the upper half goes back
            run //= 2
            self._free.setdefault(run, set()).add(base + run)
        self._free_slots -= count
        newest = max(self._newest[base : base + count])
        lease = Lease(base, count, newest + ROUND_MARGIN, newest + ROUND_MARGIN)
        self._taken[base] = lease
        return lease

    def take_up_to(self, count: int, least: int) -> Lease | None:
        """The longest lease of `least` to `count` slots, both powers of two, that can be had."""
        while count > least and count > self.run_max:
            count //= 2
        return self.take(count)

    def give_back(self, lease: Lease) -> None:
        if self._taken.get(lease.base) is not lease:
            raise ValueError(f"slots {lease.base}..{lease.base + lease.count - 1} are not leased by this lease")
        del self._taken[lease.base]
        base, count = lease.base, lease.count
        self._newest[base : base + count] = [lease.newest_unwrapped] * count
        self._free_slots += count
        while (base ^ count) in self._free.get(count, ()):  # the other half of the pair is free too
            self._free[count].remove(base ^ count)
            base &= ~count
            count *= 2
        self._free.setdefault(count, set()).add(base)
