"""Proximal terms R that are added to f; their proximal operator is argmin of R(z) + |z - x|^2 / (2 step)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from wiresum.compress.arrays import Vector


class Proximal(ABC):
    @abstractmethod
    def __call__(self, x: Vector, step_size: float) -> Vector: ...


@dataclass(frozen=True)
class L1(Proximal):
    """R(x) = weight |x|_1: soft thresholding."""

    weight: float

    def __call__(self, x: Vector, step_size: float) -> Vector:
        shrunk: Vector = np.sign(x) * np.maximum(np.abs(x) - step_size * self.weight, 0)
        return shrunk


@dataclass(frozen=True)
class Box(Proximal):
    """R(x) = 0 for low <= x <= high, else infinite: projection."""

    low: float
    high: float

    def __call__(self, x: Vector, step_size: float) -> Vector:
        return np.clip(x, self.low, self.high)
