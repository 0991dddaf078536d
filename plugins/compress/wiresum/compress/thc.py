"""THC: a rotation, a table, and integers that the network adds (Li et al., NSDI 2024).

Each block of values is multiplied by random signs and rotated by a Hadamard matrix, both the same at all workers: then
its values are close to normal, with a deviation that follows from the block's norm. Values are cut at +-t deviations (a
fraction p of them lies beyond) and rounded stochastically to one of 2^table_bits points of a grid of `granularity`
equal steps, which are integers. The table of these points has the least expected square error for a normal
distribution; dynamic programming finds it.

In the paper the switch looks the integers up; here the worker does. Cutting is a bias, which error feedback corrects.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from wiresum.compress import packing
from wiresum.compress.arrays import Int32Array, Vector, blocks
from wiresum.compress.compressor import IntegerCompressor
from wiresum.compress.memory import Memory
from wiresum.compress.turn import Turn

SIGNS_STREAM = 1
SAMPLES = 4096


@dataclass(frozen=True)
class THC(IntegerCompressor):
    table_bits: int = 4
    granularity: int = 30
    cut: float = field(default=1 / 32, kw_only=True)
    """The fraction p of a normal distribution beyond the cut."""
    block: int = field(default=4096, kw_only=True)
    """How many values are rotated together at most; a power of two."""
    bits: int | None = field(default=None, kw_only=True)
    """Bits of an integer on the wire; None means the fewest with room for the sum of all workers' grid points."""
    memory: str | Memory = field(default="error-feedback", kw_only=True)

    def __post_init__(self) -> None:
        if self.bits is not None:
            packing.require_width(self.bits)
        if self.table_bits < 1:
            raise ValueError(f"a table of 2^table_bits values has at least 1 bit, not {self.table_bits}")
        if not 0 < self.cut < 1:
            raise ValueError(f"the part of a normal distribution that is cut is in (0, 1), not {self.cut}")
        if self.block < 1 or self.block & (self.block - 1):
            raise ValueError(f"a Hadamard rotation takes a power of two, not blocks of {self.block}")
        values = 2**self.table_bits
        if self.granularity % 2 or not values - 1 <= self.granularity:
            raise ValueError(f"{values} table values need an even granularity of at least {values - 1}")

    def bits_at(self, turn: Turn) -> int:
        return self.bits or packing.width_for(self.granularity // 2, turn.workers)

    def statistic(self, vector: Vector, turn: Turn) -> Vector:
        """The blocks' norms, which the rotation does not change."""
        rows = blocks(vector, self._block(turn.size))
        norms: Vector = np.sqrt(np.square(rows, dtype=np.float64).sum(axis=1))
        return norms

    def compress(self, vector: Vector, turn: Turn) -> Int32Array:
        steps = self._steps(turn)[:, None]
        rotated = hadamard(blocks(vector, self._block(turn.size)) * self._signs(turn))
        half = self.granularity // 2
        packing.require_room(half, self.bits_at(turn), turn.workers)
        with np.errstate(divide="ignore", invalid="ignore"):
            at = np.where(steps > 0, np.clip(rotated / steps, -half, half), 0.0) + half
        table = table_for(self.table_bits, self.granularity, self.cut)
        above = np.clip(np.searchsorted(table, at, side="right"), 1, len(table) - 1)
        low, high = table[above - 1], table[above]
        up = turn.uniform(at.size).reshape(at.shape) * (high - low) < at - low
        return (np.where(up, high, low) - half).astype(np.int32).reshape(-1)

    def decompress(self, integers: Int32Array, turn: Turn, contributors: int) -> Vector:
        rows = integers.reshape(-1, self._block(turn.size)) * (self._steps(turn)[:, None] / contributors)
        return (hadamard(rows) * self._signs(turn)).reshape(-1)[: turn.size].astype(turn.dtype)

    def _block(self, size: int) -> int:
        return min(self.block, 1 << max(0, size - 1).bit_length())

    def _signs(self, turn: Turn) -> npt.NDArray[np.float64]:
        block = self._block(turn.size)
        rows = -(-turn.size // block)
        return turn.common().signs(rows * block, stream=SIGNS_STREAM).reshape(rows, block)

    def _steps(self, turn: Turn) -> npt.NDArray[np.float64]:
        """The grid's step for each block: 2 t |v| / sqrt(d) over the granularity."""
        assert turn.shared is not None, "the maximum of statistic() was taken"
        deviations = turn.shared.astype(np.float64) / math.sqrt(self._block(turn.size))
        return 2 * half_width(self.cut) * deviations / self.granularity


def hadamard(rows: Vector) -> npt.NDArray[np.float64]:
    """Each row, a power of two long, multiplied by the orthonormal Hadamard matrix; applied twice, the identity."""
    result = rows.astype(np.float64)
    count, size = result.shape
    width = 1
    while width < size:
        pairs = result.reshape(count, -1, 2, width)
        result = np.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], axis=2)
        width *= 2
    return result.reshape(count, size) / math.sqrt(size)


def half_width(cut: float) -> float:
    """The bound t such that a standard normal value lies beyond +-t with probability `cut`."""
    return NormalDist().inv_cdf(1 - cut / 2)


@functools.lru_cache(maxsize=64)
def table_for(bits: int, granularity: int, cut: float) -> npt.NDArray[np.int64]:
    """The 2^bits grid points, 0 and `granularity` among them, that round a cut normal value with the least error.

    A value x between neighbours a < b is rounded with variance (b - x)(x - a). cost[a][b] is its expectation over
    the interval; the best table of j + 1 points that ends at b extends the best one of j points that ends at some a.
    """
    cost = _interval_costs(granularity, half_width(cut))
    points = 2**bits
    best = np.full(granularity + 1, np.inf)
    best[0] = 0.0
    origin = np.zeros((points, granularity + 1), np.int64)
    for point in range(1, points):
        totals = best[:, None] + cost
        origin[point] = totals.argmin(axis=0)
        best = totals.min(axis=0)
    table = [granularity]
    for point in range(points - 1, 0, -1):
        table.append(int(origin[point, table[-1]]))
    return np.array(table[::-1])


def _interval_costs(granularity: int, width: float) -> npt.NDArray[np.float64]:
    x = (np.arange(SAMPLES) + 0.5) / SAMPLES * granularity
    density = np.exp(-0.5 * np.square((x / granularity * 2 - 1) * width))
    moments = [np.concatenate([[0.0], np.cumsum(density * x**power)]) for power in range(3)]
    edge = np.searchsorted(x, np.arange(granularity + 1))
    zeroth, first, second = (moment[edge][None, :] - moment[edge][:, None] for moment in moments)
    a, b = np.arange(granularity + 1.0)[:, None], np.arange(granularity + 1.0)[None, :]
    return np.where(a < b, (a + b) * first - second - a * b * zeroth, np.inf)
