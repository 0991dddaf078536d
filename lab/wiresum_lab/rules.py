"""Checks that each rule of docs/protocol.md is cited where it is implemented and where it is tested: `make lint`.

A citation is a rule's number, such as R3.7, in a source: in a comment at the line that matters, beside a test's name,
or in the first line of a test vector's scenario. P4 is cited from outside, in rules_p4.toml: what p4c makes of it is
committed with a hash of its sources, and a comment there would need the compiler.

rules_read.txt has a digest of each rule's text as its citations were last read. When a rule changes, its citations are
to be read again; `--read` then writes the new digest. The digest is there and not in the citations, so that a change of
a rule's words changes one line beside the page's, in place of every source that cites it.

    python -m wiresum_lab.rules                 what is wrong, if anything
    python -m wiresum_lab.rules --table         the rules, what implements each, and what tests it
    python -m wiresum_lab.rules --table R3.7    the same of one rule
    python -m wiresum_lab.rules --read R3.7     its citations have been read, and are right
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import tomli

from . import REPOSITORY, tracked_files

PAGE = "docs/protocol.md"
READ = "lab/wiresum_lab/rules_read.txt"
P4 = "lab/wiresum_lab/rules_p4.toml"
NOT_CITING = ("docs", "lab")
"""Folders that no rule is implemented or tested in."""
TESTS = {"tests", "bmv2_tests", "conformance"}
"""Folders whose files test, also the switches of others; the files of all others implement."""
SUFFIXES = {".c", ".cpp", ".h", ".hpp", ".proto", ".py", ".txt"}
NUMBER = re.compile(r"\bR\d+\.\d+\b")
RULE = re.compile(r"^- \*\*(R\d+\.\d+)\*\* (.*(?:\n(?:  .*)?)*)", re.MULTILINE)
"""A rule is an item of a list; what is indented below belongs to it, tables too."""
GONE = "gone"
"""In place of the digest of a rule that was taken out: its number is not given again."""


class Citation(NamedTuple):
    rule: str
    path: str
    line: int

    @property
    def is_test(self) -> bool:
        return not TESTS.isdisjoint(Path(self.path).parts)

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


class Checkout(NamedTuple):
    rules: dict[str, str]
    """The text of each rule, by its number, in the page's order."""
    citations: list[Citation]
    read: dict[str, str]
    """The digest of each rule when its citations were read."""
    complaints: list[str]
    """What is wrong already, whatever the citations say."""


def order(number: str) -> tuple[int, ...]:
    return tuple(int(part) for part in number[1:].split("."))


def digest(text: str) -> str:
    """A digest of a rule's words, however its lines are broken."""
    return hashlib.sha256(" ".join(text.split()).encode()).hexdigest()[:8]


def cited_in_sources(root: Path, files: list[Path]) -> Iterator[Citation]:
    for path in files:
        name = path.relative_to(root)
        if path.suffix not in SUFFIXES or name.parts[0] in NOT_CITING:
            continue
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            for rule in NUMBER.findall(line):
                yield Citation(rule, name.as_posix(), number)


def cited_for_p4(root: Path, complaints: list[str]) -> Iterator[Citation]:
    """By file and text, which occurs in one line of the file."""
    for name, texts in tomli.loads((root / P4).read_text()).items():
        lines = (root / name).read_text().splitlines()
        for text, rules in texts.items():
            at = [number for number, line in enumerate(lines, start=1) if text in line]
            if len(at) != 1:
                complaints.append(f"{P4}: {name} has {text!r} in {len(at)} lines, not in one")
            for rule in rules.split():
                yield Citation(rule, name, at[0] if at else 0)


def read_checkout(root: Path, files: list[Path]) -> Checkout:
    complaints: list[str] = []
    rules: dict[str, str] = {}
    for number, text in RULE.findall((root / PAGE).read_text()):
        if number in rules:
            complaints.append(f"{PAGE}: {number} is there twice")
        rules[number] = text
    citations = [*cited_in_sources(root, files), *cited_for_p4(root, complaints)]
    read = dict(line.split() for line in (root / READ).read_text().splitlines())
    return Checkout(rules, citations, read, complaints)


def complaints_of(checkout: Checkout) -> list[str]:
    rules, citations, read, found = checkout
    found = list(found)
    found += [f"{each}: {PAGE} has no {each.rule}" for each in citations if each.rule not in rules]
    for number, text in rules.items():
        cited = [each for each in citations if each.rule == number]
        found += [
            f"{PAGE}: {number} is cited by no {what}"
            for what, is_test in (("implementation", False), ("test", True))
            if not any(each.is_test is is_test for each in cited)
        ]
        if read.get(number) == GONE:
            found.append(f"{PAGE}: {number} was another rule's number: give this one the next number of its section")
        elif read.get(number) != digest(text):
            told = "".join(f"\n    {each}" for each in cited)
            found.append(f"{number} has changed. Read its citations, then run --read {number}:{told}")
    gone = [number for number, seen in read.items() if number not in rules and seen != GONE]
    return found + [f"{PAGE} has no {number} any more: run --read {number}" for number in gone]


def table(checkout: Checkout, numbers: list[str]) -> str:
    lines = []
    for number in numbers:
        text = checkout.rules[number]
        lines.append(f"{number}  {' '.join(text.split())[:100]}")
        for what, is_test in (("implemented", False), ("tested", True)):
            places = [str(each) for each in checkout.citations if each.rule == number and each.is_test is is_test]
            lines += [f"    {what:<12}{place}" for place in places or ["nowhere"]]
    return "\n".join(lines)


def write_read(root: Path, checkout: Checkout, numbers: list[str]) -> None:
    """Notes that the citations of these rules are right as the rules are now."""
    now = {number: digest(checkout.rules[number]) if number in checkout.rules else GONE for number in numbers}
    seen = sorted((checkout.read | now).items(), key=lambda each: order(each[0]))
    (root / READ).write_text("".join(f"{number} {what}\n" for number, what in seen))


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m wiresum_lab.rules", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "--table", nargs="*", metavar="RULE", help="print what implements and what tests each of these rules, or of all"
    )
    parser.add_argument("--read", nargs="+", metavar="RULE", default=[], help="its citations have been read")
    arguments = parser.parse_args(given)
    checkout = read_checkout(REPOSITORY, tracked_files())
    if unknown := set(arguments.read) - set(checkout.rules) - set(checkout.read):
        parser.error(f"{PAGE} has never had {', '.join(sorted(unknown, key=order))}")
    if unknown := set(arguments.table or []) - set(checkout.rules):
        parser.error(f"{PAGE} does not have {', '.join(sorted(unknown))}")
    if arguments.read:
        write_read(REPOSITORY, checkout, arguments.read)
        return 0
    if arguments.table is not None:
        print(table(checkout, arguments.table or list(checkout.rules)))
        return 0
    complaints = complaints_of(checkout)
    print("\n".join(complaints) or f"rules: {len(checkout.rules)}, citations: {len(checkout.citations)}")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
