"""Units of compression: a *piece* is a parameter, a *segment* is compressed as one vector. A segment is one piece (by
layer), the pieces of a bucket, or the whole model."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Piece:
    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Segment:
    pieces: tuple[Piece, ...]

    @property
    def name(self) -> str:
        return "+".join(self.names)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(piece.name for piece in self.pieces)

    @property
    def size(self) -> int:
        return sum(piece.size for piece in self.pieces)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.pieces[0].shape if len(self.pieces) == 1 else (self.size,)
