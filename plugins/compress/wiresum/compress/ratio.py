"""The fraction of a tensor that is sent: a number, or one that changes with the step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class WarmUp:
    """A higher ratio in the first steps, when gradients change fast: `steps` steps for each stage, then `ratio`.

    The default stages are Deep Gradient Compression's (arXiv 1712.01887, section 3.3), where each is an epoch. gTop-k
    has (0.25, 0.0725, 0.015, 0.004) before 0.001 (arXiv 1901.04359).
    """

    ratio: float
    steps: int
    stages: tuple[float, ...] = (0.25, 0.0625, 0.015625, 0.004)

    def __post_init__(self) -> None:
        for ratio in (self.ratio, *self.stages):
            require_ratio(ratio)
        if self.steps < 1:
            raise ValueError(f"each stage of a warm-up takes at least 1 step, not {self.steps}")

    def at(self, step: int) -> float:
        stage = step // self.steps
        return self.stages[stage] if stage < len(self.stages) else self.ratio


Ratio: TypeAlias = float | WarmUp


def require_ratio(ratio: Ratio) -> None:
    if not isinstance(ratio, WarmUp) and not 0 < ratio <= 1:
        raise ValueError(f"the ratio is the fraction of the values that is sent: in (0, 1], not {ratio}")


def ratio_at(ratio: Ratio, step: int) -> float:
    return ratio.at(step) if isinstance(ratio, WarmUp) else ratio


def least(ratio: Ratio) -> float:
    """The smallest ratio of all steps."""
    return min(ratio.ratio, *ratio.stages) if isinstance(ratio, WarmUp) else ratio


def count_of(ratio: float, size: int) -> int:
    """The number of values in a fraction `ratio` of `size` values, at least one."""
    return min(size, max(1, round(ratio * size)))
