"""What every experiment is made of: curves, a table, and claims that hold or do not."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

SIGMAS = 5.0
"""Of a normal value: beyond five with probability 6e-7."""


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
        """The largest factor of a value to the bound at the same step."""
        return max(value / most for value, most in zip(self.values, bound.values, strict=True))

    def settles_below(self, level: float) -> float:
        """The first recorded step from which on all values are below the level; infinite if the last one is not."""
        settled = float("inf")
        for step, value in zip(reversed(self.steps), reversed(self.values), strict=True):
            if not value < level:
                break
            settled = step
        return settled


@dataclass(frozen=True)
class Claim:
    """What a theorem or a reference says of a number, and the number that was measured."""

    text: str
    value: float
    at_least: float = -math.inf
    at_most: float = math.inf

    @property
    def holds(self) -> bool:
        """A value that is not a number does not hold."""
        return self.at_least <= self.value <= self.at_most

    def __str__(self) -> str:
        return f"{self.text}: {self.value:.4g} in [{self.at_least:.4g}, {self.at_most:.4g}]"

    @classmethod
    def equal(cls, text: str, value: float, expected: float, *, rel: float = 1e-9) -> Claim:
        margin = abs(expected) * rel
        return cls(text, value, expected - margin, expected + margin)

    @classmethod
    def mean(cls, text: str, samples: Sequence[float], expected: float) -> Claim:
        """The mean of random samples is what is expected, within SIGMAS of its standard errors, and float32's own."""
        margin = SIGMAS * float(np.std(samples, ddof=1)) / math.sqrt(len(samples)) + 1e-5 * abs(expected)
        return cls(text, float(np.mean(samples)), expected - margin, expected + margin)

    @classmethod
    def alike(cls, text: str, samples: Sequence[float], reference: Sequence[float], *, margin_min: float) -> Claim:
        """The means of two samples of the same distribution: their difference is within SIGMAS standard errors.

        The reference's deviation stands for both, since ours may be of a few runs. `margin_min` is for distributions
        whose tails a few runs do not show.
        """
        error = float(np.std(reference, ddof=1)) * math.sqrt(1 / len(samples) + 1 / len(reference))
        expected, margin = float(np.mean(reference)), max(SIGMAS * error, margin_min)
        return cls(text, float(np.mean(samples)), expected - margin, expected + margin)


def spread(samples: Sequence[float] | npt.NDArray[Any]) -> str:
    """The mean, and how far samples go."""
    return f"{np.mean(samples):.1f} ({min(samples):.1f} to {max(samples):.1f})"


@dataclass(frozen=True)
class Report:
    title: str
    header: list[str]
    rows: list[list[str]]
    claims: list[Claim]
    draw: Callable[[Figure], None]

    def table(self) -> str:
        """As Markdown."""
        widths = [max(len(row[at]) for row in [self.header, *self.rows]) for at in range(len(self.header))]
        lines = [self.header, ["-" * width for width in widths], *self.rows]
        return "\n".join(
            "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
            for line in lines
        )
