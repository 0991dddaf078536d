"""What the rules of docs/protocol.md are cited by, and when a citation is to be read again."""

from __future__ import annotations

from pathlib import Path

import pytest

from wiresum_lab import REPOSITORY, rules

VECTORS = "conformance/vectors/sums.txt"
PAGE = """# Protocol

- **R2.1** A header has
  24 bytes:

  | offset | field |
  |---|---|
  | 0 | version |

A paragraph.
- **R3.1** A switch adds.
"""
FILES = {
    rules.PAGE: PAGE,
    rules.P4: '["p4src/common/verdict.p4"]\n"refuse(STALE)" = "R2.1 R3.1"\n',
    "p4src/common/verdict.p4": "hold();\nrefuse(STALE);\n",
    "src/switch.cpp": "add();  // R2.1, R3.1\n",
    "src/tests/switch_test.cpp": "TEST(Switch, Adds) {  // R3.1\n",
    VECTORS: "scenario sums  # R2.1\n",
    "docs/numerics.md": "R9.9 is no citation here.\n",
    "lab/wiresum_lab/absent.py": "# R9.9 neither\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / rules.READ).write_text("")
    checkout = seen(tmp_path)
    rules.write_read(tmp_path, checkout, list(checkout.rules))
    return tmp_path


def seen(tree: Path) -> rules.Checkout:
    return rules.read_checkout(tree, seen_files(tree))


def seen_files(tree: Path) -> list[Path]:
    return [path for path in sorted(tree.rglob("*")) if path.is_file()]


def complaints(tree: Path, name: str, old: str, new: str) -> list[str]:
    """After a change of one file."""
    path = tree / name
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    return rules.complaints_of(seen(tree))


def test_where_each_rule_is_implemented_and_tested_nothing_is_wrong(tree: Path) -> None:
    assert rules.complaints_of(seen(tree)) == []


def test_a_rule_that_nothing_implements_is_said(tree: Path) -> None:
    complaints(tree, rules.P4, "R2.1 R3.1", "R2.1")
    assert complaints(tree, "src/switch.cpp", ", R3.1", "") == ["docs/protocol.md: R3.1 is cited by no implementation"]


def test_a_rule_that_nothing_tests_is_said(tree: Path) -> None:
    assert complaints(tree, VECTORS, "R2.1", "") == ["docs/protocol.md: R2.1 is cited by no test"]


@pytest.mark.parametrize(("name", "line"), [("src/switch.cpp", 1), (rules.P4, 2)])
def test_a_citation_of_no_rule_is_said_with_its_place(tree: Path, name: str, line: int) -> None:
    cited = "p4src/common/verdict.p4" if name == rules.P4 else name
    assert complaints(tree, name, "R3.1", "R3.1 R3.10") == [f"{cited}:{line}: docs/protocol.md has no R3.10"]


@pytest.mark.parametrize(("old", "new"), [("adds", "subtracts"), ("| 0 |", "| 1 |")])
def test_when_a_rule_changes_its_citations_are_to_be_read_once(tree: Path, old: str, new: str) -> None:
    number = "R3.1" if old == "adds" else "R2.1"
    (said,) = complaints(tree, rules.PAGE, old, new)
    heading, *places = said.split("\n    ")
    assert heading.startswith(f"{number} has changed")
    assert places == [str(each) for each in seen(tree).citations if each.rule == number] != []
    rules.write_read(tree, seen(tree), [number])
    assert rules.complaints_of(seen(tree)) == []


def test_other_line_breaks_and_other_paragraphs_change_no_rule(tree: Path) -> None:
    assert complaints(tree, rules.PAGE, "has\n  24", "has 24") == []
    assert complaints(tree, rules.PAGE, "A paragraph.", "Another paragraph.") == []


def test_a_number_that_was_taken_out_is_not_given_again(tree: Path) -> None:
    for name in (rules.P4, "src/switch.cpp", "src/tests/switch_test.cpp"):
        complaints(tree, name, "R3.1", "R2.1")
    rule = "- **R3.1** A switch adds.\n"
    assert complaints(tree, rules.PAGE, rule, "") == ["docs/protocol.md has no R3.1 any more: run --read R3.1"]
    rules.write_read(tree, seen(tree), ["R3.1"])
    assert rules.complaints_of(seen(tree)) == []
    said = complaints(tree, rules.PAGE, "A paragraph.\n", f"A paragraph.\n{rule}")
    assert "docs/protocol.md: R3.1 was another rule's number: give this one the next number of its section" in said


def test_a_number_is_one_rules(tree: Path) -> None:
    assert "docs/protocol.md: R3.1 is there twice" in complaints(
        tree, rules.PAGE, "A paragraph.\n", "- **R3.1** A switch adds.\n"
    )


@pytest.mark.parametrize(("new", "lines"), [("hold", 0), ("refuse(STALE);\nrefuse(STALE)", 2)])
def test_a_citation_for_p4_names_one_line(tree: Path, new: str, lines: int) -> None:
    (said,) = complaints(tree, "p4src/common/verdict.p4", "refuse(STALE)", new)
    assert said.endswith(f"p4src/common/verdict.p4 has 'refuse(STALE)' in {lines} lines, not in one")


def test_the_table_has_each_rule_with_its_places(tree: Path) -> None:
    checkout = seen(tree)
    whole = rules.table(checkout, list(checkout.rules)).splitlines()
    assert rules.table(checkout, ["R3.1"]).splitlines() == whole[4:]
    assert whole == [
        "R2.1  A header has 24 bytes: | offset | field | |---|---| | 0 | version |",
        "    implemented src/switch.cpp:1",
        "    implemented p4src/common/verdict.p4:2",
        "    tested      conformance/vectors/sums.txt:1",
        "R3.1  A switch adds.",
        "    implemented src/switch.cpp:1",
        "    implemented p4src/common/verdict.p4:2",
        "    tested      src/tests/switch_test.cpp:1",
    ]


def test_the_command_fails_until_what_has_changed_is_read(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rules, "REPOSITORY", tree)
    monkeypatch.setattr(rules, "tracked_files", lambda: seen_files(tree))
    assert rules.main([]) == 0
    complaints(tree, rules.PAGE, "adds", "subtracts")
    assert rules.main([]) == 1
    with pytest.raises(SystemExit):
        rules.main(["--read", "R3.9"])
    assert "has never had R3.9" in capsys.readouterr().err
    assert rules.main(["--read", "R3.1"]) == 0
    assert rules.main([]) == 0
    assert rules.main(["--table"]) == 0
    assert "R3.1  A switch subtracts." in capsys.readouterr().out


def test_the_numbers_of_a_section_are_in_order() -> None:
    numbers = list(rules.RULE.findall((REPOSITORY / rules.PAGE).read_text()))
    assert [number for number, _ in numbers] == sorted((number for number, _ in numbers), key=rules.order)
    assert len(numbers) > 100
