"""Writes the constants of p4src/constants.toml for C++, Python and Lua, and compares the switch program's numbers with
them.

    python p4src/generate_constants.py           write the files, and say where the switch program differs
    python p4src/generate_constants.py --check   say what is stale

The switch program is compared and not written: its files read best with each number where it is used, and what p4c made
of them is committed with a hash of the sources.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import tomli

REPOSITORY = Path(__file__).resolve().parents[1]
TABLE = REPOSITORY / "p4src/constants.toml"
CPP = REPOSITORY / "host_agent/src/wire/constants.hpp"
PYTHON = REPOSITORY / "controller/wiresum/join/constants.py"
LUA = REPOSITORY / "mininet/wireshark/wiresum.lua"
P4 = REPOSITORY / "p4src/common"

CPP_TYPES = {
    "versions": "std::uint8_t",
    "ports": "std::uint16_t",
    "packet": "std::size_t",
    "flags": "std::uint8_t",
    "limits": "std::size_t",
    "receivers": "std::uint8_t",
    "bitmaps": "std::uint32_t",
    "sidecar": "std::size_t",
}
"""C++ types of the constants, by section; C++ has no other sections."""
ENUMS = {"kinds": "Kind", "reasons": "Reason"}
IN_HEX = {"receivers", "bitmaps"}
P4_ENUMS = {"kinds": "kind_t", "reasons": "reason_t"}
P4_HEADER_TYPES = {"kind_t": 4, "worker_t": 8, "cell_t": 16}
LUA_BLOCK = re.compile(r"(?<=-- Of p4src/constants.toml. Begin\.\n).*?(?=-- End\.\n)", re.DOTALL)
ORIGIN = "Written by p4src/generate_constants.py. Do not edit: change p4src/constants.toml, then `make constants`."


class Constant(NamedTuple):
    value: int
    meaning: str
    """Describes the constant, a sentence."""


class Field(NamedTuple):
    """A field of the header."""

    offset: int
    bits: int
    meaning: str


@dataclass(frozen=True)
class Table:
    sections: dict[str, dict[str, Constant]]
    header: dict[str, Field]

    @property
    def header_bytes(self) -> int:
        last = list(self.header.values())[-1]
        return last.offset + last.bits // 8

    def number(self, name: str) -> int:
        (found,) = (section[name].value for section in self.sections.values() if name in section)
        return found


def read() -> Table:
    document: Mapping[str, Any] = tomli.loads(TABLE.read_text())
    header = {name: Field(offset, bits, _sentence(text)) for name, (offset, bits, text) in document["header"].items()}
    at = 0
    for name, field in header.items():
        assert at // 8 == field.offset and field.bits in (4, 8, 16, 32), f"{name} does not follow the field before it"
        at += field.bits
    sections = {
        section: {name: Constant(value, _sentence(text)) for name, (value, text) in rows.items()}
        for section, rows in document.items()
        if section != "header"
    }
    return Table(sections, header)


def cpp(table: Table) -> str:
    lines = [f"// {ORIGIN}", "#pragma once", "", "#include <cstddef>", "#include <cstdint>", ""]
    lines += ["namespace wiresum::wire {", ""]
    for section, rows in table.sections.items():
        if section in CPP_TYPES:
            for name, (value, meaning) in rows.items():
                shown = f"0x{value:X}" if section in IN_HEX else str(value)
                lines += [f"/// {meaning}", f"inline constexpr {CPP_TYPES[section]} {_camel(name)} = {shown};"]
        elif section in ENUMS:
            lines.append(f"enum class {ENUMS[section]} : std::uint8_t {{")
            for name, (value, meaning) in rows.items():
                lines += [f"  /// {meaning}", f"  {_camel(name)} = {value},"]
            lines.append("};")
        else:
            continue
        lines.append("")
    lines += ["/// Of the header, in bytes; where a field begins is counted from the start of the UDP payload."]
    lines += [f"inline constexpr std::size_t kHeaderBytes = {table.header_bytes};"]
    for name, field in table.header.items():
        lines += [f"/// {field.meaning}", f"inline constexpr std::size_t k{name.capitalize()}At = {field.offset};"]
    lines += ["", "}  // namespace wiresum::wire"]
    return "\n".join(lines) + "\n"


def python(table: Table) -> str:
    """The Python module: the constants, and the header's codec."""
    lines = ['"""The numbers that all parts agree on, and the header of a packet.', "", ORIGIN, '"""']
    lines += ["", "from __future__ import annotations", "", "import struct", "from dataclasses import dataclass"]
    lines += ["from enum import IntEnum", ""]
    for section, rows in table.sections.items():
        enum = ENUMS.get(section)
        lines += ["", "", f"class {enum}(IntEnum):"] if enum else []
        for name, (value, meaning) in rows.items():
            shown = f"0x{value:X}" if section in IN_HEX else f"{value:_}" if value >= 100_000 else str(value)
            indent = "    " if enum else ""
            lines += [f"{indent}{name} = {shown}", f'{indent}"""{meaning}"""']
        lines += ["", ""] if enum else [""]
    lines = re.sub(r"\n{4,}", "\n\n\n", "\n".join(lines)).rstrip().split("\n")
    codes = {8: "B", 16: "H", 32: "I"}
    parts: list[str] = []
    layout = "!"
    fields = list(table.header.items())
    while fields:
        name, field = fields.pop(0)
        if field.bits == 4:
            lower, _ = fields.pop(0)
            parts.append(f"self.{name} << 4 | self.{lower}")
        else:
            parts.append(f"self.{name}")
        layout += codes[max(field.bits, 8)]
    lines += ["", f"HEADER_BYTES = {table.header_bytes}", '"""Bytes of the header."""']
    lines += [f'_LAYOUT = struct.Struct("{layout}")', "", "", "@dataclass(frozen=True)", "class Header:"]
    lines += ['    """What a packet begins with: docs/protocol.md, section 2."""', ""]
    for name, field in table.header.items():
        lines += [f"    {name}: int = {'WIRE_VERSION' if name == 'version' else 0}", f'    """{field.meaning}"""']
    lines += ["", "    def pack(self) -> bytes:"]
    lines += ["        return _LAYOUT.pack(", *(f"            {part}," for part in parts), "        )"]
    lines += ["", "    @classmethod", "    def unpack(cls, datagram: bytes) -> Header:"]
    lines += ["        first, *others = _LAYOUT.unpack_from(datagram)"]
    lines += ["        return cls(first >> 4, first & 15, *others)"]
    return "\n".join(lines) + "\n"


