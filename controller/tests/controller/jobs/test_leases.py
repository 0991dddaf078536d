from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from wiresum.controller.jobs.leases import (
    AHEAD_MAX,
    ROUND_MARGIN,
    ROUND_MARGIN_LEFT,
    Lease,
    LeasePool,
    Seen,
    round_is_newer,
)


class PoolMachine(RuleBasedStateMachine):
    """Takes and gives back at random; after every step, no slot is in two leases and none is missing."""

    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.slots = 96  # not a power of two: runs of 64 and 32
        self.pool = LeasePool(self.slots)
        self.held: list[Lease] = []
        self.seen = [0] * self.slots  # unwrapped: the newest round that each slot has carried

    @rule(target=leases, order=st.integers(0, 7))
    def take(self, order: int) -> Lease | None:
        count, longest = 1 << order, self.pool.run_max
        lease = self.pool.take(count)
        assert (lease is not None) == (count <= longest), "a lease is refused exactly if no run is long enough"
        if lease is not None:
            assert lease.count == count
            assert lease.base % count == 0
            for slot in range(lease.base, lease.base + count):
                assert lease.first_unwrapped > self.seen[slot], "the first round is newer than all that the slots saw"
            self.held.append(lease)
        return lease

    @rule(lease=leases, ahead=st.integers(0, 2**31 - 1))
    def use(self, lease: Lease | None, ahead: int) -> None:
        if lease is None or lease not in self.held:
            return
        lease.saw((lease.newest_unwrapped + ahead) % 2**32)
        for slot in range(lease.base, lease.base + lease.count):
            self.seen[slot] = max(self.seen[slot], lease.newest_unwrapped)

    @rule(lease=consumes(leases))
    def give_back(self, lease: Lease | None) -> None:
        if lease is not None and lease in self.held:
            self.pool.give_back(lease)
            self.held.remove(lease)

    @invariant()
    def leases_are_apart_and_the_rest_is_free(self) -> None:
        slots = [slot for lease in self.held for slot in range(lease.base, lease.base + lease.count)]
        assert len(slots) == len(set(slots)), "two leases overlap"
        assert all(0 <= slot < self.slots for slot in slots)
        assert self.pool.slots_free == self.slots - len(slots)

    @invariant()
    def what_is_free_has_merged(self) -> None:
        if not self.held:
            assert self.pool.run_max == 64


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPool = PoolMachine.TestCase


def take(pool: LeasePool, count: int) -> Lease:
    lease = pool.take(count)
    assert lease is not None
    return lease


