"""Test cases that p4testgen finds in the v1model program, played to bmv2 and to the Tofino program, which has another
parser, other cells and another deparser; the latter interpreted and on the vendor's model. Where p4testgen is
installed, each run also finds new cases.

To repeat the cases of a failure:

    WIRESUM_TESTGEN_SEED=17 python -m pytest bmv2_tests/test_testgen.py
"""

from __future__ import annotations

import contextlib
import os
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import finsy as fy
import pytest

from bmv2_tests import testgen
from bmv2_tests.bmv2_harness import Bmv2Harness
from bmv2_tests.testgen import CASES, Case, Frame, complaint
from bmv2_tests.tna_interpreter.switch import Switch
from bmv2_tests.tofino_model.model_switch import ModelSwitch
from bmv2_tests.tofino_network import SWITCH, TofinoSwitch, write
from wiresum.conformance.frames import PROTOCOL_UDP
from wiresum.controller.p4runtime import own
from wiresum.controller.p4runtime.desired import Entity
from wiresum.controller.p4runtime.tables import Tables
from wiresum.join.constants import FLOOD_GROUP

COMMITTED = testgen.load(CASES.read_text())
SEED = int(os.environ.get("WIRESUM_TESTGEN_SEED", random.randrange(1 << 16)))
FURTHER = 200
FIRST_PORT_TOFINO = 8


def as_tofino_sends(case: Case) -> Case:
    """The Tofino program drops frames that end within a header, which v1model passes: docs/tofino_design.md. And what
    it sends has no UDP checksum."""
    if case.truncated:
        return replace(case, expected=None)
    if (made := made_by_the_switch(case)) and made.content[23] == PROTOCOL_UDP:
        return replace(case, expected=Frame(made.port, made.content[:40] + b"\0\0" + made.content[42:]))
    return case


def as_bmv2_sends(case: Case) -> Case:
    """bmv2 cuts off what follows a datagram, and all but the padding of ARP; p4testgen does not know `truncate`."""
    if (made := made_by_the_switch(case)) is None:
        return case
    is_ipv4 = made.content[12:14] == b"\x08\x00"
    end = 14 + int.from_bytes(made.content[16:18], "big") if is_ipv4 else 60
    return replace(case, expected=Frame(made.port, made.content[:end]))


def made_by_the_switch(case: Case) -> Frame | None:
    """The expected frame, unless it is a packet that passes."""
    return None if case.expected is None or case.expected.content == case.packet.content else case.expected


class OnTofino:
    def __init__(self, switch: TofinoSwitch) -> None:
        self.insert, self.replicate = switch.insert, switch.replicate
        self._switch = switch

    def fresh(self, slots: int) -> int:
        slot = self._switch.fresh(slots)
        for entry in own.entries(str(SWITCH.address), SWITCH.mac.hex(":")):  # `late` sends to this address
            write(self._switch, entry)
        return slot

    def play(self, frame: Frame) -> list[Frame]:
        copies = [*self._switch.receive(frame.port, frame.content), *self._switch.late()]
        return [Frame(copy.port, copy.frame) for copy in copies]


class OnBmv2:
    """Keeps the switch's address, for pings, and its hosts; adds the entries of the current case."""

    def __init__(self, harness: Bmv2Harness, tables: Tables) -> None:
        self._harness, self._tables = harness, tables
        self._entities: list[Entity] = []

    def fresh(self, slots: int) -> int:
        self._tables.delete("the last case's entries", self._entities)
        self._entities = []
        lease = self._harness.leases.take(slots)
        assert lease is not None, "the switch has slots"
        return lease.base

    def insert(self, table: str, matches: Mapping[str, int], action: str, parameters: Mapping[str, int]) -> None:
        self._write(fy.P4TableEntry(table, match=fy.Match(**matches), action=fy.Action(action, **parameters)))

    def replicate(self, group: int, members: Sequence[tuple[int, int]]) -> None:
        entry = fy.P4MulticastGroupEntry(group, replicas=list(members))
        if group == FLOOD_GROUP:
            self._tables.modify("where it floods to", [entry])
        else:
            self._write(entry)

    def play(self, frame: Frame) -> list[Frame]:
        return [Frame(port, content) for port, content in self._harness.exchange([(frame.port, frame.content)])]

    def _write(self, entity: Entity) -> None:
        self._tables.insert("an entry of the case", [entity])
        self._entities.append(entity)


@pytest.fixture(scope="module")
def on_bmv2(harness: Bmv2Harness) -> Iterator[OnBmv2]:
    with contextlib.closing(harness.client()) as client:
        client.wait_ready()
        yield OnBmv2(harness, Tables(client, harness.program))


@pytest.fixture(scope="module")
def further() -> list[Case]:
    """A test that uses this is skipped where p4testgen is not installed."""
    return testgen.load(testgen.numbered(testgen.random_paths(SEED, FURTHER)))


@pytest.mark.parametrize("case", COMMITTED, ids=str)
def test_the_tofino_program_does_what_the_v1model_program_says(case: Case, switch: Switch) -> None:
    assert complaint(as_tofino_sends(case), OnTofino(switch), FIRST_PORT_TOFINO) == ""


@pytest.mark.parametrize("case", COMMITTED, ids=str)
def test_the_compiled_tofino_program_does_what_the_v1model_program_says(case: Case, tofino_model: ModelSwitch) -> None:
    assert complaint(as_tofino_sends(case), OnTofino(tofino_model), FIRST_PORT_TOFINO) == ""


@pytest.mark.parametrize("case", COMMITTED, ids=str)
def test_bmv2_does_what_its_program_says(case: Case, on_bmv2: OnBmv2) -> None:
    assert complaint(as_bmv2_sends(case), on_bmv2) == ""


def test_the_tofino_program_does_what_the_v1model_program_says_in_new_cases(
    further: list[Case], switch: Switch
) -> None:
    wrong = [
        text for case in further if (text := complaint(as_tofino_sends(case), OnTofino(switch), FIRST_PORT_TOFINO))
    ]
    assert not wrong, f"WIRESUM_TESTGEN_SEED={SEED}\n" + "\n".join(wrong)


def test_bmv2_does_what_its_program_says_in_new_cases(further: list[Case], on_bmv2: OnBmv2) -> None:
    wrong = [text for case in further if (text := complaint(as_bmv2_sends(case), on_bmv2))]
    assert not wrong, f"WIRESUM_TESTGEN_SEED={SEED}\n" + "\n".join(wrong)


def test_the_committed_cases_use_every_table_and_action_that_a_controller_writes() -> None:
    used = {(entry.table, entry.action) for case in COMMITTED for entry in case.entries}
    assert used >= {
        ("own", "own_address"),
        ("admit", "admit_worker"),
        ("admit_parent_entry", "admit_parent"),
        ("deliver", "deliver_to"),
        ("deliver", "deliver_up"),
        ("forward", "forward_to"),
    }
    assert sum(case.expected is not None for case in COMMITTED) >= 10


def test_most_generated_paths_give_a_case(further: list[Case]) -> None:
    assert len(further) >= FURTHER // 2
    assert any(case.expected for case in further)


def test_a_wrong_result_is_reported(switch: Switch) -> None:
    case = next(case for case in COMMITTED if case.expected)
    assert case.expected is not None
    content = bytes([case.expected.content[0] ^ 1]) + case.expected.content[1:]
    other = replace(case, expected=Frame(case.expected.port, content))
    told = complaint(other, OnTofino(switch), FIRST_PORT_TOFINO)
    assert re.search(rf"case {case.number}:\n  came   port \d+: \w+\n  wanted port \d+: {content.hex()}", told)
