"""Rules of this repository that a program can check."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from wiresum.join.release import software_version
from wiresum_lab import REPOSITORY
from wiresum_lab.benchmarks.__main__ import BENCHMARKS
from wiresum_lab.benchmarks.__main__ import main as bench

NAMESPACE_FOLDERS = (
    "host_agent/python/wiresum",
    "plugins/torch/wiresum",
    "plugins/compress/wiresum",
    "plugins/horovod/wiresum",
    "soft_switch/wiresum",
    "controller/wiresum",
    "p4src/wiresum",
    "conformance/wiresum",
    "science/wiresum",
)

# Folders that a folder of the C++ sources may include, besides itself and the standard library: docs/architecture.md.
AGENT_FOLDERS: dict[str, set[str]] = {
    "process": set(),
    "wire": set(),
    "numeric": {"wire"},
    "worker": {"wire", "numeric"},
    "schedule": {"wire", "numeric", "worker"},
    "transport": {"process", "wire"},
    "leaf": {"process", "wire", "transport"},  # and the switch's data plane
    "engine": {"process", "wire", "numeric", "worker", "schedule", "transport", "leaf"},
    "session": {"process", "wire", "transport", "leaf", "engine"},
    "bindings": {"numeric", "transport", "session", "wiresum"},  # wiresum/agent/capi.hpp
    "c": {"process", "wire", "numeric", "schedule", "session", "wiresum"},  # wiresum/wiresum.h: the C interface
}
SWITCH_DATAPLANE_MAY_USE = {"wire", "numeric"}
SWITCH_MAY_USE = {"process", "wire", "numeric", "transport"}

MAKEFILE = (REPOSITORY / "Makefile").read_text()

PURE_LIBRARIES = {
    "wiresum_wire": "host_agent/src/wire",
    "wiresum_numeric": "host_agent/src/numeric",
    "wiresum_worker": "host_agent/src/worker",
    "wiresum_schedule": "host_agent/src/schedule",
    "wiresum_ethernet": "host_agent/src/transport/ethernet",
    "wiresum_dataplane": "soft_switch/src",
}
IMPURE_LIBRARIES = {"wiresum_transport": "host_agent/src/transport", "wiresum_engine": "host_agent/src/engine"}
# The state machines allocate when they are constructed; a codec never allocates.
NEVER_ALLOCATE = ("wiresum_wire", "wiresum_numeric", "wiresum_ethernet")
INPUT_OUTPUT = re.compile(
    r"\b(socket|bind|connect|send|sendto|sendmsg|sendmmsg|recv|recvfrom|recvmsg|recvmmsg|poll|ppoll|select|epoll_\w+|"
    r"read|write|open|openat|fopen|fwrite|printf|fprintf|puts)(@|$)|std::(cout|cerr|basic_[io]?fstream)"
)
CLOCKS = re.compile(
    r"\b(clock_gettime|clock_nanosleep|nanosleep|usleep|gettimeofday|time|clock)(@|$)|std::chrono::.*::now"
)
THREADS = re.compile(r"\b(pthread_\w+|sem_\w+|futex)(@|$)|std::(thread|mutex|condition_variable)")
ALLOCATION = re.compile(r"\b(malloc|calloc|realloc|aligned_alloc|posix_memalign)(@|$)|operator new")


def test_no_program_changes_the_module_search_path(tracked: list[Path]) -> None:
    """Shared code is in installed packages."""
    changing = re.compile(r"sys\.path(\.(insert|append|extend)\(|\[|\s*\+?=)")
    others_tests = {"plugins/openmpi/tests/mpi4py_tests.py", "plugins/openmpi/tests/horovod_tests.py"}
    others_tests |= {"plugins/horovod/tests/own_tests.py"}  # these run the tests of other projects from checkouts
    found = [
        name
        for path in tracked
        if path.suffix == ".py" and (name := str(path.relative_to(REPOSITORY))) not in others_tests
        if changing.search(path.read_text())
    ]
    assert found == []


def test_wiresum_is_a_namespace_without_an_init() -> None:
    for folder in NAMESPACE_FOLDERS:
        assert (REPOSITORY / folder).is_dir()
        assert not (REPOSITORY / folder / "__init__.py").exists(), f"{folder}/__init__.py hides the other packages"


def test_the_mininet_folder_does_not_shadow_mininet() -> None:
    assert not (REPOSITORY / "mininet" / "__init__.py").exists()


def test_every_package_in_the_tree_is_packaged() -> None:
    project = (REPOSITORY / "pyproject.toml").read_text()
    packaged = set(re.findall(r'^"(wiresum/\w+)" = "(.+)"$', project, re.MULTILINE))
    in_tree = {
        (f"wiresum/{package.name}", f"{folder}/{package.name}")
        for folder in NAMESPACE_FOLDERS
        for package in (REPOSITORY / folder).iterdir()
        if any(package.glob("*.py"))
    }
    assert packaged == in_tree


@pytest.fixture(scope="session")
def build() -> Path:
    """An optimised build in which the examined libraries are up to date."""
    targets = [*PURE_LIBRARIES, *IMPURE_LIBRARIES]
    for command in (["cmake", "--preset", "dev"], ["cmake", "--build", "--preset", "dev", "--target", *targets]):
        subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
    return REPOSITORY / "build/dev"


def undefined_symbols(archive: Path) -> list[str]:  # or an object file
    listing = subprocess.run(
        ["nm", "--undefined-only", "--demangle", str(archive)], check=True, capture_output=True, text=True
    )
    symbols = re.findall(r"^\s+U (.+)$", listing.stdout, re.MULTILINE)
    assert symbols or archive.stem.endswith(("wire", "numeric")), f"nm saw nothing in {archive}"
    return symbols


@pytest.mark.timeout(600)
@pytest.mark.parametrize("library", PURE_LIBRARIES)
def test_a_pure_library_references_no_socket_clock_or_thread(build: Path, library: str) -> None:
    symbols = undefined_symbols(build / PURE_LIBRARIES[library] / f"lib{library}.a")
    impure = [name for name in symbols for what in (INPUT_OUTPUT, CLOCKS, THREADS) if what.search(name)]
    assert impure == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("library", NEVER_ALLOCATE)
def test_a_codec_references_no_allocation(build: Path, library: str) -> None:
    symbols = undefined_symbols(build / PURE_LIBRARIES[library] / f"lib{library}.a")
    assert [name for name in symbols if ALLOCATION.search(name)] == []


@pytest.mark.timeout(600)
def test_the_symbol_patterns_match_the_impure_libraries(build: Path) -> None:
    """The tests above could not fail if their patterns matched nothing."""
    transport, engine = (
        undefined_symbols(build / folder / f"lib{library}.a") for library, folder in IMPURE_LIBRARIES.items()
    )
    assert any(INPUT_OUTPUT.search(name) for name in transport)
    assert any(ALLOCATION.search(name) for name in transport)
    assert any(CLOCKS.search(name) for name in engine)
    assert any(THREADS.search(name) for name in engine)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", ["dispatcher", "shard"])
def test_the_parts_of_the_engine_under_simulation_use_no_socket_thread_or_clock(build: Path, part: str) -> None:
    """They do use locks, because a session's threads call them."""
    symbols = undefined_symbols(build / f"host_agent/src/engine/CMakeFiles/wiresum_engine.dir/{part}.cpp.o")
    made = re.compile(r"std::thread|pthread_create|condition_variable::wait|futex")
    assert [name for name in symbols if INPUT_OUTPUT.search(name) or CLOCKS.search(name) or made.search(name)] == []


