"""PowerSGD: a product of two thin matrices in place of a matrix (arXiv 1905.13727, algorithm 1).

A gradient M of m x n values is approximated by P Q^T with r columns: one step of power iteration, P from the mean of
M_i Q, orthogonalised, then Q from the mean of M_i^T P. Both means are sums in the network, of r(m + n) integers of 32
bits on a common scale. Q, the same at all workers, is kept as the start of the next step.

The result is the mean of the projections P P^T M_i, so error feedback keeps M_i - P P^T M_i. A tensor that is not
larger than its two matrices is quantised without them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from wiresum.compress.aggregator import Aggregator
from wiresum.compress.arrays import Vector, is_finite
from wiresum.compress.compressor import Batch, Compressor, Outcome, State, Trait
from wiresum.compress.memory import Memory
from wiresum.compress.quantise import means_of
from wiresum.compress.turn import Turn

START_STREAM = 2
RANK_TOLERANCE = 1e-6
"""Linear dependence: a column becomes zero if the norm of its part orthogonal to the columns before it, relative to the
norm of the column, is at most this."""


@dataclass(frozen=True)
class PowerSGD(Compressor):
    trait = Trait.DENSE_INT

    rank: int = 2
    memory: str | Memory = field(default="error-feedback", kw_only=True)

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"the two matrices have at least 1 column, not {self.rank}")

    def exchange(self, batch: Batch, aggregator: Aggregator) -> Outcome:
        sides = [matrix_sides(turn.shape) for turn in batch.turns[0]]
        thin = [s for s, (rows, columns) in enumerate(sides) if self.rank * (rows + columns) < rows * columns]
        starts = {s: self._start(batch.turns[0][s], batch.states[s], sides[s][1]) for s in thin}
        with np.errstate(invalid="ignore", over="ignore"):
            vectors = [
                [(v.reshape(sides[s]) @ starts[s]).reshape(-1) if s in starts else v for s, v in enumerate(row)]
                for row in batch.vectors
            ]
            means, own = means_of("p", batch.turns, vectors, aggregator)
            if not thin:
                return Outcome(means, own, batch.states)
            bases = {s: orthonormal(means[s].reshape(-1, self.rank)) for s in thin}
            factors = [[(row[s].reshape(sides[s]).T @ bases[s]).reshape(-1) for s in thin] for row in batch.vectors]
            turns = [[row[s] for s in thin] for row in batch.turns]
            mean_factors, own_factors = means_of("q", turns, factors, aggregator)
        states = list(batch.states)
        for at, s in enumerate(thin):
            q = mean_factors[at].reshape(-1, self.rank)
            means[s] = (bases[s] @ q.T).reshape(-1)
            states[s] = {"q": q} if is_finite(mean_factors[at]) else batch.states[s]
            for row, mine in zip(own, own_factors, strict=True):
                row[s] = (bases[s] @ mine[at].reshape(-1, self.rank).T).reshape(-1)
        return Outcome(means, own, states)

    def _start(self, turn: Turn, state: State, columns: int) -> Vector:
        """Q of the last step; in the first step a random orthonormal matrix."""
        if "q" in state and state["q"].shape == (columns, self.rank):
            return state["q"]
        random = turn.common().uniform(columns * self.rank, stream=START_STREAM).reshape(columns, self.rank)
        return orthonormal((random - 0.5).astype(turn.dtype))


def matrix_sides(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of a tensor as a matrix: the first dimension by the others.

    A tensor of one dimension (a segment of several parameters) becomes the matrix closest to a square.
    """
    size = math.prod(shape)
    if len(shape) > 1 or size < 2:
        return shape[0] if shape else 1, size // (shape[0] if shape else 1)
    rows = next(rows for rows in range(math.isqrt(size), 0, -1) if size % rows == 0)
    return rows, size // rows


def orthonormal(columns: Vector) -> Vector:
    """Columns after modified Gram-Schmidt. Dependent columns become zero; all do if a value is not finite."""
    result = columns.astype(np.float64)
    if not np.isfinite(result).all():
        return np.zeros_like(columns)
    for at in range(result.shape[1]):
        before = float(np.linalg.norm(result[:, at]))
        for other in range(at):
            result[:, at] -= (result[:, other] @ result[:, at]) * result[:, other]
        length = float(np.linalg.norm(result[:, at]))
        result[:, at] = result[:, at] / length if length > RANK_TOLERANCE * before else 0.0
    return result.astype(columns.dtype)
