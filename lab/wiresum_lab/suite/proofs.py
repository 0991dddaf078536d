"""Makes `make test-all` run nightly tests of parts that have changed: a nightly test that proves a part of the checkout
runs there, too, if the part differs from the last good nightly run's.

`lab/tests/proved.toml` has the digest of each part in that run; `make test-nightly` writes the file, for a commit.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import tomli

PROVED = Path("lab/tests/proved.toml")
"""The file of digests, relative to the checkout."""
HEADING = "# The digests of what the last good `make test-nightly` has tested, which writes them.\n"


class Part(NamedTuple):
    sources: tuple[str, ...]
    """Folders and files of the part."""
    tests: tuple[str, ...]
    """Tests that prove the part: folders, files, and beginnings of pytest's names of tests."""


TYPED = "lab/tests/pages/test_typed.py::test_every_command_does_what_the_page_says"
PAGES = {
    "availability": ("controller/deploy",),
    "cluster": ("controller/deploy",),
    "horovod": (),
    "install": (),
    "libwiresum": (),
    "mpi": (),
    "nccl": ("plugins/nccl/tests",),
    "runbook": ("controller/deploy",),
    "torch": (),
}
"""Pages whose commands are typed each night, and other sources that the commands use."""


PARTS = {
    "p4": Part(
        ("p4src", "controller/wiresum/controller/p4runtime", "soft_switch/wiresum/switch/p4runtime"),
        (
            "bmv2_tests",
            "conformance/tests",
            "controller/tests/controller/p4runtime",
            "mininet/tests",
            "p4src/tests",
            "soft_switch/tests/p4runtime",
        ),
    ),
    "benchmarks": Part(("lab/wiresum_lab/benchmarks",), ("lab/tests/benchmarks",)),
    **{page: Part((f"docs/{page}.md", *others), (f"{TYPED}[{page}",)) for page, others in PAGES.items()},
}


def digest(root: Path, sources: Iterable[str]) -> str:
    """A digest of the names and contents of all files, without `__pycache__`."""
    found = hashlib.sha256()
    for source in sources:
        for path in sorted([root / source, *(root / source).rglob("*")]):
            if path.is_file() and "__pycache__" not in path.parts:
                name = path.relative_to(root).as_posix()
                found.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()[:16]


def digests(root: Path) -> dict[str, str]:
    return {name: digest(root, part.sources) for name, part in PARTS.items()}


def unproved(root: Path) -> set[str]:
    """The parts that differ from the last good nightly run's."""
    path = root / PROVED
    proved = tomli.loads(path.read_text()) if path.is_file() else {}
    return {name for name, found in digests(root).items() if proved.get(name) != found}


def proves(test: str, parts: Iterable[str]) -> bool:
    """Whether a test, given by pytest's name, proves one of these parts."""
    named = (each for part in parts for each in PARTS[part].tests)
    return any(test.startswith(tuple(each + end for end in ("/", "::", ",", "]"))) for each in named)


def write(root: Path) -> None:
    (root / PROVED).write_text(HEADING + "".join(f'{name} = "{found}"\n' for name, found in digests(root).items()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m wiresum_lab.suite.proofs",
        description="Writes down that the nightly tests have passed with the checkout as it is.",
    )
    parser.add_argument("root", nargs="?", type=Path, default=Path(), help="the checkout; without it, this folder")
    write(parser.parse_args().root)
