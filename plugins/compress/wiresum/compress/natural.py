"""Natural compression, sign majority and no compression."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from wiresum.compress import packing
from wiresum.compress.arrays import Bytes, Int32Array, Vector
from wiresum.compress.compressor import GatherCompressor, IntegerCompressor
from wiresum.compress.turn import Turn

EXPONENT_BIAS = 127


@dataclass(frozen=True)
class Natural(GatherCompressor):
    """Stochastic rounding of magnitudes to powers of two: 9 bits a value, omega = 1/8 (arXiv 1905.10988, theorem 1).

    Exponents have the range of float32, -126 to 127; smaller values are rounded to 0 or 2^-126.
    """

    def omega(self, size: int, workers: int) -> float | None:
        return 1 / 8

    def compress(self, vector: Vector, turn: Turn) -> Bytes:
        magnitude = np.abs(vector, dtype=np.float64)
        fraction, exponent = np.frexp(magnitude)  # magnitude = fraction * 2^exponent, fraction in [1/2, 1)
        up = turn.uniform(turn.size) < 2 * fraction - 1
        code = np.clip(exponent - 1 + up + EXPONENT_BIAS, 1, 254)
        smallest = 2.0 ** (1 - EXPONENT_BIAS)
        tiny = turn.uniform(turn.size) < magnitude / smallest
        code = np.where(magnitude >= smallest, code, tiny).astype(np.uint8)
        return np.concatenate([code, np.packbits(np.signbit(vector))])

    def decompress(self, parcel: Bytes, turn: Turn) -> Vector:
        code, signs = parcel[: turn.size], np.unpackbits(parcel[turn.size :], count=turn.size)
        magnitude = np.where(code > 0, np.exp2(code.astype(np.float64) - EXPONENT_BIAS), 0.0)
        return np.where(signs, -magnitude, magnitude).astype(turn.dtype)


@dataclass(frozen=True)
class SignMajority(IntegerCompressor):
    """The sign that most workers have; 0 in a tie (signSGD with majority vote, arXiv 1810.05291).

    All values are -1, 0 or 1, so the learning rate is the step of every parameter.
    """

    bits: int | None = field(default=None, kw_only=True)
    """Bits of a sum of votes on the wire; None means the fewest with room for the votes of all workers."""
    follows_scale: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.bits is not None:
            packing.require_width(self.bits)

    def bits_at(self, turn: Turn) -> int:
        return self.bits or packing.width_for(1, turn.workers)

    def compress(self, vector: Vector, turn: Turn) -> Int32Array:
        return np.sign(vector).astype(np.int32)

    def decompress(self, integers: Int32Array, turn: Turn, contributors: int) -> Vector:
        return np.sign(integers).astype(turn.dtype)


@dataclass(frozen=True)
class Identity(GatherCompressor):
    """No compression: the baseline."""

    def omega(self, size: int, workers: int) -> float | None:
        return 0.0

    def contraction(self, size: int) -> float | None:
        return 1.0

    def compress(self, vector: Vector, turn: Turn) -> Bytes:
        return np.ascontiguousarray(vector).view(np.uint8)

    def decompress(self, parcel: Bytes, turn: Turn) -> Vector:
        vector: Vector = parcel.copy().view(turn.dtype)
        return vector
