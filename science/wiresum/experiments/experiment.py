"""Curves, claims and reports of experiments."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

SIGMAS = 5.0
"""Tolerance of means in standard errors. A normal value is farther than five sigmas from its mean with probability
6e-7."""


@dataclass
class Curve:
    label: str
    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, step: int, value: float) -> None:
        self.steps.append(step)
        self.values.append(value)

    @property
    def last(self) -> float:
        return self.values[-1]

    def over(self, bound: Curve) -> float:
        """The largest ratio of a value to the bound at the same step."""
        return max(value / most for value, most in zip(self.values, bound.values, strict=True))

    def settles_below(self, level: float) -> float:
        """The first step from which all values are below the level; infinite if the last value is not."""
        settled = float("inf")
        for step, value in zip(reversed(self.steps), reversed(self.values), strict=True):
            if not value < level:
                break
            settled = step
        return settled


@dataclass(frozen=True)
class Claim:
    """A measured number, and the interval that a theorem or a reference gives for it."""

    text: str
    value: float
    at_least: float = -math.inf
    at_most: float = math.inf

    @property
    def holds(self) -> bool:
        """Whether the value is in its interval; False for NaN."""
        return self.at_least <= self.value <= self.at_most

    def __str__(self) -> str:
        return f"{self.text}: {self.value:.4g} in [{self.at_least:.4g}, {self.at_most:.4g}]"

    @classmethod
    def equal(cls, text: str, value: float, expected: float, *, rel: float = 1e-9) -> Claim:
        margin = abs(expected) * rel
        return cls(text, value, expected - margin, expected + margin)

    @classmethod
    def mean(cls, text: str, samples: Sequence[float], expected: float) -> Claim:
        """The claim that the mean of samples is within SIGMAS standard errors of the expectation, with a margin for
        float32."""
        margin = SIGMAS * float(np.std(samples, ddof=1)) / math.sqrt(len(samples)) + 1e-5 * abs(expected)
        return cls(text, float(np.mean(samples)), expected - margin, expected + margin)

    @classmethod
    def alike(cls, text: str, samples: Sequence[float], reference: Sequence[float], *, margin_min: float) -> Claim:
        """The claim that the means of two samples differ by at most SIGMAS standard errors.

        The standard deviation is the reference's, since there may be few samples. `margin_min` is for distributions
        with long tails.
        """
        error = float(np.std(reference, ddof=1)) * math.sqrt(1 / len(samples) + 1 / len(reference))
        expected, margin = float(np.mean(reference)), max(SIGMAS * error, margin_min)
        return cls(text, float(np.mean(samples)), expected - margin, expected + margin)


def spread(samples: Sequence[float] | npt.NDArray[Any]) -> str:
    """A text with the mean and the range."""
    return f"{np.mean(samples):.1f} ({min(samples):.1f} to {max(samples):.1f})"


@dataclass(frozen=True)
class Report:
    title: str
    header: list[str]
    rows: list[list[str]]
    claims: list[Claim]
    draw: Callable[[Figure], None]

    def table(self) -> str:
        """The table in Markdown."""
        widths = [max(len(row[at]) for row in [self.header, *self.rows]) for at in range(len(self.header))]
        lines = [self.header, ["-" * width for width in widths], *self.rows]
        return "\n".join(
            "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
            for line in lines
        )
