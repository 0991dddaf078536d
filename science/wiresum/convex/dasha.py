"""DASHA: compressed differences of gradients, and never a whole one (arXiv 2202.01268, algorithm 1, full gradients)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from wiresum.compress import Shift
from wiresum.compress.arrays import Vector
from wiresum.compress.memory import Bounds, Vectors


@dataclass(frozen=True)
class DASHA(Shift):
    """Worker i compresses g_i(x) - g_i(x') - a (s_i - g_i(x')), where x' is the point before and s_i the sum of what it
    has sent; the estimate is the mean of the s_i. It needs gradients of the same rows at both points. Both vectors
    begin as zeros."""

    alpha: float | None = field(default=1.0, init=False)
    a: float | None = None
    """None: 1/(1 + 2 omega)."""

    keeps = ("shift", "gradient")

    def __post_init__(self) -> None:
        if self.a is not None and not 0 < self.a <= 1:
            raise ValueError(f"the part a of the distance to the gradient is in (0, 1], or None, not {self.a}")

    def fitted(self, compressor: Bounds, size: int, workers: int) -> Shift:
        if self.a is not None:
            return self
        if (omega := compressor.omega(size, workers)) is None:
            raise ValueError(f"{type(compressor).__name__} declares no omega: use memory=DASHA(a=...)")
        return replace(self, a=1 / (1 + 2 * omega))

    def outgoing(self, gradient: Vector, own: Vectors, out: Vectors | None = None) -> Vectors:
        assert self.a is not None, "fitted() was called"
        shift, before = own
        difference, now = (np.empty_like(gradient), np.empty_like(gradient)) if out is None else out
        np.copyto(now, gradient)
        np.copyto(difference, gradient - before - gradient.dtype.type(self.a) * (shift - before))
        return difference, now

    def settle(self, outgoing: Vectors, sent: Vector, own: Vectors) -> Vectors:
        return own[0] + sent, outgoing[1]
