"""The table of docs/security.md says in each cell who can do what, and names a test of that; each of these exists."""

from __future__ import annotations

import ast
import re

from wiresum_lab import REPOSITORY

PAGE = (REPOSITORY / "docs" / "security.md").read_text()
USUAL_FOLDER = "controller/tests/controller/"
COLUMNS = ["", "a stranger", "a tenant", "a key in a hostile hand", "an operator"]


def section(heading: str) -> str:
    _, _, rest = PAGE.partition(f"\n## {heading}\n")
    return rest.partition("\n## ")[0]


def cells() -> list[list[str]]:
    rows = [line for line in section("Who can do what").splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def named_tests() -> dict[int, str]:
    """Path and name, by number."""
    found = re.findall(r"^(\d+)\. `(\S+)`$", section("Tests of the table"), re.MULTILINE)
    return {int(number): test for number, test in found}


def functions_of(path: str) -> set[str]:
    for folder in ("", USUAL_FOLDER):
        file = REPOSITORY / folder / path
        if file.is_file():
            return {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)}
    return set()


def test_each_cell_says_can_or_cannot_and_names_its_tests() -> None:
    heading, _, *rows = cells()
    assert heading == COLUMNS
    assert len(rows) >= 20
    wrong = [
        (ability, cell)
        for ability, *row in rows
        for cell in row
        if len(row) != len(COLUMNS) - 1 or not re.fullmatch(r"can(not)?\b[^[]*( \[\d+\])+", cell)
    ]
    assert wrong == []


def test_each_number_of_the_table_is_that_of_a_test_which_exists_in_the_order_of_their_first_mention() -> None:
    named = named_tests()
    used = dict.fromkeys(int(number) for row in cells() for cell in row for number in re.findall(r"\[(\d+)\]", cell))
    assert list(used) == list(named) == list(range(1, len(named) + 1))
    assert len(set(named.values())) == len(named)
    missing = [test for test in named.values() if test.partition("::")[2] not in functions_of(test.partition("::")[0])]
    assert missing == []
