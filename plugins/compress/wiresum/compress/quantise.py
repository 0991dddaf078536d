"""Unbiased quantisers: stochastic rounding on a scale that all workers share, so that integers can be summed.

A block of values v with quantum q becomes integers floor(v/q + u), u uniform in [0, 1). Their expectation is v/q. The
quantum is M/s, with s the number of levels and M the largest p-norm of the block over all workers, on which they agree
before the sum.

Variance. A coordinate |v_j| = x is rounded with variance q^2 f (1 - f), f the fraction of x/q. That is q x - x^2 up to
q and at most q^2/4, so it is below the concave function e(x) = q x - x^2 up to q/2 and q^2/4 from there. omega is the
least number with

    sum of e(|v_ij|) <= omega * sum of v_ij^2           over all n workers and d values of a block,

and since e(x) - omega x^2 is concave too, values are worst when they are equal, but for those that the norm M = s q
singles out. With y = 1 + omega a free value is worst at x = q/(2y), where it gives q^2/(4y).

    inf     one of the dn values is M, which is rounded exactly, and the others are free:
            (dn - 1) q^2/(4y) = omega M^2,                          y = (1 + sqrt(1 + (dn - 1)/s^2)) / 2
    2, 1    one worker's d values are M/D, with D = sqrt(d) for p = 2 and D = d for p = 1; alone they give A = D/s - 1,
            or D^2/(4 s^2) where M/D is above q/2. The (n - 1) d values of the others are free:
            (n - 1) d q^2/(4y) = (omega - A) d M^2/D^2,             y = (1 + A + sqrt((1 + A)^2 + (n - 1) D^2/s^2)) / 2

For s = 1 and n = 1 these are DIANA's 1/alpha_p - 1 (arXiv 1901.09269, lemma 1): d - 1, sqrt(d) - 1, (sqrt(d) - 1)/2.
In that paper each worker has its own norm, which is n = 1 here (`OwnScale`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from wiresum.compress import native, packing
from wiresum.compress.aggregator import Aggregator
from wiresum.compress.arrays import Int32Array, Vector, blocks
from wiresum.compress.compressor import Batch, IntegerCompressor, each
from wiresum.compress.memory import Memory
from wiresum.compress.turn import Turn

Norm = Literal["1", "2", "inf"]
NORMS = get_args(Norm)


@dataclass(frozen=True)
class Quantiser(IntegerCompressor):
    """Quantisation by blocks to `levels` levels of the block's norm; None means as many levels as fit the bits."""

    levels: int | None = None
    norm: Norm = "inf"
    block: int | None = None
    """Values in a block; None means the whole tensor."""
    bits: int | None = field(default=32, kw_only=True)
    """Bits of an integer on the wire; None means the fewest with room for the levels of all workers."""

    def __post_init__(self) -> None:
        if self.norm not in NORMS:
            raise ValueError(f"the norm is {', '.join(map(repr, NORMS))}, not {self.norm!r}")
        if self.levels is not None and self.levels < 1:
            raise ValueError(
                f"a quantiser has at least 1 level, or None for as many as the bits hold, not {self.levels}"
            )
        if self.block is not None and self.block < 1:
            raise ValueError(f"a block has at least 1 value, or is None for the whole tensor, not {self.block}")
        if self.bits is not None:
            packing.require_width(self.bits)
        elif self.levels is None:
            raise ValueError("either the levels or the bits of a quantiser are given, and the other follows from it")

    def omega(self, size: int, workers: int) -> float | None:
        """The least constant that holds for all vectors, as derived at the top of this file."""
        values = max(1, size if self.block is None else min(self.block, size))
        levels = self._levels(workers)
        if self.norm == "inf":
            return (math.sqrt(1 + (values * workers - 1) / levels**2) - 1) / 2
        spread = (math.sqrt(values) if self.norm == "2" else values) / levels
        alone = spread - 1 if levels == 1 or spread >= 2 else spread**2 / 4
        return (1 + alone + math.sqrt((1 + alone) ** 2 + (workers - 1) * spread**2)) / 2 - 1

    def bits_at(self, turn: Turn) -> int:
        return self._bits(turn.workers)

    def statistic(self, vector: Vector, turn: Turn) -> Vector:
        """The blocks' norms, rounded up so that no value exceeds its norm."""
        if self.norm == "inf" and self.block is None:
            return np.array([max(vector.max(initial=0), -vector.min(initial=0))], np.float64)
        rows = blocks(np.abs(vector), self.block or max(1, len(vector)))
        if self.norm == "inf":
            return np.asarray(rows.max(axis=1), np.float64)
        if self.norm == "1":
            lengths = rows.sum(axis=1, dtype=np.float64)
        else:
            lengths = np.sqrt(np.square(rows, dtype=np.float64).sum(axis=1))
        above: Vector = np.nextafter(np.maximum(lengths, rows.max(axis=1)), np.inf, where=lengths > 0, out=lengths)
        return above

    def compress(self, vector: Vector, turn: Turn) -> Int32Array:
        quanta, levels = self._quanta(turn)
        return native.rounded(turn.draw(), vector, quanta, self.block or max(1, len(vector)), levels)

    def decompress(self, integers: Int32Array, turn: Turn, contributors: int) -> Vector:
        quanta, _ = self._quanta(turn)
        return native.scaled(integers, quanta / contributors, self.block or max(1, turn.size), turn.dtype)

    def _quanta(self, turn: Turn) -> tuple[npt.NDArray[np.float64], int]:
        assert turn.shared is not None, "the maximum of statistic() was taken"
        levels = self._levels(turn.workers)
        packing.require_room(levels, self._bits(turn.workers), turn.workers)
        return turn.shared.astype(np.float64) / levels, levels

    def _levels(self, workers: int) -> int:
        return packing.limit(self._bits(workers), workers) if self.levels is None else self.levels

    def _bits(self, workers: int) -> int:
        if self.bits is not None:
            return self.bits
        assert self.levels is not None, "one of the two is given"
        return packing.width_for(self.levels, workers)


