"""The parts of the vendor's model setup that can be tested without the model: multicast memories, and mutants."""

from __future__ import annotations

import struct

import pytest

from bmv2_tests.tofino_model.mutants import mutants
from bmv2_tests.tofino_model.traffic_manager import MEMORIES, Memories, directory, registers, tree

GROUPS = {5: [(9, 0), (63, 1), (9, 2)], 6: [(0, 0xFF)], 512: [(8, 0xFFFF)]}


@pytest.fixture
def memories(generation: int) -> Memories:
    return MEMORIES[generation]


def lines(content: bytes) -> dict[int, int]:
    """The contents of a file for the harness: addresses of lines, and their 128 bits."""
    written = {}
    while content:
        kind, address, width, count = struct.unpack_from("<4sQII", content)
        assert (kind, width) == (b"\0\0\0d", 128)
        words = struct.unpack_from(f"<{2 * count}Q", content, 20)
        written |= {address + index: words[2 * index] | words[2 * index + 1] << 64 for index in range(count)}
        content = content[20 + 16 * count :]
    return written


def bits(line: int, shift: int, width: int) -> int:
    return line >> shift & (1 << width) - 1


def members(memories: Memories, memory: dict[int, int], group: int) -> list[tuple[int, int]]:
    """Follows a group's tree as the chip does; gives port and instance of each copy."""
    node = bits(memory.get(memories.groups + group // 4, 0), 20 * (group % 4), 20)
    found = []
    while node:
        upper = memory[memories.nodes + node // 2]
        lower = memory[memories.nodes + bits(upper, 24, 20) // 2]
        assert (bits(upper, 0, 4), bits(lower, 0, 4), bits(lower, 4, 2), bits(lower, 7, 1)) == (1, 9, 0, 1)
        found += [(port, bits(upper, 48, 16)) for port in range(64) if bits(lower, 8 + port, 1)]
        node = bits(upper, 4, 20)
    return found


def test_the_tree_of_each_group_leads_to_its_members(memories: Memories) -> None:
    memory: dict[int, int] = {}
    for group, of_group in GROUPS.items():
        memory |= lines(tree(memories, group, of_group)) | lines(directory(memories, GROUPS, group))
    assert {group: members(memories, memory, group) for group in GROUPS} == GROUPS
    assert members(memories, memory, 4) == members(memories, memory, 7) == []


def test_removing_a_group_leaves_its_neighbours(memories: Memories) -> None:
    memory = lines(tree(memories, 6, GROUPS[6])) | lines(directory(memories, {6: GROUPS[6]}, 5))
    assert members(memories, memory, 5) == []
    assert members(memories, memory, 6) == GROUPS[6]


@pytest.mark.parametrize(("generation", "in_register", "width"), [(1, 8, 4), (2, 4, 5)], ids=["tofino1", "tofino2"])
def test_every_group_may_have_members_in_pipe_0_only(generation: int, in_register: int, width: int) -> None:
    memories = MEMORIES[generation]
    written = list(struct.iter_unpack("<4sII", registers(memories)))
    assert {kind for kind, _, _ in written} == {b"\0\0\0r"}
    values = {address: value for _, address, value in written}
    for table in memories.pipes:
        for group in range(1024):
            register = values[table + group // in_register * 4]
            assert bits(register, width * (group % in_register), width) == 1


def test_each_mutant_differs_by_one_instruction() -> None:
    assembly = """parser ingress:
      - set B1, 2
stage 0 ingress:
      - add W1, W2, W3
      - set B1, 2
      - set B1, W3
  - name: x
"""
    made = list(mutants(assembly))
    assert [(mutant.line, mutant.after) for mutant in made] == [(3, "sub W1, W2, W3"), (4, "set B1, 3"), (5, "")]
    for mutant in made:
        pairs = zip(assembly.splitlines(), mutant.of(assembly).splitlines(), strict=True)
        assert [number for number, (old, new) in enumerate(pairs) if old != new] == [mutant.line]
