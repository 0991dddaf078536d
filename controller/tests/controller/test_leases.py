from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from wiresum.controller.leases import ROUND_MARGIN, Lease, LeasePool, round_is_newer


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
