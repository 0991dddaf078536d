"""Unbiased quantisers whose integers add: stochastic rounding on a scale that all workers share.

A block of values v with quantum q becomes integers floor(v/q + u), u uniform in [0, 1). Their expectation is v/q. The
quantum is M/s, with s the number of levels and M the largest p-norm of the block over all workers: norms that differ
by worker would not add. One maximum over the workers, of a number for each block, goes ahead of the sum.

Variance. A coordinate's is at most min(q |v_j|, q^2/4). Let V be the mean over workers of |v|^2, so that M^2 <= n V
(the largest of n squares is at most their sum, and the inf-norm at most the 2-norm). Summed over a block of d values,
with |v|_1 <= sqrt(d) |v|, the mean over workers of E|C(v)-v|^2 is at most

    (sqrt(d n)/s) V    and    (d n / (4 s^2)) V,       and for s = 1  (sqrt(d n) - 1) V,

the last since the variance of a Bernoulli value is exactly q|v_j| - v_j^2. With n = 1 these are the constants of the
papers (QSGD lemma 3.1; DIANA's 1/alpha_p - 1), where each worker has its own norm: `OwnScale` does that, by all-gather.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from wiresum.compress import lanes, native
from wiresum.compress.arrays import Int32Array, Vector, blocks
from wiresum.compress.compressor import IntegerCompressor
from wiresum.compress.memory import Memory
from wiresum.compress.turn import Turn

Norm = Literal["2", "inf"]


def round_stochastically(
    vector: Vector, quanta: npt.NDArray[np.float64], block: int, limit: int, turn: Turn
) -> Int32Array:
    """floor(v/q + u), clamped to the limit; zero where the quantum is zero. Each block has a quantum."""
    with np.errstate(divide="ignore", over="ignore"):
        inverses = np.where(quanta > 0, 1.0 / quanta, 0.0)
    return native.rounded(turn.draw(), vector, inverses, block, limit)


@dataclass(frozen=True)
class Quantiser(IntegerCompressor):
    """Quantisation by blocks with `levels` levels of the block's norm; None: as many as a lane has room for."""

    levels: int | None = None
    norm: Norm = "inf"
    block: int | None = None
    """Values in a block; None: the whole tensor."""
    lanes: int = field(default=32, kw_only=True)

    def omega(self, size: int, workers: int) -> float | None:
        values = min(self.block or size, size) * workers
        levels = self.levels or lanes.limit(self.lanes, workers)
        if levels == 1:
            return math.sqrt(values) - 1
        return min(math.sqrt(values) / levels, values / (4 * levels**2))

    def lane_bits(self, turn: Turn) -> int:
        return self.lanes

    def statistic(self, vector: Vector, turn: Turn) -> Vector:
        """The block's norms, rounded up, so that no value exceeds its norm by an error of rounding."""
        if self.norm == "inf" and self.block is None:
            return np.array([max(vector.max(initial=0), -vector.min(initial=0))], np.float64)
        rows = blocks(np.abs(vector), self.block or max(1, len(vector)))
        if self.norm == "inf":
            return np.asarray(rows.max(axis=1), np.float64)
        lengths = np.sqrt(np.square(rows, dtype=np.float64).sum(axis=1))
        above: Vector = np.nextafter(np.maximum(lengths, rows.max(axis=1)), np.inf, where=lengths > 0, out=lengths)
        return above

    def compress(self, vector: Vector, turn: Turn) -> Int32Array:
        quanta, levels = self._quanta(turn)
        return round_stochastically(vector, quanta, self.block or max(1, len(vector)), levels, turn)

    def decompress(self, integers: Int32Array, turn: Turn, contributors: int) -> Vector:
        quanta, _ = self._quanta(turn)
        return native.scaled(integers, quanta / contributors, self.block or max(1, turn.size), turn.dtype)

    def _quanta(self, turn: Turn) -> tuple[npt.NDArray[np.float64], int]:
        assert turn.shared is not None, "the maximum of statistic() was taken"
        levels = self.levels or lanes.limit(self.lanes, turn.workers)
        lanes.require_room(levels, self.lanes, turn.workers)
        return turn.shared.astype(np.float64) / levels, levels


@dataclass(frozen=True)
class DIANA(Quantiser):
    """Ternary quantisation of gradient differences by blocks (arXiv 1901.09269); alpha = 1/(1 + omega)."""

    levels: int | None = 1
    norm: Norm = "2"
    lanes: int = field(default=8, kw_only=True)
    memory: str | Memory = field(default="diana", kw_only=True)


@dataclass(frozen=True)
class QSGD(Quantiser):
    """Stochastic quantisation without a memory (arXiv 1610.02132)."""

    levels: int | None = 15
    norm: Norm = "2"
    block: int | None = 512
    lanes: int = field(default=8, kw_only=True)


@dataclass(frozen=True)
class TernGrad(Quantiser):
    """Ternary, by the largest value of all workers (arXiv 1705.07878); `clip` standard deviations bound a value first.

    Clipping makes it biased, so that there is an omega only without.
    """

    levels: int | None = 1
    clip: float | None = field(default=None, kw_only=True)
    lanes: int = field(default=8, kw_only=True)

    def omega(self, size: int, workers: int) -> float | None:
        return super().omega(size, workers) if self.clip is None else None

    def statistic(self, vector: Vector, turn: Turn) -> Vector:
        return super().statistic(self._clipped(vector), turn)

    def compress(self, vector: Vector, turn: Turn) -> Int32Array:
        return super().compress(self._clipped(vector), turn)

    def _clipped(self, vector: Vector) -> Vector:
        if self.clip is None or not len(vector):
            return vector
        bound = self.clip * float(np.std(vector, dtype=np.float64))
        return np.clip(vector, -bound, bound)
