"""The controller's assumptions about the program's P4Info. A program may have more objects, but none fewer or with
other ids."""

from __future__ import annotations

from finsy.proto import p4i

from wiresum.compiled import Program
from wiresum.controller.p4runtime import count
from wiresum.join.constants import SWITCH_WORKERS_MAX, THREADS_MAX

SENDER = {
    "ingress_port": ("EXACT", 9),
    "source": ("EXACT", 32),
    "source_port": ("EXACT", 16),
    "thread": ("EXACT", 4),
    "job": ("EXACT", 16),
    "key": ("EXACT", 32),
}
TABLES = {
    "own": (0x02000001, {"address": ("EXACT", 32), "destination": ("EXACT", 48)}, {"own_address", "note"}),
    "admit": (0x02000002, {**SENDER, "worker": ("EXACT", 8)}, {"admit_worker"}),
    "admit_parent_entry": (0x02000007, SENDER, {"admit_parent"}),
    "forward": (0x02000004, {"mac": ("EXACT", 48)}, {"forward_to", "flood"}),
    "deliver": (0x02000005, {"job": ("EXACT", 16), "receiver": ("EXACT", 8)}, {"deliver_to", "deliver_up"}),
}
ACTIONS = {
    "admit_worker": (
        0x01000001,
        {
            "row": 8,
            "group": 16,
            "bit_own": 32,
            "bit_others": 32,
            "has_parent": 1,
            "cell_base": 16,
            "lease_mask": 16,
            "lease_prefix": 16,
        },
    ),
    "admit_parent": (
        0x0100000E,
        {"row": 8, "group": 16, "bit_workers": 32, "cell_base": 16, "lease_mask": 16, "lease_prefix": 16},
    ),
    "deliver_up": (0x01000012, {"mac": 48, "address": 32, "port": 16, "worker": 8}),
    "deliver_to": (0x01000002, {"mac": 48, "address": 32, "port": 16}),
    "own_address": (0x01000003, {"mac": 48}),
    "note": (0x01000013, {"number": 48}),
    "forward_to": (0x01000004, {"port": 9}),
    "flood": (0x01000005, {}),
}
COUNTERS = {"packets": (0x12000001, len(count.COLUMNS)), "contributions": (0x12000002, SWITCH_WORKERS_MAX)}


def test_tables_have_the_ids_keys_and_actions_that_the_controller_uses(p4info: p4i.P4Info) -> None:
    names = {action.preamble.id: action.preamble.alias for action in p4info.actions}
    tables = {table.preamble.alias: table for table in p4info.tables}
    for alias, (number, keys, actions) in TABLES.items():
        table = tables[alias]
        assert table.preamble.id == number
        found = {k.name: (p4i.MatchField.MatchType.Name(k.match_type), k.bitwidth) for k in table.match_fields}
        assert found == keys
        writable = {names[a.id] for a in table.action_refs if a.scope != p4i.ActionRef.DEFAULT_ONLY}
        assert writable == actions


def test_actions_have_the_ids_and_parameters_that_the_controller_uses(p4info: p4i.P4Info) -> None:
    actions = {action.preamble.alias: action for action in p4info.actions}
    for alias, (number, parameters) in ACTIONS.items():
        assert actions[alias].preamble.id == number
        assert {parameter.name: parameter.bitwidth for parameter in actions[alias].params} == parameters


def test_counters_count_packets_in_rows_of_the_expected_size(p4info: p4i.P4Info, program: Program) -> None:
    counters = {counter.preamble.alias: counter for counter in p4info.counters}
    for alias, (number, columns) in (COUNTERS | {"results": (0x12000003, 1)}).items():
        assert counters[alias].preamble.id == number
        assert counters[alias].spec.unit == p4i.CounterSpec.PACKETS
        assert counters[alias].size == program.job_rows * columns


def test_registers_have_the_sizes_in_the_compile_record(p4info: p4i.P4Info, program: Program) -> None:
    (sums,) = (register for register in p4info.registers if register.preamble.alias == "sums")
    assert sums.size == 2 * program.slots
    assert sums.type_spec.bitstring.bit.bitwidth == 32 * program.lanes


def test_tables_are_large_enough_for_jobs(p4info: p4i.P4Info) -> None:
    sizes = {table.preamble.alias: table.size for table in p4info.tables}
    assert sizes["admit"] >= SWITCH_WORKERS_MAX * THREADS_MAX
    assert sizes["admit_parent_entry"] >= THREADS_MAX
    assert sizes["deliver"] >= SWITCH_WORKERS_MAX


def test_table_restrictions_exclude_invalid_entries(p4info: p4i.P4Info) -> None:
    """Counters have a column for each possible worker, and key 0 marks a cell that was never used."""
    restrictions = {
        table.preamble.alias: annotation
        for table in p4info.tables
        for annotation in table.preamble.annotations
        if annotation.startswith("@entry_restriction")
    }
    assert restrictions == {
        "admit": f'@entry_restriction("worker < {SWITCH_WORKERS_MAX} && key != 0")',
        "admit_parent_entry": '@entry_restriction("key != 0")',
    }


def test_the_p4info_gives_the_programs_name_and_version(p4info: p4i.P4Info) -> None:
    assert (p4info.pkg_info.name, p4info.pkg_info.version) == ("wiresum", "2")
    assert all(table.preamble.doc.brief for table in p4info.tables)
