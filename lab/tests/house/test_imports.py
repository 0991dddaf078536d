"""No import cycles between Python modules, between C and C++ units (a header and its source are one), or between
their folders. Imports for type checking and within functions count as well."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from wiresum_lab import REPOSITORY

PACKAGES = ("wiresum", "wiresum_lab", "wiresum_mininet")
Graph = dict[str, set[str]]


def imported(source: Path, module: str, modules: Mapping[str, Path]) -> Iterator[str]:
    """The modules of ours that a module imports anywhere. A package stands for its __init__."""
    package = module if source.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: 1 - node.level or None] if node.level else []
            origin = ".".join([*above, *filter(None, [node.module])])
            for alias in node.names:
                submodule = f"{origin}.{alias.name}"
                yield submodule if submodule in modules else origin


def of_python(paths: Iterable[Path], root: Path) -> Graph:
    modules: dict[str, Path] = {}
    for path in paths:
        parts = path.relative_to(root).with_suffix("").parts
        first = next((parts.index(name) for name in PACKAGES if name in parts), None)
        if first is not None and path.suffix in {".py", ".pyi"} and not path.match("*_pb2*.pyi"):
            modules[".".join(parts[first:]).removesuffix(".__init__")] = path
    return {
        module: {name for name in imported(path, module, modules) if name in modules and name != module}
        for module, path in modules.items()
    }


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


def test_no_cycle_of_python_modules(sources: list[Path]) -> None:
    graph = of_python(sources, REPOSITORY)
    assert {"wiresum.agent", "wiresum.agent._native", "wiresum.controller.topology"} <= graph.keys()
    found = shortest_cycle(graph)
    assert not found, " -> ".join(found)


def test_no_cycle_of_c_units_or_folders(sources: list[Path]) -> None:
    units = of_c(sources, REPOSITORY)
    assert "host_agent/src/wire/packet" in units["soft_switch/src/dataplane"]
    found = shortest_cycle(units) or shortest_cycle(of_folders(units))
    assert not found, " -> ".join(found)


@pytest.mark.parametrize(
    "line",
    [
        "from wiresum.one.a import A",
        "from wiresum.one import a",
        "from . import a",
        "from .a import A",
        "import wiresum.one.a",
        "if TYPE_CHECKING:\n    from wiresum.one.a import A",
        "def late():\n    from wiresum.one.a import A",
    ],
)
def test_a_cycle_of_modules_is_found_and_named(tmp_path: Path, line: str) -> None:
    files = {"wiresum/one/__init__.py": "", "wiresum/one/a.py": "from wiresum.two import b", "wiresum/two/b.py": line}
    paths = written(tmp_path, {**files, "wiresum/two/c.py": "import wiresum.two.b"})
    if line.startswith("from ."):
        paths = written(tmp_path, {"wiresum/one/a.py": "from . import b", "wiresum/one/b.py": line})
    found = shortest_cycle(of_python(paths, tmp_path))
    assert [name.rpartition(".")[2] for name in found] == ["a", "b", "a"]


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
