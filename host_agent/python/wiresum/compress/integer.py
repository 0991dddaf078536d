"""IntSGD and IntDIANA: integers whose scale every worker derives from how far the model has moved (arXiv 2102.08374).

    a_k = eta sqrt(d_l) / sqrt(2 n r_k + eta^2 eps^2 d_l/d),     r_k = beta r_(k-1) + (1 - beta) |x_k - x_(k-1)|^2

for a tensor of d_l of the model's d parameters; what is sent is Int(a_k v), stochastically rounded. The model has the
same bits at all workers, so that no round is needed to agree on the scale: the natural partner of a switch. In the
first step the scale is a maximum over workers, in 32 bits: nearly exact, as the paper's first step is exact.
So it is later, in the usual bits, for a tensor that has not moved. The average starts with the first motion, not
with zero.

An integer that does not fit its bits is clamped. That is a bias, which a memory makes up for; the published int8
variant clamps as well. It is counted, and the engine warns where there is no memory: a_k grows as the model comes to
rest, and the gradients of workers that differ do not vanish there. docs/compress.md says when which width ends. The
paper's way out is IntDIANA, whose differences vanish; scale="maximum" never clamps, for one round more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from wiresum.compress import native, packing
from wiresum.compress.arrays import Int32Array, Vector
from wiresum.compress.compressor import IntegerCompressor
from wiresum.compress.memory import Memory, Shift
from wiresum.compress.quantise import Quantiser, round_stochastically
from wiresum.compress.turn import Motion, Turn

WIDE_BITS = 32
ROUNDING = 1 + 1e-12
"""A value that is the maximum itself may be above it by an error of rounding."""


@dataclass(frozen=True)
class IntSGD(IntegerCompressor):
    bits: int = 32
    scale: Literal["motion", "maximum"] = field(default="motion", kw_only=True)
    epsilon: float = field(default=1e-8, kw_only=True)

    def __post_init__(self) -> None:
        packing.require_width(self.bits)
        if self.scale not in ("motion", "maximum"):
            raise ValueError(f'the scale is from "motion" or a "maximum", not {self.scale!r}')
        if not 0 <= self.epsilon < math.inf:
            raise ValueError(f"epsilon is finite and not negative, not {self.epsilon}")

    @property
    def uses_motion(self) -> bool:
        return self.scale == "motion"

    def omega(self, size: int, workers: int) -> float | None:
        """With a maximum as its scale it is a quantiser; the motion's scale bounds the variance absolutely."""
        return Quantiser(bits=self.bits).omega(size, workers) if self.scale == "maximum" else None

    def bits_at(self, turn: Turn) -> int:
        return WIDE_BITS if self.uses_motion and turn.step == 0 else self.bits

    def statistic(self, vector: Vector, turn: Turn) -> Vector | None:
        return None if self.uses_motion and turn.motion is not None else Quantiser().statistic(vector, turn)

    def compress(self, vector: Vector, turn: Turn) -> Int32Array:
        bound = packing.limit(self.bits_at(turn), turn.workers)
        return round_stochastically(vector, np.array([self._quantum(turn)]), max(1, turn.size), bound, turn)

    def clamped(self, vector: Vector, integers: Int32Array, turn: Turn) -> int:
        bound = packing.limit(self.bits_at(turn), turn.workers)
        if max(int(integers.max(initial=0)), -int(integers.min(initial=0))) < bound:
            return 0
        return int(np.count_nonzero(np.abs(vector, dtype=np.float64) > bound * self._quantum(turn) * ROUNDING))

    def decompress(self, integers: Int32Array, turn: Turn, contributors: int) -> Vector:
        return native.scaled(integers, np.array([self._quantum(turn) / contributors]), max(1, turn.size), turn.dtype)

    def _quantum(self, turn: Turn) -> float:
        """1/a_k."""
        if self.uses_motion and turn.motion is not None:
            variance = 2 * turn.workers * turn.motion.speed + self.epsilon**2 * turn.motion.share
            return math.sqrt(variance / turn.size)
        assert turn.shared is not None, "the maximum of statistic() was taken"
        return float(turn.shared[0]) / packing.limit(self.bits_at(turn), turn.workers)


@dataclass(frozen=True)
class IntDIANA(IntSGD):
    """The integers of differences to a shift: they stay small however much the workers differ."""

    memory: str | Memory = field(default_factory=lambda: Shift(alpha=1.0), kw_only=True)


class MotionTracker:
    """r_k of every parameter: the moving average of |x_k - x_(k-1)|^2. Equal at all workers, as the model is."""

    def __init__(self, beta: float = 0.9) -> None:
        if not 0 <= beta < 1:
            raise ValueError(f"the moving average's beta is in [0, 1), not {beta}")
        self._beta = beta
        self._square: dict[str, float] = {}

    def record(self, squares: Mapping[str, float]) -> None:
        """The model has made a step; `squares`: |x_k - x_(k-1)|^2 by parameter."""
        for name, square in squares.items():
            before = self._square.get(name)
            self._square[name] = square if before is None else self._beta * before + (1 - self._beta) * square

    def motion(self, names: Sequence[str], rates: Mapping[str, float], share: float) -> Motion | None:
        """Of a segment of parameters with their learning rates. None if it has not moved, or does not learn."""
        if any(name not in self._square or not rates[name] for name in names):
            return None
        speed = math.fsum(self._square[name] / rates[name] ** 2 for name in names)
        return Motion(speed, share) if speed > 0 else None

    def state_dict(self) -> dict[str, Any]:
        return {"beta": self._beta, "square": dict(self._square)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._beta, self._square = float(state["beta"]), dict(state["square"])
