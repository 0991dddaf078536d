"""What a driver sets up between the pipelines, as files for the harness: recirculation, and multicast groups.

A group in the packet replication engine's memories is a tree: a list of level-1 nodes, one for each member, with the
instance that its copy carries (the member's index in the job), and below each a level-2 node, which says the port. A
node fills a line of 16 bytes, but nodes are counted in halves of lines. The table of groups has where each list begins;
0 is none. Before all that, the ingress deparser asks a table which pipes have members of a group at all: here always
pipe 0, whose registers and memories these are.
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
"""Types of node: with an instance and another node behind it; with a bit for each of 64 ports."""
_LAST = 1


@dataclass(frozen=True)
class Memories:
    """Where a generation of the chip has them: addresses of lines, and of registers of 32 bits."""

    nodes: int
    groups: int
    pipes: tuple[int, ...]
    """Of the two tables, for a packet's two groups."""
    groups_in_register: int
    """Of these tables."""
    pipes_bits: int
    """Of a group's entry there, of which the lowest is pipe 0's."""
    recirculation: dict[int, int]
    """Registers and values by which the recirculation port leads back to the ingress."""


MEMORIES = {
    1: Memories(
        nodes=0x6100000000,
        groups=0x6100100000,
        pipes=(0x27F0000, 0x27F4000),
        groups_in_register=8,
        pipes_bits=4,
        recirculation={0x273D01C: 0x000F0001},  # ports 68-71: recirculate; all four channels are on
    ),
    2: Memories(
        nodes=0x6700400000,
        groups=0x6600000000,
        pipes=(0x4D00000, 0x4D10000),
        groups_in_register=4,
        pipes_bits=5,
        recirculation={},  # nothing recirculates
    ),
}


def registers(memories: Memories) -> bytes:
    """The recirculation port recirculates, where the program has one; any group may have members in pipe 0."""
    entry = sum(1 << memories.pipes_bits * group for group in range(memories.groups_in_register))
    words = GROUPS // memories.groups_in_register
    pipes = {base + 4 * word: entry for base in memories.pipes for word in range(words)}
    return b"".join(_REGISTER.pack(b"\0\0\0r", *pair) for pair in (memories.recirculation | pipes).items())


def tree(memories: Memories, group: int, members: Sequence[tuple[int, int]]) -> bytes:
    """The nodes of a group whose members are pairs of port and instance; each group has lines of its own."""
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
    """The line of the table of groups that this group is in."""
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
