"""ARC-Top-K: the rows of a matrix that are the largest in the mean of all workers (arXiv 2510.26709).

All workers send the same rows, so their values add without indices. Which rows, they learn from a sketch: with a matrix
V of random signs, the same at all workers, the network adds the few columns of M_i V. A row of the mean of the M_i has
about the length of its row in the mean of the M_i V, divided by the root of the number of columns.

So there are two sums: the sketches, of rank * m integers for a tensor of m rows, and the chosen rows. The paper has
normal numbers in V; signs have the same expectation, and their sums are the same on any machine. The rows' lengths are
added column by column for the same reason: workers that choose differently would add different rows.

Contraction. For fixed rows the compressor is linear, so the mean over workers of what they send is that of their mean
G. With k of the m rows, chosen by |G_j V|, the chosen have at least k/m of the sum of all |G_j V|^2. That is rank |G|^2
in expectation, and a row's |G_j V|^2 is at most |V|^2 |G_j|^2 = rank n |G_j|^2 with n values in a row. So the chosen
rows have k/(m n) of |G|^2 or more in expectation: a bound that holds for all matrices, far below what is common.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from wiresum.compress import packing
from wiresum.compress.aggregator import Aggregator
from wiresum.compress.arrays import Indices, Vector, is_finite
from wiresum.compress.compressor import Batch, Compressor, Outcome, Trait, nowhere_finite
from wiresum.compress.memory import Memory
from wiresum.compress.native import largest
from wiresum.compress.powersgd import matrix_sides
from wiresum.compress.quantise import means_of
from wiresum.compress.ratio import Ratio, count_of, ratio_at, require_ratio
from wiresum.compress.turn import Turn

SIGNS_STREAM = 1


@dataclass(frozen=True)
class ARCTopK(Compressor):
    """A fraction `ratio` of the rows; the sketch has `rank` columns. Needs granularity "layer" to see matrices.

    A tensor for which the sketch and the rows would not be smaller is sent whole.
    """

    trait = Trait.DENSE_INT

    ratio: Ratio
    rank: int = 4
    bits: int = field(default=32, kw_only=True)
    """Of a value on the wire; the sketch has 32."""
    memory: str | Memory = field(default="error-feedback", kw_only=True)

    def __post_init__(self) -> None:
        require_ratio(self.ratio)
        packing.require_width(self.bits)
        if self.rank < 1:
            raise ValueError(f"the sketch has at least 1 column, not {self.rank}")

    def contraction(self, size: int) -> float | None:
        """Of the workers' mean, for any shape: k/(m n) with one row."""
        return 1 / size

    def exchange(self, batch: Batch, aggregator: Aggregator) -> Outcome:
        turns = batch.turns[0]
        segments = range(len(turns))
        with np.errstate(invalid="ignore", over="ignore"):
            lengths = self._lengths(batch, [s for s in segments if self._saves(turns[s])], aggregator)
        rows = {s: largest(squares, self._count(turns[s])) for s, squares in lengths.items()}
        chosen = [[_taken(v, rows.get(s), turns[s]) for s, v in enumerate(mine)] for mine in batch.vectors]
        means, own = means_of("values", batch.turns, chosen, aggregator, self.bits)
        placed = [[_placed(row[s], rows.get(s), turns[s]) for s in segments] for row in (means, *own)]
        for s, squares in lengths.items():
            if not is_finite(squares):  # the values that are not may lie in other rows
                placed[0][s] = nowhere_finite(turns[s])
        return Outcome(placed[0], placed[1:], batch.states)

    def _count(self, turn: Turn) -> int:
        return count_of(ratio_at(self.ratio, turn.step), matrix_sides(turn.shape)[0])

    def _saves(self, turn: Turn) -> bool:
        rows, columns = matrix_sides(turn.shape)
        return rows * self.rank + self._count(turn) * columns < turn.size

    def _lengths(self, batch: Batch, sketched: list[int], aggregator: Aggregator) -> dict[int, Vector]:
        """By segment: about the squared lengths of the mean's rows, times the same number for all."""
        if not sketched:
            return {}
        turns = [[row[s] for s in sketched] for row in batch.turns]
        signs = [self._signs(turn) for turn in turns[0]]
        sketches = [
            [(mine[s].reshape(-1, len(v)) @ v).reshape(-1) for s, v in zip(sketched, signs, strict=True)]
            for mine in batch.vectors
        ]
        means, _ = means_of("sketch", turns, sketches, aggregator)
        return {s: _row_squares(mean.reshape(-1, self.rank)) for s, mean in zip(sketched, means, strict=True)}

    def _signs(self, turn: Turn) -> Vector:
        columns = matrix_sides(turn.shape)[1]
        signs = turn.common().signs(columns * self.rank, stream=SIGNS_STREAM)
        return signs.reshape(columns, self.rank).astype(turn.dtype)


def _row_squares(matrix: Vector) -> Vector:
    squares: Vector = np.zeros(len(matrix))
    for column in matrix.T.astype(np.float64):
        squares += column * column
    return squares


def _taken(vector: Vector, rows: Indices | None, turn: Turn) -> Vector:
    """The values of these rows; all without rows."""
    return vector if rows is None else vector.reshape(matrix_sides(turn.shape))[rows].reshape(-1)


def _placed(values: Vector, rows: Indices | None, turn: Turn) -> Vector:
    """The inverse of _taken, with zeros in the other rows."""
    if rows is None:
        return values
    result: Vector = np.zeros(matrix_sides(turn.shape), turn.dtype)
    result[rows] = values.reshape(len(rows), -1)
    return result.reshape(-1)
