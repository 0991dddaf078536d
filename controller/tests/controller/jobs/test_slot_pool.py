from __future__ import annotations

import dataclasses

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from wiresum.controller.jobs.slot_pool import SlotPool, SlotRange


class PoolMachine(RuleBasedStateMachine):
    """Takes and frees slots at random; after each step no slot is taken twice and none is missing."""

    taken = Bundle("taken")

    def __init__(self) -> None:
        super().__init__()
        self.slots = 96  # Not a power of two, so it has runs of 64 and 32.
        self.pool = SlotPool(self.slots)
        self.held: list[SlotRange] = []

    @rule(target=taken, order=st.integers(0, 7))
    def take(self, order: int) -> SlotRange | None:
        count, longest = 1 << order, self.pool.run_max
        found = self.pool.take(count)
        assert (found is not None) == (count <= longest), "they are refused exactly if no run is long enough"
        if found is not None:
            assert found.count == count
            assert found.base % count == 0
            self.held.append(found)
        return found

    @rule(found=consumes(taken))
    def give_back(self, found: SlotRange | None) -> None:
        if found is not None and found in self.held:
            self.pool.give_back(found)
            self.held.remove(found)

    @invariant()
    def those_taken_are_disjoint_and_the_rest_is_free(self) -> None:
        slots = [slot for each in self.held for slot in range(each.base, each.base + each.count)]
        assert len(slots) == len(set(slots)), "two overlap"
        assert all(0 <= slot < self.slots for slot in slots)
        assert self.pool.slots_free == self.slots - len(slots)

    @invariant()
    def adjacent_free_runs_have_merged(self) -> None:
        if not self.held:
            assert self.pool.run_max == 64


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestPool = PoolMachine.TestCase


def take(pool: SlotPool, count: int) -> SlotRange:
    found = pool.take(count)
    assert found is not None
    return found


def test_adjacent_free_runs_merge_in_any_order() -> None:
    pool = SlotPool(64)
    taken = [take(pool, 8) for _ in range(8)]
    assert pool.run_max == 0
    for index in (3, 0, 7, 5, 1, 2, 6, 4):
        pool.give_back(taken[index])
    assert pool.run_max == 64


def test_the_shortest_run_that_fits_is_split() -> None:
    pool = SlotPool(64 + 8)
    assert take(pool, 8).base == 64
    assert pool.run_max == 64


def test_slots_can_be_freed_once() -> None:
    pool = SlotPool(16)
    found = take(pool, 4)
    pool.give_back(found)
    with pytest.raises(ValueError, match="not taken"):
        pool.give_back(found)


@pytest.mark.parametrize("count", [0, -1, 3, 6])
def test_their_count_is_a_power_of_two(count: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        SlotPool(16).take(count)


def test_a_switch_without_slots_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing to give"):
        SlotPool(0)


def test_stored_slots_can_be_taken_again_and_the_rest_is_free() -> None:
    before, after = SlotPool(96), SlotPool(96)
    taken = [take(before, count) for count in (16, 4, 32, 8)]
    for found in reversed(taken):
        after.take_again(dataclasses.replace(found))
    assert after.slots_free == before.slots_free
    assert after.run_max == before.run_max
    assert take(after, 4).base == take(before, 4).base


@pytest.mark.parametrize(("base", "count"), [(0, 16), (8, 4), (96, 16), (64, 64), (4, 8)])
def test_impossible_stored_slots_are_refused(base: int, count: int) -> None:
    pool = SlotPool(96)
    pool.take_again(SlotRange(0, 16))
    with pytest.raises(ValueError, match="no free run"):
        pool.take_again(SlotRange(base, count))
    assert pool.slots_free == 80
