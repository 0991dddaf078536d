"""The conformance suite notices wrong switches, and names the rule that each breaks: the Tofino program, interpreted,
with one line of its source changed (mutants.toml)."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from bmv2_tests.tna_interpreter.switch import Switch
from bmv2_tests.tofino_network import Tofino
from wiresum.compiled import compile_program
from wiresum.conformance.checks import all_checks, chosen

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


class Mutant(NamedTuple):
    path: str
    name: str
    rule: str
    """The rule that the suite must say is broken."""
    before: str
    after: str

    def __str__(self) -> str:
        return self.name.replace(" ", "_")


TABLE = tomllib.loads(Path(__file__).with_name("mutants.toml").read_text())
MUTANTS = [Mutant(path, name, *row) for path, rows in TABLE.items() for name, row in rows.items()]


def mutated(mutant: Mutant, folder: Path) -> Path:
    """The program with the first of the places changed that have the mutant's text."""
    sources = folder / "p4src"
    shutil.copytree(compile_program.FOLDER, sources, ignore=shutil.ignore_patterns("*.json", "*.txtpb"))
    text = (sources / mutant.path).read_text()
    assert mutant.before in text, f"{mutant.path} does not say {mutant.before!r} any more"
    (sources / mutant.path).write_text(text.replace(mutant.before, mutant.after, 1))
    return sources / "tna" / "main.p4"


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_wrong_switch_fails_with_the_rule_that_it_breaks(mutant: Mutant, tmp_path: Path) -> None:
    switch = Tofino(Switch(mutated(mutant, tmp_path), generation=2))
    checks = chosen(all_checks(seeds=(1, 2), packets=400), switch.profiles)
    broken: set[str] = set()
    for check in sorted(checks, key=lambda check: mutant.rule not in check.rules):
        broken |= {rule for failure in check.failures(switch) for rule in failure.rules}
        if mutant.rule in broken:
            return
    pytest.fail(f"{mutant.name}: the suite names {sorted(broken) or 'nothing'}")


def test_there_are_as_many_different_mutants_as_promised() -> None:
    assert len({(mutant.path, mutant.before, mutant.after) for mutant in MUTANTS}) == len(MUTANTS) >= 40
