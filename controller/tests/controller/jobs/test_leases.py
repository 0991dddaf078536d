from __future__ import annotations

import dataclasses

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from wiresum.controller.jobs.leases import Lease, LeasePool


class PoolMachine(RuleBasedStateMachine):
    """Takes and frees leases at random; after each step no slot is in two leases and none is missing."""

    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.slots = 96  # Not a power of two, so it has runs of 64 and 32.
        self.pool = LeasePool(self.slots)
        self.held: list[Lease] = []

    @rule(target=leases, order=st.integers(0, 7))
    def take(self, order: int) -> Lease | None:
        count, longest = 1 << order, self.pool.run_max
        lease = self.pool.take(count)
        assert (lease is not None) == (count <= longest), "a lease is refused exactly if no run is long enough"
        if lease is not None:
            assert lease.count == count
            assert lease.base % count == 0
            self.held.append(lease)
        return lease

    @rule(lease=consumes(leases))
    def give_back(self, lease: Lease | None) -> None:
        if lease is not None and lease in self.held:
            self.pool.give_back(lease)
            self.held.remove(lease)

    @invariant()
    def leases_are_disjoint_and_the_rest_is_free(self) -> None:
        slots = [slot for lease in self.held for slot in range(lease.base, lease.base + lease.count)]
        assert len(slots) == len(set(slots)), "two leases overlap"
        assert all(0 <= slot < self.slots for slot in slots)
        assert self.pool.slots_free == self.slots - len(slots)

    @invariant()
    def adjacent_free_runs_have_merged(self) -> None:
        if not self.held:
            assert self.pool.run_max == 64


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPool = PoolMachine.TestCase


def take(pool: LeasePool, count: int) -> Lease:
    lease = pool.take(count)
    assert lease is not None
    return lease


def test_adjacent_free_runs_merge_in_any_order() -> None:
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


def test_a_lease_can_be_freed_once() -> None:
    pool = LeasePool(16)
    lease = take(pool, 4)
    pool.give_back(lease)
    with pytest.raises(ValueError, match="not leased"):
        pool.give_back(lease)


@pytest.mark.parametrize("count", [0, -1, 3, 6])
def test_the_size_of_a_lease_is_a_power_of_two(count: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        LeasePool(16).take(count)


def test_a_switch_without_slots_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing to lease"):
        LeasePool(0)


def test_stored_leases_can_be_taken_again_and_the_rest_is_free() -> None:
    before, after = LeasePool(96), LeasePool(96)
    leases = [take(before, count) for count in (16, 4, 32, 8)]
    for lease in reversed(leases):
        after.take_again(dataclasses.replace(lease))
    assert after.slots_free == before.slots_free
    assert after.run_max == before.run_max
    assert take(after, 4).base == take(before, 4).base


@pytest.mark.parametrize(("base", "count"), [(0, 16), (8, 4), (96, 16), (64, 64), (4, 8)])
def test_an_impossible_stored_lease_is_refused(base: int, count: int) -> None:
    pool = LeasePool(96)
    pool.take_again(Lease(0, 16))
    with pytest.raises(ValueError, match="no free run"):
        pool.take_again(Lease(base, count))
    assert pool.slots_free == 80
