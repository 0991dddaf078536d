"""IntSGD and IntDIANA: stochastic rounding to integers on a common scale (arXiv 2102.08374).

Workers send Int(a v). The option `scale` decides how they get a; docs/compress.md compares the two:

    maximum     the largest value of all workers fills the bits, which takes a round for the maxima first
    estimate    the paper's way, without that round: a = sqrt(d) / sqrt(2 n r + eps^2) for a tensor of d values, where
                r <- beta r + (1 - beta) |g|^2 is a moving average over the estimates g of the mean gradient, which
                have the same bits at all workers

With "estimate", the first step uses a maximum in 32 bits, as the paper's first step is exact. A later step uses a
maximum, in the usual bits, for a tensor whose estimates were zero.

An integer that does not fit its bits is clamped, as in the published int8 variant. Clamping is a bias that only a
memory corrects; the engine counts clamped integers, and warns if there is no memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from wiresum.compress import native, packing
from wiresum.compress.arrays import Int32Array, Vector
from wiresum.compress.compressor import IntegerCompressor
from wiresum.compress.memory import Memory, Shift
from wiresum.compress.quantise import Quantiser
from wiresum.compress.turn import Turn

WIDE_BITS = 32
ROUNDING = 1 + 1e-12
"""Relative tolerance for rounding errors in values at the maximum."""


@dataclass(frozen=True)
class IntSGD(IntegerCompressor):
    bits: int = 32
    scale: Literal["maximum", "estimate"] = field(default="maximum", kw_only=True)
    epsilon: float = field(default=1e-8, kw_only=True)

    def __post_init__(self) -> None:
        packing.require_width(self.bits)
        if self.scale not in ("maximum", "estimate"):
            raise ValueError(f'the scale is from a "maximum" or from the "estimate", not {self.scale!r}')
        if not 0 <= self.epsilon < math.inf:
            raise ValueError(f"epsilon is finite and not negative, not {self.epsilon}")

    @property
    def uses_length(self) -> bool:
        return self.scale == "estimate"

    def omega(self, size: int, workers: int) -> float | None:
        """The constant of scale "maximum"; None for "estimate", whose variance does not depend on the vector."""
        return None if self.uses_length else Quantiser(bits=self.bits).omega(size, workers)

    def shift_rate(self, size: int, workers: int) -> float | None:
        """The largest rate of a Shift memory. For scale "estimate" it is the paper's, 1, since the bound of the error
        does not grow with the difference that is sent."""
        return 1.0 if self.uses_length else super().shift_rate(size, workers)

    def bits_at(self, turn: Turn) -> int:
        return WIDE_BITS if self.uses_length and turn.step == 0 else self.bits

    def statistic(self, vector: Vector, turn: Turn) -> Vector | None:
        return None if turn.length is not None else Quantiser().statistic(vector, turn)

    def compress(self, vector: Vector, turn: Turn) -> Int32Array:
        bound = packing.limit(self.bits_at(turn), turn.workers)
        return native.rounded(turn.draw(), vector, np.array([self._quantum(turn)]), max(1, turn.size), bound)

    def clamped(self, vector: Vector, integers: Int32Array, turn: Turn) -> int:
        if turn.shared is not None:
            return 0  # a maximum fills the bits
        bound = packing.limit(self.bits_at(turn), turn.workers)
        if max(int(integers.max(initial=0)), -int(integers.min(initial=0))) < bound:
            return 0
        return int(np.count_nonzero(np.abs(vector, dtype=np.float64) > bound * self._quantum(turn) * ROUNDING))

    def decompress(self, integers: Int32Array, turn: Turn, contributors: int) -> Vector:
        return native.scaled(integers, np.array([self._quantum(turn) / contributors]), max(1, turn.size), turn.dtype)

    def _quantum(self, turn: Turn) -> float:
        """The step between neighbouring integers, 1/a in the notation above."""
        if turn.length is not None:
            return math.sqrt((2 * turn.workers * turn.length**2 + self.epsilon**2) / turn.size)
        assert turn.shared is not None, "the maximum of statistic() was taken"
        return float(turn.shared[0]) / packing.limit(self.bits_at(turn), turn.workers)


@dataclass(frozen=True)
class IntDIANA(IntSGD):
    """IntSGD of the differences between gradients and shifts, which vanish even if the workers' gradients do not."""

    memory: str | Memory = field(default_factory=Shift, kw_only=True)