class WashMachine(RuleBasedStateMachine):
    """Uses some cells of leases and not others, for as many rounds as jobs could; after every lease that is taken, each
    of its cells is older than the first round, in the eyes of RFC 1982, or is washed."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = LeasePool(16)
        self.pool.cells_are_zero()
        self.cells = [0] * 16  # what each slot's cells hold, unwrapped: the older of the two

    @rule(
        count=st.sampled_from([4, 8, 16]),
        ahead=st.integers(0, 2**31 - 1),
        used=st.integers(0, 15),
        left=st.booleans(),
    )
    def run_a_job(self, count: int, ahead: int, used: int, left: bool) -> None:
        lease = take(self.pool, count)
        slots = range(lease.base, lease.base + lease.count)
        if lease.wash:
            for slot in slots:
                self.cells[slot] = lease.first_unwrapped - 2
            self.pool.washed(lease)
        for slot in slots:
            assert round_is_newer(lease.round_first, self.cells[slot] % 2**32)
            assert lease.first_unwrapped - self.cells[slot] <= AHEAD_MAX
        lease.saw((lease.first_unwrapped + ahead) % 2**32)
        self.cells[lease.base + used % count] = lease.newest_unwrapped
        self.pool.give_back(lease, ROUND_MARGIN_LEFT if left else None)


WashMachine.TestCase.settings = settings(max_examples=20, stateful_step_count=20, deadline=None)
TestWash = WashMachine.TestCase


def test_neighbours_that_come_back_in_any_order_merge() -> None:
    pool = LeasePool(64)
    leases = [take(pool, 8) for _ in range(8)]
    assert pool.run_max == 0
    for index in (3, 0, 7, 5, 1, 2, 6, 4):
        pool.give_back(leases[index])
    assert pool.run_max == 64


def test_the_shortest_run_that_fits_is_split() -> None:
    pool = LeasePool(64 + 8)
    assert take(pool, 8).base == 64
    assert pool.run_max == 64


def test_a_crowded_pool_gives_less_but_not_less_than_the_least() -> None:
    pool = LeasePool(64)
    take(pool, 32)
    half = pool.take_up_to(256, 16)
    assert half is not None
    assert half.count == 32
    assert pool.take_up_to(256, 16) is None


def test_the_first_lease_starts_at_round_one() -> None:
    assert take(LeasePool(16), 16).round_first == 1


def test_the_next_lease_starts_newer_across_the_wrap_of_the_serial_numbers() -> None:
    pool = LeasePool(16)
    lease = take(pool, 16)
    lease.saw(2**31 - 1)
    lease.saw(2**32 - 5)
    pool.give_back(lease)
    following = take(pool, 16)
    assert following.round_first == (2**32 - 5 + ROUND_MARGIN) % 2**32
    assert round_is_newer(following.round_first, 2**32 - 5)


def test_an_older_round_changes_nothing() -> None:
    lease = take(LeasePool(16), 16)
    lease.saw(1000)
    lease.saw(0)
    lease.saw(999)
    assert lease.newest_unwrapped == 1000


@given(a=st.integers(0, 2**32 - 1), ahead=st.integers(0, 2**32 - 1))
def test_newer_is_rfc_1982(a: int, ahead: int) -> None:
    assert round_is_newer((a + ahead) % 2**32, a) == (0 < ahead < 2**31)


def test_a_lease_comes_back_once() -> None:
    pool = LeasePool(16)
    lease = take(pool, 4)
    pool.give_back(lease)
    with pytest.raises(ValueError, match="not leased"):
        pool.give_back(lease)


@pytest.mark.parametrize("count", [0, -1, 3, 6])
def test_a_lease_is_a_power_of_two(count: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        LeasePool(16).take(count)


def test_a_switch_without_slots_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing to lease"):
        LeasePool(0)


def test_leases_are_taken_again_as_they_were_and_the_rest_is_free() -> None:
    before, after = LeasePool(96), LeasePool(96)
    leases = [take(before, count) for count in (16, 4, 32, 8)]
    for lease in reversed(leases):
        after.take_again(dataclasses.replace(lease))
    assert after.slots_free == before.slots_free
    assert after.run_max == before.run_max
    assert take(after, 4).base == take(before, 4).base


@pytest.mark.parametrize(("base", "count"), [(0, 16), (8, 4), (96, 16), (64, 64), (4, 8)])
def test_what_cannot_be_a_lease_is_not_taken_again(base: int, count: int) -> None:
    pool = LeasePool(96)
    pool.take_again(Lease(0, 16, 1, 1))
    with pytest.raises(ValueError, match="no free run"):
        pool.take_again(Lease(base, count, 1, 1))
    assert pool.slots_free == 80


def test_of_what_was_written_down_the_newest_counts() -> None:
    pool = LeasePool(32)
    for seen in (
        Seen(0, 32, 1000, 10, "a"),
        Seen(0, 16, 5000, 20, ""),
        Seen(8, 8, 700, None, "b"),
        Seen(16, 32, 2000, 5, "c"),
    ):
        pool.recall(seen)
    low, high = take(pool, 16), take(pool, 16)
    assert (low.round_first, high.round_first) == (5000, 2000)
    assert not low.wash
    assert high.wash, "another tenant used them last"
    assert pool.give_back(low).oldest == 20
    assert pool.give_back(high).oldest == 10


def test_slots_of_which_nothing_is_known_are_washed() -> None:
    pool = LeasePool(32)
    lease = take(pool, 16)
    assert lease.wash
    pool.washed(lease)
    pool.give_back(lease)
    assert not take(pool, 16).wash
    assert take(pool, 16).wash


def test_slots_that_another_tenant_has_used_are_washed() -> None:
    pool = LeasePool(32)
    pool.cells_are_zero()
    first = pool.take(32, "vision")
    assert first is not None
    assert not first.wash
    pool.give_back(first)
    again, other = pool.take(16, "vision"), pool.take(16, "sound")
    assert again is not None
    assert other is not None
    assert (again.wash, other.wash) == (False, True)
    pool.washed(other)
    pool.give_back(other)
    again = pool.take(16, "sound")
    assert again is not None
    assert not again.wash
