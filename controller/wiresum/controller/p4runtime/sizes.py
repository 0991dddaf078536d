"""The sizes that a program's P4Info says, and whether this controller can write into the program.

Anybody may compile the program with other sizes than ours (p4src/common/sizes.p4). So numbers of slots, words, rows and
entries come from the P4Info of the program that the switch is to run, and from nowhere else. What the controller's own
code relies on must be as in the program that comes with the controller: keys and parameters with their widths, and what
a counter's index is made of.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

from finsy.proto import p4i
from google.protobuf import text_format

from wiresum import compiled
from wiresum.controller.p4runtime import count
from wiresum.join.constants import FLOOD_GROUP, SWITCH_WORKERS_MAX, WORD_BYTES

CELLS_OF_SLOT = 2
CELL_BITS = 16
"""Bits of a cell's number: the width of `cell_base`, which a switch of any kind adds to the number on the wire."""
SUMS, BITMAPS = "sums", "bitmaps"
"""Registers by the last part of their names. A program for Tofino has one register `sums` for each pair of words."""
COMPILE = "compile p4src/tna of this version"


class PipelineError(ValueError):
    """Raised if a compiled program cannot be used: the text says which file, and why."""


class Sizes(NamedTuple):
    lanes: int
    """32-bit words of every packet's payload."""
    slots: int
    job_rows: int
    """Rows of the counters; row 0 is for packets of no job."""


def parse(text: str) -> p4i.P4Info:
    """Parses P4Info. Raises `text_format.ParseError`."""
    info = p4i.P4Info()
    text_format.Parse(text, info)
    return info


@functools.cache
def ours() -> p4i.P4Info:
    """P4Info of the program that comes with this controller. Do not change the returned message."""
    return parse(compiled.load("v1model").p4info)


def sizes_of(info: p4i.P4Info, source: str) -> Sizes:
    """The sizes of a program. Raises `PipelineError`, which begins with `source`, if this controller cannot use the
    program."""
    try:
        _check_written(info)
        cells, lanes = _cells(info), _lanes(info)
        check_slots(cells // CELLS_OF_SLOT)
        return Sizes(lanes, cells // CELLS_OF_SLOT, _rows(info))
    except PipelineError as error:
        raise PipelineError(f"{source}: {error}") from None


def check_slots(slots: int) -> None:
    """Raises `PipelineError` if there are more slots than a cell's number can address."""
    most = (1 << CELL_BITS) // CELLS_OF_SLOT
    if slots > most:
        raise PipelineError(
            f"{slots} slots have {CELLS_OF_SLOT * slots} cells, and a cell's number has {CELL_BITS} bits: at most "
            f"{most} slots"
        )


def _check_written(info: p4i.P4Info) -> None:
    """Raises `PipelineError` if anything that entries are made of differs from our program."""
    found = dict(_widths(info))
    for name, width in _widths(ours()):
        if name not in found:
            raise PipelineError(f"it has no {name}: this is not our program, or another version; {COMPILE}")
        if found[name] != width:
            raise PipelineError(f"its {name} has {found[name]}, not {width}: {COMPILE}")


def _widths(info: p4i.P4Info) -> Iterator[tuple[str, str]]:
    """Names and widths of the keys, actions and parameters of all tables that can be written."""
    actions = {action.preamble.id: action for action in info.actions}
    for table in info.tables:
        if table.is_const_table:
            continue
        name = table.preamble.name
        for field in table.match_fields:
            kind = p4i.MatchField.MatchType.Name(field.match_type)
            yield f"key '{field.name}' of table '{name}'", f"{field.bitwidth} bits ({kind})"
        for reference in table.action_refs:
            if reference.scope != p4i.ActionRef.DEFAULT_ONLY:
                action = actions[reference.id]
                yield f"action '{action.preamble.name}' of table '{name}'", "an identifier"
                for parameter in action.params:
                    what = f"parameter '{parameter.name}' of action '{action.preamble.name}'"
                    yield what, f"{parameter.bitwidth} bits"


def _rows(info: p4i.P4Info) -> int:
    found: dict[str, int] = {counter.preamble.alias: counter.size for counter in info.counters}
    for name in count.COLUMNS_OF:
        if name not in found:
            raise PipelineError(
                f"it has no counter '{name}': this is not our program, or p4c was called otherwise than docs/tofino.md "
                f"says, with externs of its own; {COMPILE}"
            )
    (first, columns), *others = count.COLUMNS_OF.items()
    rows, rest = divmod(found[first], columns)
    if rest:
        raise PipelineError(f"its counter '{first}' has {found[first]} entries, no whole rows of {columns}: {COMPILE}")
    for name, columns in others:
        if found[name] != rows * columns:
            raise PipelineError(
                f"its counter '{name}' has {found[name]} entries, not {rows * columns}: '{first}' has {rows} rows, and "
                f"a row of '{name}' has {columns}; {COMPILE}"
            )
    if not 2 <= rows <= FLOOD_GROUP:
        raise PipelineError(
            f"its counter '{first}' has {rows} rows, not 2 to {FLOOD_GROUP}: a job's row is its multicast group too, "
            f"and group {FLOOD_GROUP} is for what is flooded; compile with another JOB_ROWS (p4src/common/sizes.p4)"
        )
    return rows


def _cells(info: p4i.P4Info) -> int:
    if not info.registers:
        raise PipelineError(
            f"it lists no registers, so how many slots the switch has is unknown; {COMPILE} with the options that "
            f"docs/tofino.md has"
        )
    first = info.registers[0]
    for register in info.registers:
        if register.size != first.size:
            raise PipelineError(
                f"its register '{register.preamble.name}' has {register.size} cells, and '{first.preamble.name}' has "
                f"{first.size}: all have as many; {COMPILE}"
            )
    if first.size < CELLS_OF_SLOT or first.size % CELLS_OF_SLOT:
        raise PipelineError(f"its registers have {first.size} cells, and a slot has {CELLS_OF_SLOT}: {COMPILE}")
    return int(first.size)


def _lanes(info: p4i.P4Info) -> int:
    widths: dict[str, int] = {}
    for register in info.registers:
        last = register.preamble.name.rpartition(".")[2]
        widths[last] = widths.get(last, 0) + _bits(info, register)
    if (bits := widths.get(BITMAPS, 0)) != SWITCH_WORKERS_MAX:
        raise PipelineError(
            f"its register '{BITMAPS}' has {bits} bits, not {SWITCH_WORKERS_MAX}, one for each worker: {COMPILE}"
        )
    lanes, rest = divmod(widths.get(SUMS, 0), 8 * WORD_BYTES)
    if not lanes or rest:
        raise PipelineError(
            f"its registers '{SUMS}' have {widths.get(SUMS, 0)} bits, no whole words of {8 * WORD_BYTES}: {COMPILE}"
        )
    return lanes


def _bits(info: p4i.P4Info, register: p4i.Register) -> int:
    """Width of one cell, which is a number, or the members of a structure."""
    spec = register.type_spec
    if spec.HasField("struct"):
        members = info.type_info.structs[spec.struct.name].members
        return sum(int(member.type_spec.bitstring.bit.bitwidth) for member in members)
    return int(spec.bitstring.bit.bitwidth)
