"""Evaluates the expressions of alert rules, as Prometheus would, over scrapes at given times. Tests check by this
module when an alert fires and ends, without `promtool`.

Only syntax that Wiresum's rules use is supported: selectors with matchers, `rate` and `increase` over a range,
`absent`, `time()`, numbers, `+ - * /`, comparisons, `and`, `or` and `unless` with `on (...)`. Other syntax is an error.
Nothing is extrapolated: `rate` is the increase between the first and the last sample of the range, divided by the time
between them.
"""

from __future__ import annotations

import itertools
import operator
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

STALE_S = 300.0
"""How long a sample counts."""
NAME = "__name__"
Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Value = Vector | float

_TOKENS = re.compile(
    r'\s*(?:(?P<number>\d+(?:\.\d+)?(?:e\d+)?)|(?P<word>[A-Za-z_]\w*)|(?P<text>"[^"]*")|(?P<mark>[=!]~|[<>=!]=|[-+*/<>(){}\[\],=]))'
)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt, "<": operator.lt, ">=": operator.ge, "<=": operator.le, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
_SUMS: dict[str, Callable[[float, float], float]] = {"+": operator.add, "-": operator.sub}
_PRODUCTS: dict[str, Callable[[float, float], float]] = {"*": operator.mul, "/": operator.truediv}


