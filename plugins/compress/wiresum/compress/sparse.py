"""Sparsifiers: a few values of each tensor, and where they belong.

`ratio` is the part of a tensor's values that is sent, at least one. RandK and its kin are unbiased: values are
multiplied by d/k. Which coordinates a worker draws decides what the mean over workers is worth:

    RandK            each worker its own: the variance of the mean falls with 1/n; indices travel
    RandKSameSeed    all the same, which adds up as dense integers, and no index travels; but nothing averages out: a
                     step size must be about n times smaller (the warning of arXiv 1901.09437)
    RandKPartition   a partition drawn by all: each coordinate has one owner, and no index travels either. The errors
                     of the workers are negatively correlated; workers that agree lose nothing (arXiv 2110.03300)
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from wiresum.compress.arrays import Bytes, Indices, Int32Array, Sparse, Vector
from wiresum.compress.compressor import GatherCompressor, IntegerCompressor, SparseCompressor
from wiresum.compress.memory import Memory
from wiresum.compress.native import largest
from wiresum.compress.quantise import Quantiser
from wiresum.compress.ratio import Ratio, count_of, least, ratio_at, require_ratio
from wiresum.compress.turn import Turn


@dataclass(frozen=True)
class RandK(SparseCompressor):
    ratio: float

    def __post_init__(self) -> None:
        require_ratio(self.ratio)

    def omega(self, size: int, workers: int) -> float | None:
        return size / count_of(self.ratio, size) - 1

    def count(self, turn: Turn) -> int:
        return count_of(self.ratio, turn.size)

    def compress(self, vector: Vector, turn: Turn) -> Sparse:
        chosen = turn.subset(turn.size, self.count(turn))
        return Sparse(chosen, vector[chosen] * turn.dtype.type(turn.size / len(chosen)))


@dataclass(frozen=True)
class RandKSameSeed(IntegerCompressor):
    """`values` quantises the chosen values; by default in 32 bits."""

    ratio: float
    values: Quantiser = field(default_factory=Quantiser, kw_only=True)

    def __post_init__(self) -> None:
        require_ratio(self.ratio)

    def omega(self, size: int, workers: int) -> float | None:
        count = count_of(self.ratio, size)
        return composed(self.values.omega(count, workers), size / count - 1)

    def bits_at(self, turn: Turn) -> int:
        return self.values.bits_at(turn)

    def statistic(self, vector: Vector, turn: Turn) -> Vector:
        return self.values.statistic(vector[self._chosen(turn)], self._inner(turn))

    def compress(self, vector: Vector, turn: Turn) -> Int32Array:
        return self.values.compress(vector[self._chosen(turn)], self._inner(turn))

    def decompress(self, integers: Int32Array, turn: Turn, contributors: int) -> Vector:
        inner = self._inner(turn)
        dense: Vector = np.zeros(turn.size, turn.dtype)
        dense[self._chosen(turn)] = self.values.decompress(integers, inner, contributors) * (turn.size / inner.size)
        return dense

    def _chosen(self, turn: Turn) -> Indices:
        return turn.common().subset(turn.size, count_of(self.ratio, turn.size), stream=1)

    def _inner(self, turn: Turn) -> Turn:
        return dataclasses.replace(turn, shape=(count_of(self.ratio, turn.size),))


@dataclass(frozen=True)
class RandKPartition(SparseCompressor):
    """Each worker owns `ratio` of the coordinates, at most 1/n; None: 1/n, all coordinates owned (PermK)."""

    ratio: float | None = None

    def __post_init__(self) -> None:
        if self.ratio is not None:
            require_ratio(self.ratio)

    def omega(self, size: int, workers: int) -> float | None:
        return self._slots(size, workers) / self._count(size, workers) - 1

    def count(self, turn: Turn) -> int:
        return self._count(turn.size, turn.workers)

    def indices(self, turn: Turn) -> Indices:
        """A permutation, dealt to workers. Where all is owned, slots beyond the tensor make the number divisible."""
        count = self.count(turn)
        order = turn.common().permutation(self._slots(turn.size, turn.workers))
        dealt = order[turn.worker * count : (turn.worker + 1) * count]
        return dealt[dealt < turn.size]

    def compress(self, vector: Vector, turn: Turn) -> Sparse:
        owned = self.indices(turn)
        factor = self._slots(turn.size, turn.workers) / self.count(turn)
        return Sparse(owned, vector[owned] * turn.dtype.type(factor))

    def _slots(self, size: int, workers: int) -> int:
        return max(size, self._count(size, workers) * workers)

    def _count(self, size: int, workers: int) -> int:
        most = -(-size // workers)
        return most if self.ratio is None else min(most, count_of(self.ratio, size))


@dataclass(frozen=True)
class TopK(SparseCompressor):
    """The largest magnitudes; among equals the lower index."""

    ratio: Ratio
    memory: str | Memory = field(default="error-feedback", kw_only=True)

    def __post_init__(self) -> None:
        require_ratio(self.ratio)

    def contraction(self, size: int) -> float | None:
        return count_of(least(self.ratio), size) / size

    def count(self, turn: Turn) -> int:
        return count_of(ratio_at(self.ratio, turn.step), turn.size)

    def compress(self, vector: Vector, turn: Turn) -> Sparse:
        chosen = largest(vector, self.count(turn))
        return Sparse(chosen, vector[chosen])


@dataclass(frozen=True)
class Threshold(SparseCompressor):
    """All values of at least this magnitude: what is left out is below sqrt(d) times the threshold."""

    threshold: float
    memory: str | Memory = field(default="error-feedback", kw_only=True)
    counts_equal: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 <= self.threshold < math.inf:
            raise ValueError(f"the threshold is a magnitude: finite and not negative, not {self.threshold}")

    def compress(self, vector: Vector, turn: Turn) -> Sparse:
        chosen = np.flatnonzero(np.abs(vector) >= self.threshold)
        return Sparse(chosen, vector[chosen])


@dataclass(frozen=True)
class AdaptiveThreshold(SparseCompressor):
    """All values of at least this part of the tensor's largest magnitude; half of it, as in arXiv 1911.08250.

    How many that are depends on how heavy the tensor's tail is, and so on what is compressed as one vector.
    """

    part: float = 0.5
    memory: str | Memory = field(default="error-feedback", kw_only=True)
    counts_equal: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 < self.part <= 1:
            raise ValueError(f"a part of the largest magnitude is in (0, 1], not {self.part}")

    def contraction(self, size: int) -> float | None:
        """The largest value is always sent, and none of those that are not is larger."""
        return 1 / size

    def compress(self, vector: Vector, turn: Turn) -> Sparse:
        magnitudes = np.abs(vector)
        top = magnitudes.max(initial=0)
        chosen = np.flatnonzero(magnitudes >= self.part * top) if top > 0 else np.zeros(0, np.int64)
        return Sparse(chosen, vector[chosen])


@dataclass(frozen=True)
class OwnScale(GatherCompressor):
    """A quantiser with each worker's own norms, as the papers have it: exact constants, but an all-gather."""

    quantiser: Quantiser

    def omega(self, size: int, workers: int) -> float | None:
        return self.quantiser.omega(size, 1)

    def compress(self, vector: Vector, turn: Turn) -> Bytes:
        norms = self.quantiser.statistic(vector, turn).astype(np.float64)
        alone = dataclasses.replace(turn, workers=1, shared=norms)
        integers = self.quantiser.compress(vector, alone).astype(f"<i{self._value_bytes(turn)}")
        return np.concatenate([norms.view(np.uint8), integers.view(np.uint8)])

    def decompress(self, parcel: Bytes, turn: Turn) -> Vector:
        integer_bytes = turn.size * self._value_bytes(turn)
        norms = parcel[: len(parcel) - integer_bytes].copy().view(np.float64)
        integers = parcel[len(parcel) - integer_bytes :].copy().view(f"<i{self._value_bytes(turn)}").astype(np.int32)
        return self.quantiser.decompress(integers, dataclasses.replace(turn, workers=1, shared=norms), 1)

    def _value_bytes(self, turn: Turn) -> int:
        return self.quantiser.bits_at(turn) // 8


