"""The table of the test files and their seconds: every file is in it, and the quick tier keeps to its budget."""

from __future__ import annotations

import fnmatch
from pathlib import Path

from wiresum_lab import REPOSITORY
from wiresum_lab.suite import times

TABLE = times.load(REPOSITORY)


def test_every_test_file_is_in_the_table_and_no_other(tracked: list[Path]) -> None:
    files = {str(path.relative_to(REPOSITORY)) for path in tracked if fnmatch.fnmatch(path.name, "test_*.py")}
    new, gone = sorted(files - TABLE.files()), sorted(TABLE.files() - files)
    assert not new, f"pytest --write-times {' '.join(new)} measures them"
    assert not gone, f"these are in {times.TABLE}, and not here: {gone}"


def test_the_quick_tier_keeps_to_its_budget() -> None:
    """The sum is of the table, not of this run: so no load can break it."""
    assert TABLE.kept(), "\n".join(
        [f"{TABLE.quick_s():.0f} s of {TABLE.budget_s:.0f} s, and a fifth (git diff shows what grew). The longest:"]
        + [f"{file}: {seconds} s" for file, seconds in list(TABLE.seconds["quick"].items())[:20]]
    )
