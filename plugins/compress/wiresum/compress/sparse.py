"""Sparsifiers: methods that send a few values of each tensor, and their indices.

`ratio` is the fraction of a tensor's values that is sent, at least one. The RandK classes are unbiased: values are
multiplied by d/k. They differ in the coordinates that a worker draws:

    RandK            each worker its own: the variance of the mean falls with 1/n; indices travel
    RandKSameSeed    all the same: a sum of dense integers, without indices; but errors do not average out, so the
                     step size must be about n times smaller (arXiv 1901.09437)
    RandKPartition   each coordinate has one owner, drawn from a common seed, and no index travels. The errors of the
                     workers are negatively correlated; if all gradients are equal, the mean is exact (arXiv 2110.03300)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
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


def _chosen(ratio: float, turn: Turn) -> Indices:
    return turn.subset(turn.size, count_of(ratio, turn.size), stream=1)


def _turn_of_chosen(ratio: float, turn: Turn) -> Turn:
    return replace(turn, shape=(count_of(ratio, turn.size),))


def _scattered(values: Vector, chosen: Indices, turn: Turn) -> Vector:
    """The dense tensor: chosen values, multiplied by d/k, and zeros elsewhere."""
    dense: Vector = np.zeros(turn.size, turn.dtype)
    dense[chosen] = values * turn.dtype.type(turn.size / len(chosen))
    return dense


@dataclass(frozen=True)
class RandKSameSeed(IntegerCompressor):
    """Sends the values at random coordinates, the same at all workers, quantised by `values` (by default in 32
    bits)."""

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
        return self.values.statistic(self._values(vector, turn), _turn_of_chosen(self.ratio, turn))

    def compress(self, vector: Vector, turn: Turn) -> Int32Array:
        return self.values.compress(self._values(vector, turn), _turn_of_chosen(self.ratio, turn))

    def decompress(self, integers: Int32Array, turn: Turn, contributors: int) -> Vector:
        values = self.values.decompress(integers, _turn_of_chosen(self.ratio, turn), contributors)
        return _scattered(values, _chosen(self.ratio, turn.common()), turn)

    def _values(self, vector: Vector, turn: Turn) -> Vector:
        return vector[_chosen(self.ratio, turn.common())]


@dataclass(frozen=True)
class RandKPartition(SparseCompressor):
    """Each worker sends a fraction `ratio` of the coordinates, at most 1/n, of which it is the only owner. None means
    that all coordinates have an owner (PermK)."""

    ratio: float | None = None

    def __post_init__(self) -> None:
        if self.ratio is not None:
            require_ratio(self.ratio)

    def omega(self, size: int, workers: int) -> float | None:
        return self._slots(size, workers) / self._count(size, workers) - 1

    def count(self, turn: Turn) -> int:
        return self._count(turn.size, turn.workers)

    def indices(self, turn: Turn) -> Indices:
        """The worker's part of a common permutation, padded so that all workers have the same number."""
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
    """Sends the values with the largest magnitudes; among equal magnitudes the lower index wins."""

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
    """Sends all values of at least this magnitude: the norm of the rest is below sqrt(d) times the threshold."""

    threshold: float
    memory: str | Memory = field(default="error-feedback", kw_only=True)
    follows_scale: ClassVar[bool] = False
    counts_equal: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 <= self.threshold < math.inf:
            raise ValueError(f"the threshold is a magnitude: finite and not negative, not {self.threshold}")

    def compress(self, vector: Vector, turn: Turn) -> Sparse:
        chosen = np.flatnonzero(np.abs(vector) >= self.threshold)
        return Sparse(chosen, vector[chosen])


@dataclass(frozen=True)
class AdaptiveThreshold(SparseCompressor):
    """Sends all values of at least a fraction `part` (arXiv 1911.08250: one half) of the tensor's largest magnitude."""

    part: float = 0.5
    memory: str | Memory = field(default="error-feedback", kw_only=True)
    counts_equal: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 < self.part <= 1:
            raise ValueError(f"a part of the largest magnitude is in (0, 1], not {self.part}")

    def contraction(self, size: int) -> float | None:
        """The constant 1/size: the largest value is always sent."""
        return 1 / size

    def compress(self, vector: Vector, turn: Turn) -> Sparse:
        magnitudes = np.abs(vector)
        top = magnitudes.max(initial=0)
        chosen = np.flatnonzero(magnitudes >= self.part * top) if top > 0 else np.zeros(0, np.int64)
        return Sparse(chosen, vector[chosen])


@dataclass(frozen=True)
class OwnScale(GatherCompressor):
    """A quantiser with each worker's own norms, as in the papers: the constants are better, but it needs an
    all-gather."""

    quantiser: Quantiser

    def omega(self, size: int, workers: int) -> float | None:
        return self.quantiser.omega(size, 1)

    def compress(self, vector: Vector, turn: Turn) -> Bytes:
        norms = self.quantiser.statistic(vector, turn).astype(np.float64)
        alone = replace(turn, workers=1, shared=norms)
        integers = self.quantiser.compress(vector, alone).astype(f"<i{self._value_bytes(turn)}")
        return np.concatenate([norms.view(np.uint8), integers.view(np.uint8)])

    def decompress(self, parcel: Bytes, turn: Turn) -> Vector:
        integer_bytes = turn.size * self._value_bytes(turn)
        norms = parcel[: len(parcel) - integer_bytes].copy().view(np.float64)
        integers = parcel[len(parcel) - integer_bytes :].copy().view(f"<i{self._value_bytes(turn)}").astype(np.int32)
        return self.quantiser.decompress(integers, replace(turn, workers=1, shared=norms), 1)

    def _value_bytes(self, turn: Turn) -> int:
        return self.quantiser.bits_at(turn) // 8


@dataclass(frozen=True)
class QuantisedRandK(GatherCompressor):
    """Quantised random values: omega = (omega_q + 1)(omega_s + 1) - 1 (arXiv 1904.05115).

    Each worker draws its own coordinates and has its own norms. RandKSameSeed(ratio, values=...) can be summed.
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
        values = vector[_chosen(self.ratio, turn)]
        return OwnScale(self.quantiser).compress(values, _turn_of_chosen(self.ratio, turn))

    def decompress(self, parcel: Bytes, turn: Turn) -> Vector:
        values = OwnScale(self.quantiser).decompress(parcel, _turn_of_chosen(self.ratio, turn))
        return _scattered(values, _chosen(self.ratio, turn), turn)


def composed(omega_outer: float | None, omega_inner: float) -> float | None:
    return None if omega_outer is None else (omega_outer + 1) * (omega_inner + 1) - 1
