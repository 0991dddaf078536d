"""What each worker repeats in a move, slot by slot: docs/protocol.md, section 9. Pure.

A worker's position in a slot is the round whose RESULT it does not have yet. Nobody has the RESULT of a round to which
not all have contributed, so any two workers' positions in a slot are at most one apart. Where they differ, those behind
lack a RESULT that all others have: one of the others gives it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum

ROUNDS = 1 << 32
"""Rounds are serial numbers of 32 bits."""


POSITION_BYTES = 4
ROLE_BYTES = 1
"""What a worker says of a slot, and what it is told."""
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
    """By worker, a `Role` for each slot, from each worker's position in each slot, as 4 bytes, big-endian. Raises a
    ValueError if these cannot be the positions of one job's workers.

    A job may have a million, so all slots of a worker are compared at once: they are lanes of one large number.
    """
    first = positions[0]
    slots = len(first) // POSITION_BYTES
    if any(len(mine) != len(first) for mine in positions):
        raise ValueError("the workers' positions are not of equally many slots")
    if all(mine == first for mine in positions):
        return [bytes(slots)] * len(positions)
    before_first = {mine: _minus(mine, first) for mine in set(positions)}
    further = _any(before_first.values(), _ONE_MORE)
    less = _any(before_first.values(), _ONE_LESS)
    apart = _any(before_first.values(), _FAR) | further & less
    if apart:
        slot = slots - (apart.bit_length() + 7) // 8
        there = sorted({_at(mine, slot) for mine in positions})
        raise ValueError(f"the workers' positions in slot {slot} are more than one round apart: {there}")
    differ = (further | less << 1).to_bytes(slots, "big")
    by_positions = {mine: _roles(minus, differ) for mine, minus in before_first.items()}
    return _with_repeats([by_positions[mine] for mine in positions], differ)


_EQUAL, _ONE_MORE, _ONE_LESS, _FAR = range(4)
"""How a position is to the first worker's, as a byte for each slot."""
_HIGH_BYTE_OF = bytes([0, 0, *[1] * 253, 255])
"""What the other bytes of a difference of 0, 1 or -1 are, by its last one; 1, which no byte is: it is none of these."""
_KIND_OF = bytes([_EQUAL, _ONE_MORE, *[_FAR] * 253, _ONE_LESS])
_FAR_IF_WRONG = bytes([0, *[_FAR] * 255])
_ROLE_OF = bytes(
    {
        (_EQUAL, _ONE_MORE): Role.BEHIND,
        (_ONE_MORE, _ONE_MORE): Role.AHEAD,
        (_EQUAL, _ONE_LESS): Role.AHEAD,
        (_ONE_LESS, _ONE_LESS): Role.BEHIND,
    }.get((code >> 2, code & 3), Role.NONE)
    for code in range(256)
)
"""By how a worker is to the first one, and how others in that slot are."""


def _minus(mine: bytes, first: bytes) -> bytes:
    """How each position is to the other one."""
    slots = len(mine) // POSITION_BYTES
    top = int.from_bytes(b"\x80\0\0\0" * slots, "big")
    a, b = int.from_bytes(mine, "big"), int.from_bytes(first, "big")
    difference = ((a | top) - (b & ~top)) ^ ((a ^ ~b) & top)  # no lane borrows from the next
    lanes = difference.to_bytes(len(mine), "big")
    last = lanes[3::4]
    high = int.from_bytes(last.translate(_HIGH_BYTE_OF), "big")
    wrong = 0
    for place in range(3):
        wrong |= int.from_bytes(lanes[place::4], "big") ^ high
    far = int.from_bytes(wrong.to_bytes(slots, "big").translate(_FAR_IF_WRONG), "big")
    return (int.from_bytes(last.translate(_KIND_OF), "big") | far).to_bytes(slots, "big")


def _any(kinds: Iterable[bytes], wanted: int) -> int:
    """A byte for each slot: 1 where any of them is so."""
    table = bytes(kind == wanted for kind in range(256))
    found = 0
    for each in kinds:
        found |= int.from_bytes(each.translate(table), "big")
    return found


def _roles(kinds: bytes, differ: bytes) -> bytes:
    """Of a worker. `differ`: how others are, in each slot."""
    codes = int.from_bytes(kinds, "big") << 2 | int.from_bytes(differ, "big")
    return codes.to_bytes(len(kinds), "big").translate(_ROLE_OF)


def _with_repeats(told: Sequence[bytes], differ: bytes) -> list[bytes]:
    """In each slot the first of those ahead repeats, counted from another worker in each: what is given again has
    payload."""
    slots, all_told = len(differ), b"".join(told)
    result = [bytearray(mine) for mine in told]
    ahead, repeats = bytes([Role.AHEAD]), int(Role.REPEATS)  # not as enums, since there may be a million
    for slot, differs in enumerate(differ):
        if differs:
            column = all_told[slot::slots]
            rank = column.find(ahead, slot % len(column))
            result[rank if rank >= 0 else column.find(ahead)][slot] = repeats
    return [bytes(mine) for mine in result]


def _at(positions: bytes, slot: int) -> int:
    return int.from_bytes(positions[POSITION_BYTES * slot : POSITION_BYTES * (slot + 1)], "big")