def included_folders(source: Path) -> set[str]:
    return set(re.findall(r'^#include "(\w+)/', source.read_text(), re.MULTILINE))


@pytest.mark.parametrize("folder", AGENT_FOLDERS)
def test_a_folder_of_the_agent_includes_only_folders_below_it(folder: str) -> None:
    sources = sorted((REPOSITORY / "host_agent/src" / folder).rglob("*.[ch]*"))
    assert sources
    for source in sources:
        assert included_folders(source) <= AGENT_FOLDERS[folder] | {folder}, source


def test_the_switch_includes_no_worker_and_its_dataplane_no_transport() -> None:
    sources = sorted((REPOSITORY / "soft_switch/src").rglob("*.[ch]pp"))
    assert sources
    for source in sources:
        allowed = SWITCH_DATAPLANE_MAY_USE if source.stem == "dataplane" else SWITCH_MAY_USE
        own = {path.name for path in (REPOSITORY / "soft_switch/src").iterdir() if path.is_dir()}
        assert included_folders(source) <= allowed | own, source


def test_no_file_contains_an_absolute_path_of_one_machine(tracked: list[Path]) -> None:
    machine_path = re.compile(r"(?<![\w.])/(home|root|Users|work)/\w")
    named = []
    for path in tracked:
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        named += [f"{path.relative_to(REPOSITORY)}: {match.group()}" for match in machine_path.finditer(text)]
    assert named == []


def test_bench_refuses_an_unknown_name_and_lists_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "dense", "dens"])
    with pytest.raises(SystemExit, match="2"):
        bench()
    refused = capsys.readouterr().err
    assert all(f"'{name}'" in refused for name in BENCHMARKS)
    chosen = re.search(r"^NAMES \?= (.*)$", MAKEFILE, re.MULTILINE)
    assert chosen and {*chosen[1].split()} <= BENCHMARKS.keys()


def test_the_version_is_given_in_pyproject_alone(tracked: list[Path]) -> None:
    project = (REPOSITORY / "pyproject.toml").read_text().partition("[[tool.dynamic-metadata]]")[2].partition("\n[")[0]
    (version,) = re.findall(r'^release = "(.+?)"', project, re.MULTILINE)
    assert version in software_version()
    elsewhere = [
        str(path.relative_to(REPOSITORY))
        for path in tracked
        if path.suffix in {".py", ".cpp", ".hpp", ".txt", ".cmake"} and f'"{version}"' in path.read_text()
    ]
    assert elsewhere == []


def test_no_source_file_has_more_than_650_lines(tracked: list[Path]) -> None:
    lines_max = 650
    long = {
        str(path.relative_to(REPOSITORY)): lines
        for path in tracked
        if path.suffix in {".py", ".cpp", ".hpp", ".c"} and "_pb2" not in path.name
        if (lines := len(path.read_text().splitlines())) > lines_max
    }
    assert long == {}
