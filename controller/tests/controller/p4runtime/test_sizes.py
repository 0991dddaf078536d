"""The controller takes a program's sizes from its P4Info, and refuses what it could not write into."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from finsy.proto import p4i

from wiresum.controller.p4runtime import PipelineError
from wiresum.controller.p4runtime.sizes import Sizes, ours, sizes_of

WORDS_OF_PAIR = 2


def copy() -> p4i.P4Info:
    info = p4i.P4Info()
    info.CopyFrom(ours())
    return info


def named(objects: Any, alias: str) -> Any:
    (found,) = (each for each in objects if each.preamble.alias == alias)
    return found


def tofino(cells: int = 8192, pairs: int = 32) -> p4i.P4Info:
    """As p4c makes it of p4src/tna: a structure in most registers, and a register for each pair of words."""
    info = copy()
    named(info.tables, "forward").preamble.alias = "pipe.forward"  # since an action has that name, too
    del info.registers[:]
    for structure, members in {"pair_t": ("first", "second"), "round_cell_t": ("awaited", "owner")}.items():
        for member in members:
            added = info.type_info.structs[structure].members.add(name=member)
            added.type_spec.bitstring.bit.bitwidth = 32
    info.registers.add(size=cells, preamble={"name": "Ingress.cells.rounds"}).type_spec.struct.name = "round_cell_t"
    for name, width in {"bitmaps": 32, "exponents": 8, "seen_data": 1}.items():
        register = info.registers.add(size=cells, preamble={"name": f"Ingress.cells.{name}"})
        register.type_spec.bitstring.bit.bitwidth = width
    for pair in range(pairs):
        name = f"Ingress.lanes.pair_{2 * pair:02o}.sums"
        info.registers.add(size=cells, preamble={"name": name}).type_spec.struct.name = "pair_t"
    return info


def test_the_sizes_of_both_programs_come_from_p4info() -> None:
    assert sizes_of(ours(), "bmv2") == sizes_of(tofino(), "tofino") == Sizes(lanes=64, slots=4096, job_rows=256)


@pytest.mark.parametrize("slots", [1, 1024, 4096, 5000, 32768])
def test_a_program_with_another_number_of_slots_is_leased_as_it_is(slots: int) -> None:
    info = copy()
    for register in info.registers:
        register.size = 2 * slots
    assert sizes_of(info, "").slots == slots
    assert sizes_of(tofino(cells=2 * slots), "").slots == slots


@pytest.mark.parametrize("lanes", [8, 32, 64])
def test_a_program_with_other_packets_is_used_as_it_is(lanes: int) -> None:
    info = copy()
    named(info.registers, "sums").type_spec.bitstring.bit.bitwidth = 32 * lanes
    assert sizes_of(info, "").lanes == lanes
    assert sizes_of(tofino(pairs=lanes // WORDS_OF_PAIR), "").lanes == lanes


@pytest.mark.parametrize("rows", [2, 100, 256])
def test_a_program_with_another_number_of_jobs_is_used_as_it_is(rows: int) -> None:
    info = copy()
    for name, columns in {"packets": 8, "contributions": 32, "results": 1}.items():
        named(info.counters, name).size = columns * rows
    assert sizes_of(info, "").job_rows == rows


def scaled(objects: str, alias: str, numerator: int, denominator: int = 1) -> Callable[[p4i.P4Info], None]:
    def spoil(info: p4i.P4Info) -> None:
        spoilt = named(getattr(info, objects), alias)
        spoilt.size = spoilt.size * numerator // denominator

    return spoil


def all_registers(cells: int) -> Callable[[p4i.P4Info], None]:
    def spoil(info: p4i.P4Info) -> None:
        for register in info.registers:
            register.size = cells

    return spoil


def all_counters(rows: int) -> Callable[[p4i.P4Info], None]:
    def spoil(info: p4i.P4Info) -> None:
        for counter in info.counters:
            counter.size = counter.size // 256 * rows

    return spoil


def width(register: str, bits: int) -> Callable[[p4i.P4Info], None]:
    def spoil(info: p4i.P4Info) -> None:
        named(info.registers, register).type_spec.bitstring.bit.bitwidth = bits

    return spoil


def without(objects: str, alias: str) -> Callable[[p4i.P4Info], None]:
    def spoil(info: p4i.P4Info) -> None:
        getattr(info, objects).remove(named(getattr(info, objects), alias))

    return spoil


def without_key(table: str, key: str) -> Callable[[p4i.P4Info], None]:
    def spoil(info: p4i.P4Info) -> None:
        fields = named(info.tables, table).match_fields
        fields.remove(next(field for field in fields if field.name == key))

    return spoil


def no_registers(info: p4i.P4Info) -> None:
    del info.registers[:]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (all_registers(65538), "32769 slots have 65538 cells, and a cell's number has 16 bits: at most 32768 slots"),
        (all_registers(8191), "registers have 8191 cells, and a slot has 2"),
        (all_registers(0), "registers have 0 cells, and a slot has 2"),
        (no_registers, "lists no registers, so how many slots the switch has is unknown"),
        (width("sums", 2047), "registers 'sums' have 2047 bits, no whole words of 32"),
        (width("bitmaps", 16), "register 'bitmaps' has 16 bits, not 32, one for each worker"),
        (without("registers", "sums"), "registers 'sums' have 0 bits"),
        (without("registers", "bitmaps"), "register 'bitmaps' has 0 bits, not 32"),
        (all_counters(257), "counter 'packets' has 257 rows, not 2 to 256: .*JOB_ROWS"),
        (all_counters(1), "counter 'packets' has 1 rows, not 2 to 256"),
        (scaled("counters", "packets", 2047, 2048), "counter 'packets' has 2047 entries, no whole rows of 8"),
        (scaled("counters", "packets", 2), "counter 'contributions' has 8192 entries, not 16384: .* 512 rows"),
        (scaled("counters", "contributions", 1, 2), "counter 'contributions' has 4096 entries, not 8192"),
        (scaled("counters", "results", 2), "counter 'results' has 512 entries, not 256"),
        (without("counters", "results"), "has no counter 'results': this is not our program, or p4c was called"),
        (without_key("own", "destination"), "has no key 'destination' of table 'own': this is not our program"),
        (without("tables", "deliver"), "has no key 'job' of table 'deliver': this is not our program"),
    ],
)
def test_sizes_that_do_not_fit_each_other_are_refused(spoil: Callable[[p4i.P4Info], None], message: str) -> None:
    info = copy()
    spoil(info)
    with pytest.raises(PipelineError, match=rf"^build/info\.txtpb: .*{message}"):
        sizes_of(info, "build/info.txtpb")


def registers() -> Iterator[Any]:
    for make in (copy, tofino):
        for index, register in enumerate(make().registers):
            yield pytest.param(make, index, id=f"{make.__name__}-{register.preamble.name}")


@pytest.mark.parametrize(("make", "index"), list(registers()))
def test_each_register_has_as_many_cells_as_the_others(make: Callable[[], p4i.P4Info], index: int) -> None:
    info = make()
    info.registers[index].size = 2048
    name = info.registers[max(index, 1)].preamble.name
    with pytest.raises(PipelineError, match=rf"register '{name}' has \d+ cells, and '.*' has \d+: all have as many"):
        sizes_of(info, "")


def writable() -> Iterator[Any]:
    """Every key and parameter of what the controller writes."""
    actions = {action.preamble.id: action for action in ours().actions}
    for table in ours().tables:
        if not table.is_const_table:
            for field in table.match_fields:
                yield pytest.param("tables", table.preamble.alias, "match_fields", field.name)
            for reference in table.action_refs:
                action = actions[reference.id]
                for parameter in action.params:
                    yield pytest.param("actions", action.preamble.alias, "params", parameter.name)


@pytest.mark.parametrize(("objects", "alias", "fields", "name"), list(writable()))
def test_each_width_of_what_is_written_is_compared(objects: str, alias: str, fields: str, name: str) -> None:
    info = copy()
    (field,) = (each for each in getattr(named(getattr(info, objects), alias), fields) if each.name == name)
    had = field.bitwidth
    field.bitwidth += 1
    with pytest.raises(PipelineError, match=rf"'{name}' of .* '{alias}' has {had + 1} bits.*, not {had} bits"):
        sizes_of(info, "")


def test_a_table_without_the_action_that_is_written_is_refused() -> None:
    info = copy()
    del named(info.tables, "forward").action_refs[0]
    with pytest.raises(PipelineError, match="has no action 'forward_to' of table 'forward'"):
        sizes_of(info, "")
