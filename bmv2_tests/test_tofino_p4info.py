"""To a controller the Tofino program looks like bmv2's: same tables, keys, actions, counters and ids."""

from __future__ import annotations

from typing import Any

import pytest

from bmv2_tests.tna_interpreter.program import Program
from bmv2_tests.tna_interpreter.switch import Switch
from bmv2_tests.tofino_network import MAIN
from wiresum import compiled

HASHED = 0x00FFFF00
"""These bits are zero in the numbers of ids.p4, and rarely in ids that a compiler generates."""

Described = dict[str, Any]
"""Descriptions by name, with everything that a controller needs."""


@pytest.fixture(scope="module")
def v1model() -> Any:
    """The P4Info of the bmv2 program."""
    protobuf = pytest.importorskip("google.protobuf.text_format", reason="needs: pip install '.[controller]'")
    messages = pytest.importorskip("finsy.proto", reason="needs: pip install '.[controller]'")
    return protobuf.Parse(compiled.load("v1model").p4info, messages.p4i.P4Info())


@pytest.fixture(scope="module", params=[1, 2], ids=["tofino1", "tofino2"])
def tofino(request: pytest.FixtureRequest) -> Program:
    return Switch(MAIN, generation=request.param).program


def p4info_tables(p4info: Any) -> Described:
    actions = {action.preamble.id: action.preamble.name for action in p4info.actions}
    match_type = p4info.tables[0].match_fields[0].MatchType.Name
    return {
        table.preamble.name: {
            "number": table.preamble.id,
            "key": [(field.name, field.bitwidth, match_type(field.match_type)) for field in table.match_fields],
            "actions": {actions[reference.id].removeprefix(".") for reference in table.action_refs},
            "size": table.size,
        }
        for table in p4info.tables
    }


def program_tables(program: Program) -> Described:
    return {
        name: {
            "number": table.number,
            "key": [(field.name, field.type.width, "EXACT" if field.exact else "TERNARY") for field in table.key],
            "actions": set(table.actions),
            "size": table.size,
        }
        for name, table in program.tables.items()
        if table.number
    }


def test_tables_match_those_of_bmv2(tofino: Program, v1model: Any) -> None:
    expected, found = p4info_tables(v1model), program_tables(tofino)
    assert expected.keys() == found.keys()
    for name, table in expected.items():
        table["actions"] = {action.rpartition(".")[2] for action in table["actions"]}
        if name == "verdict":  # All its entries are constant, so no controller needs its size.
            table["size"] = found[name]["size"]
        assert found[name] == table, name


def test_actions_match_those_of_bmv2(tofino: Program, v1model: Any) -> None:
    expected = {
        action.preamble.name: (action.preamble.id, [(p.name, p.bitwidth) for p in action.params])
        for action in v1model.actions
        if action.preamble.id & HASHED == 0
    }
    found = {
        action.name: (action.number, [(name, type_.width) for name, type_ in action.parameters.items()])
        for table in tofino.tables.values()
        for action in table.actions.values()
        if action.number
    }
    assert found == expected


def test_counters_match_those_of_bmv2(tofino: Program, v1model: Any) -> None:
    expected = {counter.preamble.name: (counter.preamble.id, counter.size) for counter in v1model.counters}
    assert {name: (counter.number, counter.size) for name, counter in tofino.counters.items()} == expected
