"""What each worker resends in a move, slot by slot: docs/protocol.md, section 9. Pure.

A worker's position in a slot is the round whose RESULT it does not have yet. Nobody has the RESULT of a round to which
not all have contributed, so any two workers' positions in a slot are at most one apart. Where they differ, the workers
behind lack a RESULT that all others have: one of the others sends it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum

ROUNDS = 1 << 32
"""Rounds are serial numbers of 32 bits."""


POSITION_BYTES = 4
ROLE_BYTES = 1
"""Bytes of a position and of a role: what a worker says of a slot, and what it is told."""
POSITIONS_MAX = 1 << 20
"""How many positions all workers of a job may have together. A larger job does not move: comparing more takes
seconds."""


class Role(IntEnum):
    """What a worker does in a slot when its job continues."""

    NONE = 0
    """All workers are at the same position."""
    BEHIND = 1
    """The worker lacks the RESULT."""
    AHEAD = 2
    """The worker has the RESULT, and another worker sends it again."""
    REPEATS = 3
    """The worker has the RESULT, and sends it again."""


def roles_of(positions: Sequence[bytes]) -> list[bytes]:
    """Returns, for each worker, a `Role` for each slot. `positions`: each worker's position in each slot, as 4 bytes,
    big-endian. Raises a `ValueError` if these cannot be the positions of one job's workers.

    A job may have a million positions, so all slots of a worker are compared at once: they are lanes of one large
    number.
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
"""How a position relates to the first worker's, as a byte for each slot."""
_HIGH_BYTE_OF = bytes([0, 0, *[1] * 253, 255])
"""The higher bytes of a difference of 0, 1 or -1, by its lowest byte; for any other lowest byte 1, which no higher byte
of these differences is."""
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
"""A worker's role, by how its position and the differing position of others relate to the first worker's."""


def _minus(mine: bytes, first: bytes) -> bytes:
    """Compares each position with the first worker's: a byte for each slot."""
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
    """A byte for each slot, as one number: 1 where any worker's comparison is `wanted`."""
    table = bytes(kind == wanted for kind in range(256))
    found = 0
    for each in kinds:
        found |= int.from_bytes(each.translate(table), "big")
    return found


def _roles(kinds: bytes, differ: bytes) -> bytes:
    """A worker's role in each slot. `kinds`: how its position relates to the first worker's; `differ`: how others
    do."""
    codes = int.from_bytes(kinds, "big") << 2 | int.from_bytes(differ, "big")
    return codes.to_bytes(len(kinds), "big").translate(_ROLE_OF)


def _with_repeats(told: Sequence[bytes], differ: bytes) -> list[bytes]:
    """Chooses who resends in each slot: the first worker ahead, counted from another worker in each slot, since what is
    resent has payload."""
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
