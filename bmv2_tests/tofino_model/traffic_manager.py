"""The driver's setup between the pipelines, as files for the harness: recirculation, and multicast groups.

A group in the memories of the packet replication engine is a tree. It has a list of level-1 nodes, one for each member,
with the instance of its copy (the member's index in the job). Below each is a level-2 node with the port. A node fills
a line of 16 bytes, but nodes are counted in half lines. The table of groups has the start of each list, or 0. Before
that, the ingress deparser looks up which pipes have members of a group: here always pipe 0.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

GROUPS = 1024
MEMBERS_MAX = 64
LINE = struct.Struct("<QQ")

_REGISTER = struct.Struct("<4sII")
_MEMORY = struct.Struct("<4sQII")
_GROUPS_IN_LINE = 4
_LEVEL_1, _LEVEL_2 = 1, 9
"""Types of node: 1 has an instance and a following node, and 9 has a bit for each of 64 ports."""
_LAST = 1


@dataclass(frozen=True)
class Memories:
    """Addresses of memory lines and of 32-bit registers in a generation of the chip."""

    nodes: int
    groups: int
    pipes: tuple[int, ...]
    """The two tables of pipes, one for each of a packet's two groups."""
    groups_in_register: int
    """Groups in a register of these tables."""
    pipes_bits: int
    """Bits of a group in these tables, of which the lowest is pipe 0's."""
    recirculation: dict[int, int]
    """Registers and values that make the recirculation port lead back to the ingress."""


MEMORIES = {
    1: Memories(
        nodes=0x6100000000,
        groups=0x6100100000,
        pipes=(0x27F0000, 0x27F4000),
        groups_in_register=8,
        pipes_bits=4,
        recirculation={0x273D01C: 0x000F0001},  # ports 68-71 recirculate, with all four channels
    ),
    2: Memories(
        nodes=0x6700400000,
        groups=0x6600000000,
        pipes=(0x4D00000, 0x4D10000),
        groups_in_register=4,
        pipes_bits=5,
        recirculation={},  # no port recirculates
    ),
}


def registers(memories: Memories) -> bytes:
    """Sets up recirculation, where the program uses it, and lets all groups have members in pipe 0."""
    entry = sum(1 << memories.pipes_bits * group for group in range(memories.groups_in_register))
    words = GROUPS // memories.groups_in_register
    pipes = {base + 4 * word: entry for base in memories.pipes for word in range(words)}
    return b"".join(_REGISTER.pack(b"\0\0\0r", *pair) for pair in (memories.recirculation | pipes).items())


def tree(memories: Memories, group: int, members: Sequence[tuple[int, int]]) -> bytes:
    """The nodes of a group with these members (port, instance); each group has lines of its own."""
    if not 0 < group < GROUPS or len(members) > MEMBERS_MAX or any(not 0 <= port < 64 for port, _ in members):
        raise ValueError(f"group {group}: {members}")
    first = _first_line(group)
    lines = []
    for index, (port, instance) in enumerate(members):
        level_1 = first + 2 * index
        following = 2 * (level_1 + 2) if index + 1 < len(members) else 0
        lines.append(_LEVEL_1 | following << 4 | 2 * (level_1 + 1) << 24 | instance << 48)
        lines.append(_LEVEL_2 | _LAST << 7 | 1 << 8 + port)
    return _memory(memories.nodes + first, lines)


def directory(memories: Memories, members: Mapping[int, Sequence[tuple[int, int]]], group: int) -> bytes:
    """The line with this group in the table of groups."""
    first = group - group % _GROUPS_IN_LINE
    line = 0
    for index in range(_GROUPS_IN_LINE):
        if members.get(first + index):
            line |= 2 * _first_line(first + index) << 20 * index
    return _memory(memories.groups + first // _GROUPS_IN_LINE, [line])


def _first_line(group: int) -> int:
    return 2 * MEMBERS_MAX * group


def _memory(address: int, lines: Sequence[int]) -> bytes:
    content = b"".join(LINE.pack(line & (1 << 64) - 1, line >> 64) for line in lines)
    return _MEMORY.pack(b"\0\0\0d", address, 128, len(lines)) + content
