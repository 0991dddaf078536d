"""The committed table of the test files and their seconds: `lab/tests/times.toml`.

A run starts the longest files first. The sum of the quick tier has a budget, and because the sum comes from the table
and not from the run, no load can break it: `lab/tests/house/test_times.py`. `pytest --write-times` measures it anew.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TABLE = Path("lab/tests/times.toml")
"""Below the checkout."""
TIERS = ("quick", "slow", "nightly")
DEFAULT_S = 5.0
"""For a file that is not in the table."""
GROWTH_MAX = 1.2
"""How much of its budget the quick tier may take."""

HEADING = """\
# The seconds that the tests of each file take on a quiet machine with two cores, by tier; the longest first.
# `pytest --write-times` writes it. The quick tier's budget: lab/tests/house/test_times.py.
"""


class Table(NamedTuple):
    budget_s: float
    seconds: Mapping[str, Mapping[str, float]]
    """By tier and file."""

    def of(self, file: str, tiers: Iterable[str]) -> float:
        return sum(self.seconds[tier].get(file, 0.0) for tier in tiers) or DEFAULT_S

    def files(self) -> set[str]:
        return {file for tier in TIERS for file in self.seconds[tier]}

    def quick_s(self, files: Iterable[str] = ()) -> float:
        """The sum of the quick tier. Those of the files that are in no tier count with the default."""
        return sum(self.seconds["quick"].values()) + DEFAULT_S * len(set(files) - self.files())

    def kept(self, files: Iterable[str] = ()) -> bool:
        return self.quick_s(files) <= self.budget_s * GROWTH_MAX


def parse(text: str) -> Table:
    found = tomllib.loads(text)
    return Table(float(found["budget_s"]), {tier: found.get(tier, {}) for tier in TIERS})


def load(root: Path) -> Table:
    """Empty where there is none."""
    path = root / TABLE
    return parse(path.read_text() if path.is_file() else "budget_s = 0")


def text_of(table: Table) -> str:
    lines = [HEADING + f"budget_s = {table.budget_s:.0f} # of the quick tier, all files together"]
    for tier in TIERS:
        rows = sorted(table.seconds[tier].items(), key=lambda row: (-row[1], row[0]))
        lines += ["", f"[{tier}]", *(f'"{file}" = {seconds}' for file, seconds in rows)]
    return "\n".join(lines) + "\n"


def write(root: Path, measured: Mapping[str, Mapping[str, float]]) -> None:
    """Replaces what was measured, and drops what is no longer there: a file, and the tests of a tier in a file that
    was measured."""
    before = load(root)
    again = {file for files in measured.values() for file in files}
    seconds = {}
    for tier in TIERS:
        old = {
            file: former
            for file, former in before.seconds[tier].items()
            if (root / file).is_file() and not (file in again and tier in measured)
        }
        new = {file: max(0.1, round(taken, 1)) for file, taken in measured.get(tier, {}).items()}
        seconds[tier] = old | new
    (root / TABLE).write_text(text_of(before._replace(seconds=seconds)))
