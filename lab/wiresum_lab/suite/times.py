"""The committed table of the test files and their seconds: `lab/tests/times.toml`.

A run starts the longest files first. The sum of the quick tier has a budget (`lab/tests/house/test_times.py`). The sum
comes from the table, not from the run, so that load cannot exceed the budget. `pytest --write-times` measures anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import tomli

TABLE = Path("lab/tests/times.toml")
"""The file of the table, relative to the checkout."""
TIERS = ("quick", "slow", "nightly")
DEFAULT_S = 5.0
"""Seconds of a file that is not in the table."""
GROWTH_MAX = 1.2
"""Largest sum of the quick tier, relative to its budget."""

HEADING = """\
# The seconds that the tests of each file take on a quiet machine with two cores, by tier; the longest first.
# `pytest --write-times` writes it. The quick tier's budget: lab/tests/house/test_times.py.
"""


class Table(NamedTuple):
    budget_s: float
    seconds: Mapping[str, Mapping[str, float]]
    """Seconds by tier and file."""

    def of(self, file: str, tiers: Iterable[str]) -> float:
        return sum(self.seconds[tier].get(file, 0.0) for tier in tiers) or DEFAULT_S

    def files(self) -> set[str]:
        return {file for tier in TIERS for file in self.seconds[tier]}

    def quick_s(self, files: Iterable[str] = ()) -> float:
        """The sum of the quick tier. Files that are in no tier count with the default."""
        return sum(self.seconds["quick"].values()) + DEFAULT_S * len(set(files) - self.files())

    def kept(self, files: Iterable[str] = ()) -> bool:
        return self.quick_s(files) <= self.budget_s * GROWTH_MAX


def parse(text: str) -> Table:
    found = tomli.loads(text)
    return Table(float(found["budget_s"]), {tier: found.get(tier, {}) for tier in TIERS})


def load(root: Path) -> Table:
    """The table of a checkout; empty if there is none."""
    path = root / TABLE
    return parse(path.read_text() if path.is_file() else "budget_s = 0")


def text_of(table: Table) -> str:
    lines = [HEADING + f"budget_s = {table.budget_s:.0f} # of the quick tier, all files together"]
    for tier in TIERS:
        rows = sorted(table.seconds[tier].items(), key=lambda row: (-row[1], row[0]))
        lines += ["", f"[{tier}]", *(f'"{file}" = {seconds}' for file, seconds in rows)]
    return "\n".join(lines) + "\n"


def write(root: Path, measured: Mapping[str, Mapping[str, float]]) -> None:
    """Writes measured seconds into the table. Drops files that no longer exist, and tiers that a measured file no
    longer has."""
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
