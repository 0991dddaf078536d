"""Who repeats what in a move."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from wiresum.controller.jobs.positions import ROUNDS, Role, roles

NONE, BEHIND, AHEAD, REPEATS = Role


def test_where_all_are_at_the_same_position_nothing_is_repeated() -> None:
    assert roles([[5, 1, 0], [5, 1, 0]]) == [bytes(3)] * 2


def test_those_ahead_give_the_result_again_to_those_behind() -> None:
    told = roles([[7, 5], [8, 5], [7, 6]])
    assert told == [bytes([BEHIND, BEHIND]), bytes([REPEATS, BEHIND]), bytes([BEHIND, REPEATS])]


def test_rounds_wrap() -> None:
    assert roles([[ROUNDS - 1], [0]]) == [bytes([BEHIND]), bytes([REPEATS])]
    assert roles([[0], [ROUNDS - 1]]) == [bytes([REPEATS]), bytes([BEHIND])]


@pytest.mark.parametrize("positions", [[[5], [7]], [[1], [0], [2]], [[3], [3], [ROUNDS - 1]], [[0], [1 << 31]]])
def test_positions_more_than_one_apart_are_none_of_a_job(positions: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="in slot 0 are more than one round apart"):
        roles(positions)


def test_all_workers_have_equally_many_slots() -> None:
    with pytest.raises(ValueError, match="equally many slots"):
        roles([[1, 1], [1]])


def test_of_those_ahead_each_has_its_share_of_the_repeats() -> None:
    slots, ahead = 300, 3
    told = roles([[1] * slots, *[[2] * slots] * ahead])
    assert [Counter(mine) for mine in told[1:]] == [{REPEATS: slots // ahead, AHEAD: slots - slots // ahead}] * ahead


def test_in_any_slot_exactly_one_worker_repeats_and_none_that_is_behind() -> None:
    draw = random.Random(1)
    for _ in range(200):
        slots, workers = draw.randrange(1, 9), draw.randrange(1, 6)
        behind = [draw.randrange(ROUNDS) for _ in range(slots)]
        positions = [[(least + draw.randrange(2)) % ROUNDS for least in behind] for _ in range(workers)]
        told = roles(positions)
        for slot, column in enumerate(zip(*positions, strict=True)):
            of_slot = Counter(mine[slot] for mine in told)
            if len(set(column)) == 1:
                assert of_slot == {NONE: workers}
                continue
            assert of_slot[REPEATS] == 1 and of_slot[NONE] == 0
            assert [mine[slot] == BEHIND for mine in told] == [position == behind[slot] for position in column]
