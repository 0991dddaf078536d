"""Block sparsifiers: whole blocks of neighbouring values are sent (OmniReduce, SIGCOMM'21, section 5).

A block has one index, and blocks are chosen by their norms. A tensor's last block may be shorter. Training converges
only with error feedback.

    BlockRandomK      random blocks, the same at all workers (or each its own): no index travels
    BlockTopK         the largest norms
    BlockTopKRatio    the largest norms relative to those of the parameters at the same positions
    BlockThreshold    all norms of at least a threshold
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from wiresum.compress.arrays import Indices, Sparse, Vector, blocks
from wiresum.compress.compressor import SparseCompressor, elements_of, units_of
from wiresum.compress.memory import Memory
from wiresum.compress.native import largest
from wiresum.compress.ratio import Ratio, count_of, least, ratio_at, require_ratio
from wiresum.compress.turn import Turn

BLOCK = 256
"""The default number of values in a block, as in the paper."""


@dataclass(frozen=True)
class BlockSparsifier(SparseCompressor):
    block: int = field(default=BLOCK, kw_only=True)
    memory: str | Memory = field(default="error-feedback", kw_only=True)

    def __post_init__(self) -> None:
        if self.block < 1:
            raise ValueError(f"a block has at least 1 value, not {self.block}")

    @property
    def unit(self) -> int:
        return self.block

    @abstractmethod
    def blocks(self, vector: Vector, turn: Turn) -> Indices:
        """The numbers of the blocks to send, ascending."""

    def compress(self, vector: Vector, turn: Turn) -> Sparse:
        chosen = elements_of(self.blocks(vector, turn), self.block, turn.size)
        return Sparse(chosen, vector[chosen])


@dataclass(frozen=True)
class _FractionOfBlocks(BlockSparsifier):
    ratio: Ratio

    def __post_init__(self) -> None:
        super().__post_init__()
        require_ratio(self.ratio)

    def count(self, turn: Turn) -> int:
        return count_of(ratio_at(self.ratio, turn.step), units_of(turn.size, self.block))


@dataclass(frozen=True)
class BlockRandomK(_FractionOfBlocks):
    """Sends a random fraction `ratio` of the blocks, the same at all workers; with `independent` each worker draws its
    own blocks."""

    independent: bool = field(default=False, kw_only=True)

    def contraction(self, size: int) -> float | None:
        total = units_of(size, self.block)
        return count_of(least(self.ratio), total) / total

    def blocks(self, vector: Vector, turn: Turn) -> Indices:
        return (turn if self.independent else turn.common()).subset(units_of(turn.size, self.block), self.count(turn))

    def indices(self, turn: Turn) -> Indices:
        return elements_of(self.blocks(np.zeros(0), turn), self.block, turn.size)


@dataclass(frozen=True)
class BlockTopK(_FractionOfBlocks):
    """Sends the fraction `ratio` of the blocks with the largest Euclidean norms; among equals the first block wins."""

    def contraction(self, size: int) -> float | None:
        total = units_of(size, self.block)
        return count_of(least(self.ratio), total) / total

    def blocks(self, vector: Vector, turn: Turn) -> Indices:
        return largest(block_norms(vector, self.block), self.count(turn))


@dataclass(frozen=True)
class BlockTopKRatio(_FractionOfBlocks):
    """Sends the fraction `ratio` of the blocks whose norms are largest relative to the norms of their parameters."""

    uses_parameters: ClassVar[bool] = True

    def blocks(self, vector: Vector, turn: Turn) -> Indices:
        if turn.parameters is None:
            raise ValueError(
                f"BlockTopKRatio compares '{turn.tensor}' with its parameters: give Engine.average `parameters`"
            )
        floor = np.finfo(np.float32).tiny
        relative = block_norms(vector, self.block) / (block_norms(turn.parameters, self.block) + floor)
        return largest(relative, self.count(turn))


@dataclass(frozen=True)
class BlockThreshold(BlockSparsifier):
    """Sends all blocks whose Euclidean norms are at least `norm`."""

    norm: float
    counts_equal: ClassVar[bool] = False
    follows_scale: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.norm < math.inf:
            raise ValueError(f"the norm is a threshold: finite and not negative, not {self.norm}")

    def blocks(self, vector: Vector, turn: Turn) -> Indices:
        return np.flatnonzero(block_norms(vector, self.block) >= self.norm)


def block_norms(vector: Vector, block: int) -> npt.NDArray[np.float64]:
    """The Euclidean norm of each block."""
    rows = blocks(vector, block)
    squares: npt.NDArray[np.float64] = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
    return np.sqrt(squares)
