"""What each worker repeats in a move, slot by slot: docs/protocol.md, section 9. Pure.

A worker's position in a slot is the round whose RESULT it does not have yet. Nobody has the RESULT of a round to which
not all have contributed, so any two workers' positions in a slot are at most one apart. Where they differ, those behind
lack a RESULT that all others have: one of the others gives it again.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from enum import IntEnum

ROUNDS = 1 << 32
"""Rounds are serial numbers of 32 bits."""


POSITION_BYTES = 4
POSITIONS_MAX = 1 << 20
"""Of all workers of a job together. A larger one stays where it is: comparing more takes seconds."""


class Role(IntEnum):
    """Of a worker in a slot, as workers are told it."""

    NONE = 0
    """All workers are at the same position."""
    BEHIND = 1
    """It lacks the RESULT."""
    AHEAD = 2
    """It has the RESULT, and another worker gives it again."""
    REPEATS = 3
    """It has the RESULT, and gives it again."""


def roles_of(positions: Sequence[bytes]) -> list[bytes]:
    """The same as `roles`, from positions as in join.proto: 4 bytes each, big-endian."""
    return roles([_unpacked(mine) for mine in positions])


def roles(positions: Sequence[Sequence[int]]) -> list[bytes]:
    """By worker, a `Role` for each slot, from each worker's position in each slot. Raises a ValueError if these cannot
    be the positions of one job's workers."""
    told = [bytearray(len(mine)) for mine in positions]
    if len({len(mine) for mine in positions}) > 1:
        raise ValueError("the workers' positions are not of equally many slots")
    for slot, column in enumerate(zip(*positions, strict=True)):
        if len(set(column)) > 1:
            for worker, role in enumerate(_roles_in(slot, column)):
                told[worker][slot] = role
    return [bytes(mine) for mine in told]


def _unpacked(positions: bytes) -> array[int]:
    """An array, since a job may have a million."""
    unpacked = array("I", positions)
    if sys.byteorder == "little":
        unpacked.byteswap()
    return unpacked


def _roles_in(slot: int, column: Sequence[int]) -> list[Role]:
    """Of each worker, in a slot where their positions differ."""
    different = set(column)
    behind = next((one for one in different if different == {one, (one + 1) % ROUNDS}), None)
    if behind is None:
        raise ValueError(f"the workers' positions in slot {slot} are more than one round apart: {sorted(different)}")
    ahead = [worker for worker, position in enumerate(column) if position != behind]
    repeats = ahead[slot % len(ahead)]  # not always the same worker: what is given again has payload
    return [
        Role.BEHIND if position == behind else Role.REPEATS if worker == repeats else Role.AHEAD
        for worker, position in enumerate(column)
    ]
