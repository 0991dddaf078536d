"""Who repeats what in a move."""

from __future__ import annotations

import contextlib
import random
import struct
import sys
from collections import Counter
from types import FrameType
from typing import Any

import pytest

from wiresum.controller.jobs import positions
from wiresum.controller.jobs.positions import ROUNDS, Role
from wiresum_lab.doubles.moving import roles

NONE, BEHIND, AHEAD, REPEATS = Role


def test_where_all_are_at_the_same_position_nothing_is_repeated() -> None:  # R9.3
    assert roles([[5, 1, 0], [5, 1, 0]]) == [bytes(3)] * 2


def test_those_ahead_give_the_result_again_to_those_behind() -> None:  # R9.4
    told = roles([[7, 5], [8, 5], [7, 6]])
    assert told == [bytes([BEHIND, BEHIND]), bytes([REPEATS, BEHIND]), bytes([BEHIND, REPEATS])]


def test_rounds_wrap() -> None:
    assert roles([[ROUNDS - 1], [0]]) == [bytes([BEHIND]), bytes([REPEATS])]
    assert roles([[0], [ROUNDS - 1]]) == [bytes([REPEATS]), bytes([BEHIND])]


@pytest.mark.parametrize("said", [[[5], [7]], [[1], [0], [2]], [[3], [3], [ROUNDS - 1]], [[0], [1 << 31]]])
def test_positions_more_than_one_apart_are_none_of_a_job(said: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="in slot 0 are more than one round apart"):
        roles(said)


def test_any_positions_are_judged_as_one_slot_after_the_other_would_be() -> None:
    draw = random.Random(2)
    near = [0, 1, 2, ROUNDS - 2, ROUNDS - 1, 255, 256, 257, 65535, 65536, 1 << 24, (1 << 24) - 1, 1 << 31]
    for _ in range(3000):
        least = [draw.choice(near) for _ in range(4)]
        said = [
            [(one + draw.choice([0, 0, 1, 1, draw.choice([0, 2, 256, -1])])) % ROUNDS for one in least]
            for _ in range(3)
        ]
        fits = all(any({*column} <= {one, (one + 1) % ROUNDS} for one in column) for column in zip(*said, strict=True))
        try:
            told = roles(said)
        except ValueError:
            assert not fits
            continue
        assert fits
        for slot, column in enumerate(zip(*said, strict=True)):
            behind = next(one for one in column if {*column} <= {one, (one + 1) % ROUNDS})
            assert [mine[slot] == BEHIND for mine in told] == [len({*column}) > 1 and at == behind for at in column]


def test_all_workers_have_equally_many_slots() -> None:
    with pytest.raises(ValueError, match="equally many slots"):
        roles([[1, 1], [1]])


def test_of_those_ahead_each_has_its_share_of_the_repeats() -> None:
    slots, ahead = 300, 3
    told = roles([*[[2] * slots] * ahead, [1] * slots])
    assert [mine.count(REPEATS) for mine in told[:ahead]] == [150, 75, 75], "one of them stands in for the one behind"


def test_the_steps_do_not_grow_with_the_workers_times_the_slots() -> None:
    """The service does nothing else meanwhile: a line of the module is one step, whatever is said."""
    draw, slots = random.Random(1), 4096
    for workers in (2, 32):
        for spread in (1, 2, ROUNDS):
            said = [struct.pack(f">{slots}I", *(draw.randrange(spread) for _ in range(slots))) for _ in range(workers)]
            assert steps_of(said) < 6 * slots + 100 * workers


def steps_of(said: list[bytes]) -> int:
    steps = 0

    def count(frame: FrameType, event: str, _: object) -> Any:
        nonlocal steps
        steps += event == "line" and frame.f_code.co_filename == positions.__file__
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        with contextlib.suppress(ValueError):
            positions.roles_of(said)
    finally:
        sys.settrace(before)
    return steps


def test_of_equal_positions_nothing_is_looked_at_slot_by_slot() -> None:
    assert steps_of([bytes(4 * 4096)] * 32) < 100


def test_in_any_slot_exactly_one_worker_repeats_and_none_that_is_behind() -> None:
    draw = random.Random(1)
    for _ in range(200):
        slots, workers = draw.randrange(1, 9), draw.randrange(1, 6)
        behind = [draw.randrange(ROUNDS) for _ in range(slots)]
        said = [[(least + draw.randrange(2)) % ROUNDS for least in behind] for _ in range(workers)]
        told = roles(said)
        for slot, column in enumerate(zip(*said, strict=True)):
            of_slot = Counter(mine[slot] for mine in told)
            if len(set(column)) == 1:
                assert of_slot == {NONE: workers}
                continue
            assert of_slot[REPEATS] == 1 and of_slot[NONE] == 0
            assert [mine[slot] == BEHIND for mine in told] == [position == behind[slot] for position in column]