class Scrapes:
    """Scraped samples, by time."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._samples: list[Vector] = []

    def add(self, at: float, text: str, **target: str) -> None:
        """Adds a scrape. Times must ascend; scrapes of several targets may have the same time. `target` has labels that
        Prometheus adds, like `instance`."""
        found = {} if self._times[-1:] != [at] else self._samples.pop()
        self._times = [time for time in self._times if time != at]
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found[frozenset({**sample.labels, **target, NAME: sample.name}.items())] = sample.value
        assert not self._times or at > self._times[-1], "time goes on"
        self._times.append(at)
        self._samples.append(found)

    def latest(self, at: float) -> Vector:
        """The samples of the newest scrape: a series that is absent there has ended. Empty if the scrape is stale."""
        index = bisect_right(self._times, at) - 1
        return self._samples[index] if index >= 0 and at - self._times[index] < STALE_S else {}

    def between(self, begin: float, end: float) -> Iterable[tuple[float, Vector]]:
        return (each for each in zip(self._times, self._samples, strict=True) if begin <= each[0] <= end)


class Rule(NamedTuple):
    expression: str
    for_s: float

    def fires(self, scrapes: Scrapes, at: float, *, every_s: float = 15.0) -> list[dict[str, str]]:
        """The labels of each alert that fires: its condition has held for as long as the rule demands."""
        moments = [at - back * every_s for back in range(int(self.for_s / every_s), -1, -1)]
        pending = [set(_as_vector(evaluate(self.expression, scrapes, moment))) for moment in moments]
        return [dict(labels) for labels in set.intersection(*pending)]


def seconds(text: str) -> float:
    """Seconds of a duration like 5m."""
    return float(text[:-1]) * _SECONDS[text[-1]]


def evaluate(expression: str, scrapes: Scrapes, at: float) -> Value:
    """The value of an expression at a time. Raises `ValueError` for unsupported syntax."""
    return _Evaluation(expression, scrapes, at).value()


def selectors(expression: str) -> list[tuple[str, dict[str, str]]]:
    """The metrics of an expression, each with its matchers `=` and `=~`."""
    found = []
    for name, matchers in re.findall(r"\b((?:wiresum|process)_\w+)(?:\{([^}]*)\})?", expression):
        found.append((name, dict(re.findall(r'(\w+)=~?"([^"]*)"', matchers))))
    return found


class _Evaluation:
    """The evaluation of one expression at one time, by recursive descent."""

    def __init__(self, expression: str, scrapes: Scrapes, at: float) -> None:
        self._expression, self._scrapes, self._at = expression, scrapes, at
        self._tokens: list[tuple[str, str]] = []
        place = 0
        while place < len(expression.rstrip()):
            match = _TOKENS.match(expression, place)
            if match is None:
                raise ValueError(f"{expression!r}: what is at {place}?")
            assert match.lastgroup is not None
            self._tokens.append((match.lastgroup, match[match.lastgroup]))
            place = match.end()
        self._tokens.append(("end", ""))

    def value(self) -> Value:
        found = self._or()
        self._take("")
        return found

    # Operators, in ascending order of precedence.

    def _or(self) -> Value:
        left = self._and()
        while self._has("or"):
            keys, right = self._on(), _as_vector(self._and())
            there = {_part(labels, keys) for labels in _as_vector(left)}
            left = {
                **_as_vector(left),
                **{labels: v for labels, v in right.items() if _part(labels, keys) not in there},
            }
        return left

    def _and(self) -> Value:
        left = self._comparison()
        while (unless := self._next == "unless") or self._next == "and":
            self._take(self._next)
            keys = self._on()
            there = {_part(labels, keys) for labels in _as_vector(self._comparison())}
            left = {labels: v for labels, v in _as_vector(left).items() if (_part(labels, keys) in there) is not unless}
        return left

    def _comparison(self) -> Value:
        left = self._sum()
        while self._next in _COMPARISONS:
            holds, right = _COMPARISONS[self._take(self._next)], self._sum()
            pairs = _pairs(_as_vector(left), right)
            left = {labels: a for labels, (a, b) in pairs.items() if holds(a, b)}
        return left

    def _sum(self) -> Value:
        return self._arithmetic(_SUMS, self._product)

    def _product(self) -> Value:
        return self._arithmetic(_PRODUCTS, self._term)

    def _arithmetic(self, operators: Mapping[str, Callable[[float, float], float]], part: Callable[[], Value]) -> Value:
        left = part()
        while self._next in operators:
            apply, right = operators[self._take(self._next)], part()
            if not isinstance(left, dict) and not isinstance(right, dict):
                left = apply(left, right)
            elif not isinstance(left, dict):
                assert isinstance(right, dict)
                left = {_part(labels): apply(left, v) for labels, v in right.items()}
            else:
                left = {_part(labels): apply(a, b) for labels, (a, b) in _pairs(left, right).items()}
        return left

    # Terms.

    def _term(self) -> Value:
        kind, text = self._tokens[0]
        if kind == "number":
            return float(self._take(text))
        if self._has("("):
            found = self._or()
            self._take(")")
            return found
        if kind != "word":
            raise ValueError(f"{self._expression!r}: {text!r} is no term")
        self._take(text)
        if text in ("rate", "increase"):
            return self._counted(by_second=text == "rate")
        if text == "time":
            self._take("(")
            self._take(")")
            return self._at
        if text == "absent":
            self._take("(")
            found = self._or()
            self._take(")")
            return {} if found else {frozenset(): 1.0}
        select = self._selector(text)
        return {labels: v for labels, v in self._scrapes.latest(self._at).items() if select(labels)}

    def _counted(self, *, by_second: bool) -> Value:
        self._take("(")
        select = self._selector(self._take(self._next))
        self._take("[")
        number, unit = self._take(self._next), self._take(self._next)
        self._take("]")
        self._take(")")
        series: dict[Labels, list[tuple[float, float]]] = {}
        for at, samples in self._scrapes.between(self._at - seconds(number + unit), self._at):
            for labels, v in samples.items():
                if select(labels):
                    series.setdefault(labels, []).append((at, v))
        found: Vector = {}
        for labels, points in series.items():
            if len(points) > 1:  # a single sample shows no increase
                rises = (b - a if b >= a else b for (_, a), (_, b) in itertools.pairwise(points))
                found[_part(labels)] = sum(rises) / (points[-1][0] - points[0][0] if by_second else 1.0)
        return found

    def _selector(self, name: str) -> Callable[[Labels], bool]:
        matchers: list[tuple[str, str, str]] = [(NAME, "=", name)]
        if self._has("{"):
            while not self._has("}"):
                label, how, text = self._take(self._next), self._take(self._next), self._take(self._next)
                matchers.append((label, how, text.strip('"')))
                self._has(",")

        def selects(labels: Labels) -> bool:
            given = dict(labels)
            for label, how, text in matchers:
                there = given.get(label, "")
                same = there == text if how in ("=", "!=") else re.fullmatch(text, there) is not None
                if same is how.startswith("!"):
                    return False
            return True

        return selects

    def _on(self) -> list[str] | None:
        if not self._has("on"):
            return None
        self._take("(")
        keys = []
        while not self._has(")"):
            keys.append(self._take(self._next))
            self._has(",")
        return keys

    # Tokens.

    @property
    def _next(self) -> str:
        return self._tokens[0][1]

    def _has(self, text: str) -> bool:
        if self._next != text:
            return False
        del self._tokens[0]
        return True

    def _take(self, text: str) -> str:
        if self._next != text:
            raise ValueError(f"{self._expression!r}: {self._next!r} where {text!r} should be")
        del self._tokens[0]
        return text


def _as_vector(value: Value) -> Vector:
    return value if isinstance(value, dict) else {frozenset(): value}


def _part(labels: Labels, keys: list[str] | None = None) -> Labels:
    """The labels by which two series match: those in `keys`; without `keys`, all but the name."""
    return frozenset(each for each in labels if (each[0] in keys if keys is not None else each[0] != NAME))


def _pairs(left: Vector, right: Value) -> dict[Labels, tuple[float, float]]:
    if not isinstance(right, dict):
        return {labels: (v, right) for labels, v in left.items()}
    others = {_part(labels): v for labels, v in right.items()}
    return {labels: (v, others[_part(labels)]) for labels, v in left.items() if _part(labels) in others}
