"""Runs clang-tidy on the C++ files that are not known to be clean.

The result for a file depends on the code of the file and its includes, .clang-tidy and the version of clang-tidy.
.clang-tidy-clean, which is committed, has a hash of these for each clean file. So a fresh clone checks only files whose
code has changed, or a header's. Comments after // do not count, but for NOLINT. The system's headers are not in the
hash, so a row may be wrong: `--all` ignores all rows, and `make test-nightly` uses it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.metadata import version
from pathlib import Path

from . import REPOSITORY

SOURCES = ("host_agent/src", "soft_switch/src", "plugins/nccl/src")
INCLUDE_FOLDERS = (*SOURCES, "host_agent/include")
TABLE = REPOSITORY / ".clang-tidy-clean"
BUILD = REPOSITORY / "build/tidy"
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]', re.MULTILINE)
LITERAL_OR_COMMENT = re.compile(r'("(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\')|//(?!.*NOLINT).*')


def checked_files() -> list[Path]:
    found = (path for folder in SOURCES for path in (REPOSITORY / folder).rglob("*.cpp"))
    return sorted(path for path in found if "bindings" not in path.parts)


@cache
def includes(path: Path) -> tuple[Path, ...]:
    """The files of this repository that a file includes directly, on any condition."""
    found = []
    for name in INCLUDE.findall(path.read_text()):
        folders = (path.parent, *(REPOSITORY / folder for folder in INCLUDE_FOLDERS))
        places = (folder / name for folder in folders)
        found.extend([place.resolve() for place in places if place.is_file()][:1])
    return tuple(found)


def everything_of(path: Path) -> set[Path]:
    found: set[Path] = set()
    left = [path]
    while left:
        if (one := left.pop()) not in found:
            found.add(one)
            left.extend(includes(one))
    # The CMakeLists.txt has the file's options for the compiler.
    return found | {next(folder for folder in path.parents if (folder / "CMakeLists.txt").exists()) / "CMakeLists.txt"}


def code_of(path: Path) -> str:
    """The file's text, of C++ without comments and without empty lines."""
    if path.suffix not in (".cpp", ".hpp", ".h"):
        return path.read_text()
    code = LITERAL_OR_COMMENT.sub(lambda found: found[1] or "", path.read_text())
    return "\n".join(line.rstrip() for line in code.splitlines() if line.strip())


def hash_of(path: Path) -> str:
    digest = hashlib.sha256(version("clang-tidy").encode())
    for one in sorted({REPOSITORY / ".clang-tidy"} | everything_of(path)):
        digest.update(f"\0{one.relative_to(REPOSITORY)}\0{code_of(one)}".encode())
    return digest.hexdigest()[:32]


def known_clean() -> dict[str, str]:
    """The hash of each file when it was clean, by path."""
    if not TABLE.exists():
        return {}
    rows = (line.split() for line in TABLE.read_text().splitlines())
    return {path: digest for digest, path in rows}


def compiled_files() -> set[Path]:
    command = ["cmake", "--preset", "tidy", f"-DPython_EXECUTABLE={sys.executable}"]
    subprocess.run(command, cwd=REPOSITORY, check=True, stdout=subprocess.DEVNULL)
    return {Path(entry["file"]) for entry in json.loads((BUILD / "compile_commands.json").read_text())}


def complaints(path: Path) -> str:
    """The output of clang-tidy for a file; empty if the file is clean."""
    tidy = shutil.which("clang-tidy", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert tidy is not None, "clang-tidy is not installed"
    command = [tidy, "--quiet", "-p", str(BUILD), "--extra-arg=-Wno-unknown-warning-option", str(path)]
    finished = subprocess.run(command, check=False, capture_output=True, text=True)
    return finished.stdout + finished.stderr if finished.returncode != 0 else ""


def check(paths: list[Path], jobs: int) -> Iterator[tuple[Path, str]]:
    with ThreadPoolExecutor(jobs) as pool:
        yield from zip(paths, pool.map(complaints, paths), strict=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="check every file, whatever is known of it")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many files at a time")
    options = parser.parse_args()

    hashes = {path: hash_of(path) for path in checked_files()}
    names = {path: str(path.relative_to(REPOSITORY)) for path in hashes}
    clean = known_clean()
    wanted = [path for path, digest in hashes.items() if options.all or clean.get(names[path]) != digest]
    compiled = compiled_files() if wanted else set()
    if absent := [names[path] for path in wanted if path not in compiled]:
        print(f"clang-tidy: not compiled on this machine, so not checked: {' '.join(absent)}")
    failed = 0
    for path, said in check([path for path in wanted if path in compiled], options.jobs):
        if said:
            failed += 1
            print(said)
        else:
            clean[names[path]] = hashes[path]
    rows = [f"{clean[name]} {name}\n" for name in sorted(names.values()) if name in clean]
    if TABLE.read_text() != "".join(rows) if TABLE.exists() else rows:
        TABLE.write_text("".join(rows))
    print(f"clang-tidy: {len(wanted) - len(absent)} of {len(hashes)} files checked, {failed} with complaints")
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
