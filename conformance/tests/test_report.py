"""The report says of each rule whether it holds, and shows each difference."""

from __future__ import annotations

from xml.etree import ElementTree

from wiresum.conformance.checks import Check
from wiresum.conformance.player import Failure, Wrong
from wiresum.conformance.report import Outcome, Report


def check(name: str, *rules: str) -> Check:
    return Check("sums", name, rules, frozenset(), lambda _switch: iter(()))


REPORT = Report(
    [
        Outcome(check("adds", "R3.13", "R3.2"), []),
        Outcome(check("wraps", "R3.13"), [Failure("sums.txt:7: 1.0 DATA\n    1.0 gets \x001, and not 2", ("R3.13",))]),
        Outcome(check("seed_1"), [Failure("seed 1:4", ("R8.10", "ping"))]),
    ],
    left_out=2,
)


def test_the_text_has_a_line_for_each_rule_in_order_and_then_the_differences() -> None:
    rules, wraps, seed, total = "\n".join(REPORT.lines()).split("\n\n")
    assert [line.split()[:2] for line in rules.splitlines()] == [
        ["R3.2", "1"],
        ["R3.13", "2"],
        ["R8.10", "1"],
        ["ping", "1"],
    ]
    assert [("FAILS  " in line, line.endswith("holds")) for line in rules.splitlines()] == [
        (False, True),
        (True, False),
        (True, False),
        (True, False),
    ]
    assert wraps.splitlines()[:2] == ["sums/wraps: R3.13", "  sums.txt:7: 1.0 DATA"]
    assert seed.startswith("sums/seed_1: R8.10, ping")
    assert total == "3 checks, 2 failed; 2 left out, of other profiles"


def test_junit_has_a_case_for_each_check_with_its_rules() -> None:
    suite = ElementTree.fromstring(REPORT.junit())
    assert (suite.get("tests"), suite.get("failures")) == ("3", "2")
    adds, wraps, _ = suite.findall("testcase")
    assert [each.get("value") for each in adds.iter("property")] == ["R3.2", "R3.13"]
    assert adds.find("failure") is None
    failure = wraps.find("failure")
    assert failure is not None and failure.get("message") == "breaks R3.13"
    assert failure.text is not None and failure.text.endswith("gets ?1, and not 2"), "XML has no zero byte"


def test_only_rules_about_the_wrong_part_of_an_answer_are_blamed() -> None:
    rules = ("R3.15", "R3.16", "R3.13")
    assert Wrong("another exponent", frozenset({"R3.15"})).blames(rules) == ("R3.15",)
    assert Wrong("no answer").blames(rules) == ("R3.16",)
    assert Wrong("another flag", frozenset({"R3.11"})).blames(rules) == rules, "none is about it"
