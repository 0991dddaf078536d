"""No constant of the protocol or of the limits is defined twice: p4src/constants.toml has all of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from wiresum.join import constants
from wiresum_lab import REPOSITORY

WRITTEN = {
    "controller/wiresum/join/constants.py",
    "host_agent/src/wire/constants.hpp",
    "lab/tests/house/test_constants.py",
}
NAMES = {name for name, value in vars(constants).items() if name.isupper() and isinstance(value, int)}
PECULIAR = {
    getattr(constants, name)
    for name in ("CONTROL_PORT", "SWITCH_PORT", "P4RUNTIME_PORT", "LANES_MAX", "UDP_PAYLOAD_BYTES_MAX")
}
"""Numbers that have no other meaning."""
HEADER_FORMAT = re.compile('"[!>]BBHIB')


def camel(name: str) -> str:
    return "k" + "".join(part.capitalize() for part in name.split("_"))


class Language(NamedTuple):
    prose: re.Pattern[str]
    """Comments and strings."""
    definition: re.Pattern[str]
    number: str = r"(?<![\w.#])(?:0[xX][0-9a-fA-F_']+|\d[\d_']*)(?![\w.])"


def names(of: Callable[[str], str]) -> str:
    return "|".join(sorted(map(of, NAMES)))


PYTHON = Language(
    re.compile(r'"""(?:\\.|[^\\])*?"""|"(?:\\.|[^"\\\n])*"|#[^\n]*', re.DOTALL),
    re.compile(rf"^[ \t]*(?:\w+, )*_?(?:{names(str)})\b(?:, \w+)*(?::[^=\n]*)? = \(*-?\d[\w, <+*()-]*$", re.MULTILINE),
)
CPP = Language(
    re.compile(r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"', re.DOTALL),
    re.compile(rf"\b(?:{names(camel)})\b\s*[={{]\s*(?:(?:std::)?\w+\{{)?-?\d"),
)
LUA = Language(
    re.compile(r"Begin\.\n.*?-- End\.\n", re.DOTALL), re.compile(rf"\b(?:{names(str)})\b *=[^=]"), number=r"\d+"
)
LANGUAGES = {".py": PYTHON, ".cpp": CPP, ".hpp": CPP, ".h": CPP, ".c": CPP, ".lua": LUA}


def copies(path: Path, text: str) -> list[str]:
    language = LANGUAGES[path.suffix]
    code = language.prose.sub("", text)
    found = [each.strip() for each in language.definition.findall(code)]
    found += HEADER_FORMAT.findall(text) if language is PYTHON else []
    if "tests" not in path.parts and not path.name.startswith(("test_", "conftest")):
        numbers = {each.replace("_", "").replace("'", "") for each in re.findall(language.number, code)}
        found += sorted(each for each in numbers if int(each, 16 if each[1:2] in "xX" and each[1:] else 10) in PECULIAR)
    return found


def test_no_constant_is_defined_twice(tracked: list[Path]) -> None:
    twice = {
        name: found
        for path in tracked
        if (name := str(path.relative_to(REPOSITORY))) not in WRITTEN
        and path.suffix in LANGUAGES
        and "_pb2" not in name
        if (found := copies(path.relative_to(REPOSITORY), path.read_text()))
    }
    assert twice == {}, "take it from wiresum.join.constants, or from wire/constants.hpp"


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("a.py", "THREADS_MAX = 16"),
        ("a.py", "_THREADS_MAX: int = 1 << 20"),
        ("a.py", "PARENT, OTHER = 0xFE, 3"),
        ("a.py", "listen(0xA9DF)"),
        ("tests/a.py", 'struct.Struct("!BBHIBBHIII")'),
        ("a.cpp", "constexpr std::uint32_t kThreadsMax = 1u << 15;"),
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