@dataclass(frozen=True)
class QuantisedRandK(GatherCompressor):
    """A quantisation of a random sparsification: omega = (omega_q + 1)(omega_s + 1) - 1 (arXiv 1904.05115).

    Each worker draws its own coordinates and has its own norms. For the composition that adds up as integers see
    RandKSameSeed(ratio, values=...).
    """

    ratio: float
    quantiser: Quantiser = field(default_factory=lambda: Quantiser(1, "2", bits=8))
    memory: str | Memory = field(default="diana", kw_only=True)

    def __post_init__(self) -> None:
        require_ratio(self.ratio)

    def omega(self, size: int, workers: int) -> float | None:
        count = count_of(self.ratio, size)
        return composed(self.quantiser.omega(count, 1), size / count - 1)

    def compress(self, vector: Vector, turn: Turn) -> Bytes:
        chosen = self._chosen(turn)
        return OwnScale(self.quantiser).compress(vector[chosen], self._inner(turn))

    def decompress(self, parcel: Bytes, turn: Turn) -> Vector:
        inner = self._inner(turn)
        dense: Vector = np.zeros(turn.size, turn.dtype)
        values = OwnScale(self.quantiser).decompress(parcel, inner)
        dense[self._chosen(turn)] = values * turn.dtype.type(turn.size / inner.size)
        return dense

    def _chosen(self, turn: Turn) -> Indices:
        """Known to all from the turn: no index travels."""
        return turn.subset(turn.size, count_of(self.ratio, turn.size), stream=1)

    def _inner(self, turn: Turn) -> Turn:
        return dataclasses.replace(turn, shape=(count_of(self.ratio, turn.size),))


def composed(omega_outer: float | None, omega_inner: float) -> float | None:
    return None if omega_outer is None else (omega_outer + 1) * (omega_inner + 1) - 1
