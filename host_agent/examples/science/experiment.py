"""What every experiment is made of: curves, a table, and claims that hold or do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from matplotlib.figure import Figure


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

    def first_step_below(self, level: float) -> float:
        """The first recorded step whose value is below the level; infinite if there is none."""
        below = [step for step, value in zip(self.steps, self.values, strict=True) if value < level]
        return min(below, default=float("inf"))


@dataclass(frozen=True)
class Claim:
    """What the papers say, and whether it came true here."""

    text: str
    holds: bool


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
