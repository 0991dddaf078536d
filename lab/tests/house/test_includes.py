"""No cycle of includes between C and C++ units (a header and its source are one), or between their folders. Python's
modules are import-linter's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from wiresum_lab import REPOSITORY

Graph = dict[str, set[str]]


def of_c(paths: Iterable[Path], root: Path) -> Graph:
    """The includes of each unit, named by the path of its header or source without the suffix."""
    sources = {path: unit_of(path, root) for path in paths if path.suffix in {".h", ".hpp", ".c", ".cpp"}}
    graph: Graph = {unit: set() for unit in sources.values()}
    for path, unit in sources.items():
        for name in re.findall(r'^\s*#\s*include ["<]((?<=")[^"]+|wiresum/[^>]+)', path.read_text(), re.MULTILINE):
            beside, tail = unit_of(path.parent / name, root), f"/{Path(name).with_suffix('')}"
            found = [beside] if beside in graph else [each for each in graph if each.endswith(tail)]
            graph[unit] |= {each for each in found if each != unit}
    return graph


def unit_of(path: Path, root: Path) -> str:
    return str(path.relative_to(root).with_suffix(""))


def of_folders(units: Graph) -> Graph:
    """The includes between folders: those directly below a `src`, and elsewhere each file's own folder."""

    def folder(unit: str) -> str:
        folders = Path(unit).parts[:-1]
        return "/".join(folders[: folders.index("src") + 2] if "src" in folders else folders)

    graph: Graph = {}
    for unit, others in units.items():
        graph.setdefault(folder(unit), set()).update(map(folder, others))
    return {name: others - {name} for name, others in graph.items()}


def shortest_cycle(graph: Graph) -> list[str]:
    """A shortest cycle, which begins and ends with the same name, or an empty list."""
    shortest: list[str] = []
    for start in graph:
        ways = [[start]]
        seen: set[str] = set()
        for way in ways:
            for name in sorted(graph.get(way[-1], set())):
                if name == start and (not shortest or len(way) < len(shortest) - 1):
                    shortest = [*way, name]
                if name not in seen:
                    seen.add(name)
                    ways.append([*way, name])
    return shortest


@pytest.fixture(scope="module")
def sources(tracked: list[Path]) -> list[Path]:
    """The product code and lab/, without tests."""
    return [path for path in tracked if not {"tests", "bench", "fuzz"} & {*path.relative_to(REPOSITORY).parts}]


def test_no_cycle_of_c_units_or_folders(sources: list[Path]) -> None:
    units = of_c(sources, REPOSITORY)
    assert "host_agent/src/wire/packet" in units["soft_switch/src/dataplane"]
    found = shortest_cycle(units) or shortest_cycle(of_folders(units))
    assert not found, " -> ".join(found)


def test_a_cycle_of_units_or_folders_is_found_and_named(tmp_path: Path) -> None:
    files = {"src/x/a.hpp": "", "src/x/a.cpp": '#include "y/b.hpp"', "src/x/c.hpp": "", "src/y/b.hpp": ""}
    units = of_c(written(tmp_path, {**files, "src/y/b.cpp": '#include "x/c.hpp"'}), tmp_path)
    assert shortest_cycle(units) == []
    assert [Path(folder).name for folder in shortest_cycle(of_folders(units))] == ["x", "y", "x"]
    units = of_c(written(tmp_path, {**files, "src/y/b.cpp": '#include "x/a.hpp"'}), tmp_path)
    assert [Path(unit).name for unit in shortest_cycle(units)] == ["a", "b", "a"]


def written(folder: Path, files: Mapping[str, str]) -> list[Path]:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return [folder / name for name in files]
