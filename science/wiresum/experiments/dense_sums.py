"""Plain sums with 16 or 8 bits, like the backend's with WIRESUM_BITS: block floating point (docs/numerics.md).

Experiment 7 trains with these sums in one process, and wire.py compares their bits with the bits of real sessions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wiresum.compress import Turn
from wiresum.compress.arrays import Int32Array, Vector, blocks
from wiresum.compress.compressor import Compressor, IntegerCompressor

PACKET_WORDS = 360
"""Words of 32 bits in a packet, at an MTU of 1500."""
ROUNDS = 2
"""Rounds of a sum: the exponents of each slot's first packet travel ahead, and this network has fewer packets than
slots."""
EXPONENT_OF_ZERO = -149.0


@dataclass(frozen=True)
class DenseSums(IntegerCompressor):
    """Converts each packet's values to integers times a power of two, which follows from the largest exponent of all
    workers."""

    bits: int

    def bits_at(self, turn: Turn) -> int:
        return self.bits

    def statistic(self, vector: Vector, turn: Turn) -> Vector:
        """The smallest E with all magnitudes below 2^E, by packet."""
        largest = np.abs(blocks(vector, self._packet)).max(axis=1)
        exponents: Vector = np.where(largest > 0, np.frexp(largest)[1], EXPONENT_OF_ZERO).astype(np.float64)
        return exponents

    def compress(self, vector: Vector, turn: Turn) -> Int32Array:
        bound = (1 << -self._shift(turn)) - 1
        integers = np.rint(vector.astype(np.float64) / self._quanta(turn))
        return np.clip(integers, -bound, bound).astype(np.int32)

    def decompress(self, integers: Int32Array, turn: Turn, contributors: int) -> Vector:
        mean: Vector = (integers * self._quanta(turn)).astype(turn.dtype)
        mean /= turn.dtype.type(contributors)
        return mean

    @property
    def _packet(self) -> int:
        """How many values a packet has."""
        return PACKET_WORDS * 32 // self.bits

    def _shift(self, turn: Turn) -> int:
        """The shift in a packet's quantum 2^(E + shift)."""
        return (turn.workers - 1).bit_length() + 1 - self.bits

    def _quanta(self, turn: Turn) -> Vector:
        """The quantum of each value."""
        assert turn.shared is not None, "the maximum of statistic() was taken"
        by_packet = np.ldexp(1.0, turn.shared.astype(np.int64) + self._shift(turn))
        quanta: Vector = np.repeat(by_packet, self._packet)[: turn.size]
        return quanta


def granularity_of(method: Compressor) -> str:
    """The granularity of a method: plain sums are of DDP's buckets (here one), the experiment's methods compress by
    layer."""
    return "model" if isinstance(method, DenseSums) else "layer"
