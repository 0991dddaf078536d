"""A run's findings, by rule, as text and as JUnit XML."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from wiresum.conformance.checks import Check
from wiresum.conformance.player import Failure

_UNPRINTABLE = re.compile(r"[^\t\n -~]")


@dataclass(frozen=True)
class Outcome:
    check: Check
    failures: list[Failure]


class Report:
    def __init__(self, outcomes: Sequence[Outcome], left_out: int = 0) -> None:
        """`left_out`: the number of checks that the switch's profiles leave out."""
        self._outcomes, self._left_out = outcomes, left_out

    @property
    def failed(self) -> list[Outcome]:
        return [outcome for outcome in self._outcomes if outcome.failures]

    @property
    def broken_rules(self) -> set[str]:
        return {rule for outcome in self._outcomes for failure in outcome.failures for rule in failure.rules}

    def lines(self) -> Iterator[str]:
        """Yields the text: a line for each rule, then the differences, then the totals."""
        for rule in sorted({rule for outcome in self._outcomes for rule in _rules(outcome)}, key=_order):
            concerned = [outcome for outcome in self._outcomes if rule in _rules(outcome)]
            broken = [outcome for outcome in concerned if any(rule in failure.rules for failure in outcome.failures)]
            said = f"FAILS  {', '.join(str(outcome.check) for outcome in broken)}" if broken else "holds"
            yield f"{rule:12} {len(concerned):4} {'check' if len(concerned) == 1 else 'checks'}  {said}"
        for outcome in self.failed:
            yield ""
            yield f"{outcome.check}: {', '.join(sorted(_rules(outcome), key=_order))}"
            yield from (f"  {line}" for failure in outcome.failures for line in failure.text.splitlines())
        yield ""
        left_out = f"; {self._left_out} left out, of other profiles" if self._left_out else ""
        yield f"{len(self._outcomes)} checks, {len(self.failed)} failed{left_out}"

    def junit(self) -> str:
        """Returns JUnit XML: a test case for each check."""
        suite = ElementTree.Element(
            "testsuite", name="wiresum conformance", tests=str(len(self._outcomes)), failures=str(len(self.failed))
        )
        for outcome in self._outcomes:
            case = ElementTree.SubElement(
                suite, "testcase", classname=f"conformance.{outcome.check.group}", name=outcome.check.name
            )
            properties = ElementTree.SubElement(case, "properties")
            for rule in sorted(_rules(outcome), key=_order):
                ElementTree.SubElement(properties, "property", name="rule", value=rule)
            for failure in outcome.failures:
                message = f"breaks {', '.join(failure.rules)}"
                text = _UNPRINTABLE.sub("?", failure.text)
                ElementTree.SubElement(case, "failure", message=message).text = text
        ElementTree.indent(suite)
        return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _rules(outcome: Outcome) -> set[str]:
    return {*outcome.check.rules, *(rule for failure in outcome.failures for rule in failure.rules)}


def _order(rule: str) -> tuple[list[int], str]:
    """Sorts rules by number, and everything else after them."""
    return [int(number) for number in re.findall(r"[0-9]+", rule)] or [sys.maxsize], rule
