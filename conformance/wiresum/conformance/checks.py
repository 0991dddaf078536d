"""All checks of a run: vectors, frames, and random sequences."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial

from wiresum.conformance import traffic
from wiresum.conformance.frame_cases import CASES
from wiresum.conformance.model import with_rules
from wiresum.conformance.player import Failure, failures
from wiresum.conformance.reader import load_all
from wiresum.conformance.scenarios import Scenario
from wiresum.conformance.switch import Switch, SwitchError
from wiresum.controller.driver import DriverError

FAILURES_MAX = 3
"""A report shows at most so many differences of one check."""


@dataclass(frozen=True)
class Check:
    group: str
    """The file of vectors, "frames", or "sequences"."""
    name: str
    rules: tuple[str, ...]
    """The rules that the check proves; a random sequence proves those that its failures name."""
    needs: frozenset[str]
    run: Callable[[Switch], Iterator[Failure]]

    def __str__(self) -> str:
        return f"{self.group}/{self.name}"

    def matches(self, pattern: str) -> bool:
        """Returns whether the check fits a pattern of names, a rule, or a rule's section."""
        section = any(rule == pattern or rule.startswith(f"R{pattern}.") for rule in self.rules)
        return section or fnmatch.fnmatch(str(self), pattern) or fnmatch.fnmatch(self.name, pattern)

    def failures(self, switch: Switch) -> list[Failure]:
        """Returns the first differences. A switch that stops answering has failed the check."""
        found: list[Failure] = []
        try:
            for failure in self.run(switch):
                found.append(failure)
                if len(found) == FAILURES_MAX:
                    break
        except (SwitchError, DriverError) as error:
            found.append(Failure(f"{self.name}\n    {error}", self.rules))
        return found


def all_checks(seeds: Sequence[int] = (), packets: int = 0) -> list[Check]:
    """Returns all checks; `packets` is the length of each seed's sequence."""
    checks = [*_of_vectors()]
    checks += [Check("frames", case.name, case.rules, case.needs, case.failures) for case in CASES]
    return checks + [_sequence(seed, packets) for seed in seeds]


def chosen(checks: Collection[Check], profiles: Collection[str], only: Collection[str] = ()) -> list[Check]:
    """Returns the checks that a switch with these profiles must pass, and that match any of the patterns, if there are
    any."""
    fit = [check for check in checks if check.needs <= set(profiles)]
    return [check for check in fit if not only or any(check.matches(pattern) for pattern in only)]


@cache
def _of_vectors() -> tuple[Check, ...]:
    return tuple(_of_scenario(with_rules(scenario)) for scenario in load_all())


def _of_scenario(scenario: Scenario) -> Check:
    return Check(scenario.path.stem, scenario.name, scenario.rules, scenario.needs, partial(failures, scenario))


def _sequence(seed: int, packets: int) -> Check:
    def run(switch: Switch) -> Iterator[Failure]:
        made = traffic.scenario(seed, packets, switch.lanes, switch.profiles)
        return failures(made, switch, counts_each=False)

    return Check("sequences", f"seed_{seed}", (), frozenset(), run)