def lua(table: Table) -> str:
    """The generated block of wiresum.lua, which is a single file since people copy it as it is."""
    names = ("WIRE_VERSION", "SWITCH_PORT", "THREADS_MAX", "WORD_BYTES")
    kinds = table.sections["kinds"]
    lines = [f"local {name} = {table.number(name)}" for name in names]
    lines += [f"local HEADER_BYTES = {table.header_bytes}"]
    lines += [f"local {', '.join(kinds)} = {', '.join(str(kind.value) for kind in kinds.values())}"]
    lines += ["local KINDS = {", f"  {', '.join(f'[{name}] = {chr(34)}{name}{chr(34)}' for name in kinds)}", "}"]
    lines += ["-- Of each field, the first byte and how many."]
    spans = [f"{name} = {{ {field.offset}, {max(field.bits // 8, 1)} }}" for name, field in table.header.items()]
    lines += ["local SPANS = {", f"  {', '.join(spans[:6])},", f"  {', '.join(spans[6:])}", "}"]
    lines += [f"local {name} = 0x{table.number(name):02X}" for name in table.sections["flags"]]
    return "\n".join(lines) + "\n"


def generated() -> dict[Path, str]:
    """The texts that the files should have, by their paths."""
    table = read()
    block = lua(table)
    return {CPP: cpp(table), PYTHON: python(table), LUA: LUA_BLOCK.sub(lambda _: block, LUA.read_text())}


def stale_files() -> list[str]:
    return [
        f"{path.relative_to(REPOSITORY)} is not what p4src/constants.toml makes: run `make constants`"
        for path, text in generated().items()
        if not path.exists() or path.read_text() != text
    ]


def differences_of_p4(folder: Path = P4) -> list[str]:
    """Complaints about the switch program: numbers that differ from the table, or that are missing."""
    table = read()
    text = "\n".join(path.read_text() for path in sorted(folder.glob("*.p4")))
    found = {
        name: int(value, 0)
        for name, value in re.findall(r"^(?:#define|const \w+) (\w+)(?: =)? (0x[0-9A-F]+|\d+)\b", text, re.MULTILINE)
    }
    for enum, body in re.findall(r"^enum bit<\d+> (\w+) \{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL):
        found |= {f"{enum}.{name}": int(value) for name, value in re.findall(r"^ +(\w+) = (\d+)", body, re.MULTILINE)}
    expected = {"HEADER_BYTES": table.header_bytes, "THREAD_MASK": table.number("THREADS_MAX") - 1}
    expected["SWITCH_PORT_MASK"] = 0xFFFF & ~(table.number("THREADS_MAX") - 1)
    for section, rows in table.sections.items():
        prefix = f"{P4_ENUMS[section]}." if section in P4_ENUMS else ""
        expected |= {prefix + name: row.value for name, row in rows.items()}
    needed = [f"{enum}.{name}" for section, enum in P4_ENUMS.items() for name in table.sections[section]]
    complaints = [f"the switch program does not define {name}" for name in needed if name not in found]
    complaints += [
        f"{name} is {value} in the switch program, and {expected[name]} in p4src/constants.toml"
        for name, value in found.items()
        if expected.get(name, value) != value
    ]
    header = re.search(r"^header wiresum_h \{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL)
    assert header is not None
    fields = re.findall(r"^ +(?:bit<(\d+)>|(\w+_t)) (\w+);$", header[1], re.MULTILINE)
    layout = [(name, int(bits) if bits else P4_HEADER_TYPES[type_name]) for bits, type_name, name in fields]
    if layout != [(name, field.bits) for name, field in table.header.items()]:
        complaints.append("the fields of wiresum_h in the switch program are not those of p4src/constants.toml")
    return complaints


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


def _camel(name: str) -> str:
    return "k" + "".join(word.capitalize() for word in name.split("_"))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if something is stale")
    if not parser.parse_args().check:
        for path, text in generated().items():
            path.write_text(text)
    complaints = stale_files() + differences_of_p4()
    for complaint in complaints:
        sys.stderr.write(complaint + "\n")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
