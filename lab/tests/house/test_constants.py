"""No constant of the protocol or of the limits is defined twice: p4src/constants.toml has all of them."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from wiresum.join import constants

REPOSITORY = Path(__file__).resolve().parents[3]
WRITTEN = {"controller/wiresum/join/constants.py", "host_agent/src/wire/constants.hpp"}
NAMES = {name for name, value in vars(constants).items() if name.isupper() and isinstance(value, int)}
FORMER = {
    *("WORKERS_MAX", "BELOW_MAX", "SLOTS_MAX", "DATA_PORT", "DEFAULT_CONTROL_PORT", "JOIN_PORT", "ROW_STRAY"),
    *("IPV4_UDP_HEADER_BYTES", "CHILDREN_MAX"),
}
"""Former names, which had several meanings."""
PECULIAR = {
    getattr(constants, name)
    for name in ("CONTROL_PORT", "SWITCH_PORT", "P4RUNTIME_PORT", "LANES_MAX", "UDP_PAYLOAD_BYTES_MAX")
}
"""Numbers that have no other meaning."""
HEADER_FORMAT = re.compile("[!>]BBHIB")


def camel(name: str) -> str:
    return "k" + "".join(part.capitalize() for part in name.split("_"))


CPP_NAMES = "|".join(sorted(camel(name) for name in NAMES | FORMER))
CPP_DEFINITION = re.compile(rf"\b(?:{CPP_NAMES})\b\s*[={{]\s*(?:(?:std::)?\w+\{{)?-?\d")
CPP_PROSE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"', re.DOTALL)
LUA_DEFINITION = re.compile(rf"\b(?:{'|'.join(sorted(NAMES))})\b *=[^=]")


def is_number(node: ast.expr | None) -> bool:
    """Whether an expression consists of number literals only."""
    match node:
        case ast.Constant(value):
            return isinstance(value, int)
        case ast.UnaryOp(operand=operand):
            return is_number(operand)
        case ast.BinOp(left=left, right=right):
            return is_number(left) and is_number(right)
    return False


def definitions(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """The names and values of an assignment."""
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                match target, value:
                    case ast.Name(name), _:
                        yield name, value
                    case ast.Tuple(elts=names), ast.Tuple(elts=values):
                        yield from ((n.id, v) for n, v in zip(names, values, strict=True) if isinstance(n, ast.Name))
        case ast.AnnAssign(target=ast.Name(name), value=ast.expr() as value):
            yield name, value


def copies_in_python(text: str, *, is_test: bool) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(text)):
        found += [
            f"line {node.lineno}: {name}"
            for name, value in definitions(node)
            if name.lstrip("_") in NAMES | FORMER and is_number(value)
        ]
        match node:
            case ast.Constant(str() as value) if HEADER_FORMAT.match(value):
                found.append(f"line {node.lineno}: the header's layout")
            case ast.Constant(int() as value) if value in PECULIAR and not is_test:
                found.append(f"line {node.lineno}: {value}")
    return found


def copies_in_cpp(text: str, *, is_test: bool) -> list[str]:
    code = CPP_PROSE.sub("", text)
    numbers = {} if is_test else {number.replace("'", "") for number in re.findall(r"(?<![\w.])\d[\d']*\b", code)}
    return CPP_DEFINITION.findall(code) + sorted(number for number in numbers if int(number) in PECULIAR)


def copies_in_lua(text: str) -> list[str]:
    outside = re.sub(r"Begin\.\n.*?-- End\.\n", "", text, flags=re.DOTALL)
    numbers = re.findall(r"\d+", outside)
    return LUA_DEFINITION.findall(outside) + [number for number in numbers if int(number) in PECULIAR]


def copies(path: Path, text: str) -> list[str]:
    is_test = "tests" in path.parts or path.name.startswith(("test_", "conftest"))
    match path.suffix:
        case ".py" if "_pb2" not in path.name:
            return copies_in_python(text, is_test=is_test)
        case ".cpp" | ".hpp" | ".h" | ".c":
            return copies_in_cpp(text, is_test=is_test)
        case ".lua":
            return copies_in_lua(text)
    return []


def test_no_constant_is_defined_twice() -> None:
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        text=True,
    )
    paths = [name for name in listing.stdout.split("\0") if name and (REPOSITORY / name).is_file()]
    twice = {
        name: found
        for name in paths
        if name not in WRITTEN and Path(name).suffix in {".py", ".cpp", ".hpp", ".h", ".c", ".lua"}
        if (found := copies(Path(name), (REPOSITORY / name).read_text()))
    }
    assert twice == {}, "take it from wiresum.join.constants, or from wire/constants.hpp"


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("a.py", "THREADS_MAX = 16"),
        ("a.py", "_SLOTS_MAX: int = 1 << 20"),
        ("a.py", "EVERYONE, OTHER = 0xFF, 3"),
        ("a.py", "listen(43487)"),
        ("tests/a.py", 'struct.Struct("!BBHIBBHIII")'),
        ("a.cpp", "constexpr std::uint32_t kSlotsMax = 1u << 15;"),
        ("a.hpp", "constexpr std::uint8_t kParent{0xFE};"),
        ("a.cpp", "send(43'488);"),
        ("a.lua", "local THREADS_MAX = 16"),
    ],
)
def test_a_second_definition_is_found(path: str, text: str) -> None:
    assert len(copies(Path(path), text)) == 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("a.py", "SCENARIO_LANES_MAX = 360"),
        ("a.py", 'print("host:43487")'),
        ("tests/a.py", "assert port == 43487"),
        ("a.cpp", "constexpr wire::Endpoint kParent{.address = 1};"),
        ("a.cpp", "if (workers == kThreadsMax) return 3;  // 43487"),
    ],
)
def test_a_use_or_another_name_is_no_second_definition(path: str, text: str) -> None:
    assert copies(Path(path), text) == []