@dataclass(frozen=True)
class DIANA(Quantiser):
    """Ternary quantisation of gradient differences by blocks (arXiv 1901.09269); alpha = 1/(1 + omega)."""

    levels: int | None = 1
    norm: Norm = "2"
    bits: int | None = field(default=None, kw_only=True)
    memory: str | Memory = field(default="diana", kw_only=True)


@dataclass(frozen=True)
class QSGD(Quantiser):
    """Stochastic quantisation without a memory (arXiv 1610.02132)."""

    levels: int | None = 15
    norm: Norm = "2"
    block: int | None = 512
    bits: int | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class TernGrad(Quantiser):
    """Ternary quantisation relative to the largest value of all workers (arXiv 1705.07878).

    `clip` first bounds values to that many standard deviations, which makes the method biased, without an omega.
    """

    levels: int | None = 1
    clip: float | None = field(default=None, kw_only=True)
    bits: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"values are clipped at a positive number of deviations, or not (None), not {self.clip}")

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


def means_of(
    stage: str,
    turns: Sequence[Sequence[Turn]],
    vectors: Sequence[Sequence[Vector]],
    aggregator: Aggregator,
    bits: int = 32,
) -> tuple[list[Vector], list[list[Vector]]]:
    """One round of a method that has several rounds. Returns quantised means by segment, and the workers' own parts by
    worker and segment. The vectors may have other sizes than the tensors. `stage` names the round, which has random
    numbers of its own."""

    def renamed(turn: Turn, vector: Vector) -> Turn:
        return replace(turn, tensor=f"{turn.tensor}:{stage}", shape=(len(vector),))

    batch = Batch(each(renamed, turns, vectors), [list(row) for row in vectors], [{} for _ in vectors[0]])
    outcome = Quantiser(bits=bits).exchange(batch, aggregator)
    return list(map(np.asarray, outcome.means)), each(np.asarray, outcome.own)
