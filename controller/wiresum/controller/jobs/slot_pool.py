"""Which slots of a switch are free.

A buddy allocator: it gives runs of slots whose length is a power of two and whose start is a multiple of its length.
Runs that come back merge again. The lowest of the shortest free runs that fit is split. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, eq=False)
class SlotRange:
    """Slots `[base, base + count)`. Give them back once, to the pool that they came from. Compared by identity, since
    equal slots may be taken again later."""

    base: int
    count: int


class SlotPool:
    """The slots of one switch."""

    def __init__(self, slots: int) -> None:
        if slots < 1:
            raise ValueError(f"a switch with {slots} slots has nothing to give")
        self.slots_total = slots
        self._free: dict[int, set[int]] = {}  # length of a run -> where such runs start
        self._taken: dict[int, SlotRange] = {}  # by base
        self.slots_free = slots
        base = 0
        while base < slots:  # the free runs are the binary digits of `slots`, the largest first
            count = power_of_two_within(slots - base)
            self._free[count] = {base}
            base += count

    @property
    def run_max(self) -> int:
        """Length of the longest run that could be taken now; 0 if all slots are taken."""
        return max((count for count, bases in self._free.items() if bases), default=0)

    def take(self, count: int) -> SlotRange | None:  # R7.12
        """Takes `count` slots, a power of two; None if no free run is long enough."""
        _check_power_of_two(count)
        run = min((run for run, bases in self._free.items() if run >= count and bases), default=0)
        if not run:
            return None
        base = min(self._free[run])
        self._take_out(run, base, count, base)
        taken = SlotRange(base, count)
        self._taken[base] = taken
        return taken

    def take_again(self, taken: SlotRange) -> None:
        """Takes slots again that were taken before a restart. Raises `ValueError` if they are not free."""
        _check_power_of_two(taken.count)
        for run, bases in self._free.items():
            base = taken.base & ~(run - 1)
            if run >= taken.count and taken.base % taken.count == 0 and base in bases:
                self._take_out(run, base, taken.count, taken.base)
                self._taken[taken.base] = taken
                return
        raise ValueError(f"slots {taken.base}..{taken.base + taken.count - 1} are no free run of {self.slots_total}")

    def give_back(self, taken: SlotRange) -> None:
        if self._taken.get(taken.base) is not taken:
            raise ValueError(f"slots {taken.base}..{taken.base + taken.count - 1} are not taken as these")
        del self._taken[taken.base]
        base, count = taken.base, taken.count
        self.slots_free += count
        while (base ^ count) in self._free.get(count, ()):  # the other half of the pair is free too
            self._free[count].remove(base ^ count)
            base &= ~count
            count *= 2
        self._free.setdefault(count, set()).add(base)

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
        self.slots_free -= count


def _check_power_of_two(count: int) -> None:
    if not is_power_of_two(count):
        raise ValueError(f"{count} slots: it must be a power of two")


def is_power_of_two(count: int) -> bool:
    return count >= 1 and not count & (count - 1)


def power_of_two_within(most: int) -> int:
    """The largest power of two that is at most `most`."""
    return 1 << (most.bit_length() - 1)
