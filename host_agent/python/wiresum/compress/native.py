"""Where the native core does the work: random words, stochastic rounding, lanes in words, the largest values.

Thin: arrays are made and made contiguous here, and host_agent/src/numeric/stochastic.hpp defines what is computed.

Workers derive scales and choices from what they have in common, each on its own. If two of them rounded differently,
they would decode the same sum to different gradients and drift apart without an error. What comes from here has the
same bits on every processor, whatever the width of its vectors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from wiresum.agent import _native
from wiresum.compress.arrays import Indices, Int32Array, Vector

Draw = tuple[int, int, int, int, int]
"""What randomness depends on besides the index: two words of a key, worker, step, stream; 32 bits each."""

_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


def random_words(draw: Draw, first: int, count: int) -> npt.NDArray[np.uint32]:
    """Words `first` to `first + count` of a draw."""
    words = np.empty(count, np.uint32)
    _native.random_words(draw, first, words)
    return words


def rounded(draw: Draw, vector: Vector, inverses: npt.NDArray[np.float64], block: int, limit: int) -> Int32Array:
    """floor(v * inverse + u), clamped to the limit; each block of the vector has an inverse quantum."""
    integers = np.empty(len(vector), np.int32)
    _native.round_stochastically(draw, _floats(vector), np.ascontiguousarray(inverses), block, limit, integers)
    return integers


def scaled(integers: Int32Array, factors: npt.NDArray[np.float64], block: int, dtype: np.dtype[Any]) -> Vector:
    """Integers times their block's factor, in fp64, and then as `dtype`."""
    kind = dtype if dtype in _FLOATS else np.dtype(np.float64)
    values: Vector = np.empty(len(integers), kind)
    _native.scale_integers(np.ascontiguousarray(integers), np.ascontiguousarray(factors), block, values)
    return values.astype(dtype, copy=False)


def pack(integers: Int32Array, bits: int, words: int) -> Int32Array:
    packed = np.empty(words, np.uint32)
    _native.pack_lanes(bits, np.ascontiguousarray(integers), packed)
    return packed.view(np.int32)


def unpack(words: Int32Array, bits: int, count: int) -> Int32Array:
    integers = np.empty(count, np.int32)
    _native.unpack_lanes(bits, np.ascontiguousarray(words).view(np.uint32), integers)
    return integers


def largest(vector: Vector, count: int) -> Indices:
    """Where the `count` largest magnitudes are, ascending. Among equals the lower index wins; a NaN is above all."""
    indices = np.empty(min(count, len(vector)), np.int64)
    _native.largest(_floats(vector), indices)
    return indices


def square_distance(one: Vector, other: Vector) -> float:
    """|one - other|^2, in fp64."""
    return _native.square_distance(_floats(one), _floats(other))


def _floats(vector: Vector) -> Vector:
    """Contiguous, and of a type that the core knows."""
    return np.ascontiguousarray(vector, vector.dtype if vector.dtype in _FLOATS else np.float64)
