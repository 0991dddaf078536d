"""Where the native core does the work: rounding, packing, the largest values, indices of sparse vectors.

Thin: arrays are made and made contiguous here, and stochastic.hpp, selection.hpp and indices.hpp in
host_agent/src/numeric define what is computed.

Workers derive scales and choices from what they have in common, each on its own. If two of them rounded differently,
they would decode the same sum to different gradients and drift apart without an error. What comes from here has the
same bits on every processor, whatever the width of its vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from wiresum.agent import _native
from wiresum.compress.arrays import Bytes, Indices, Int32Array, Vector

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


def largest(vector: Vector | Int32Array, count: int) -> Indices:
    """Where the `count` largest magnitudes are, ascending. Among equals the lower index wins; a NaN is above all."""
    indices = np.empty(min(count, len(vector)), np.int64)
    is_known = vector.dtype == np.int32 or vector.dtype in _FLOATS
    source: npt.NDArray[Any] = np.ascontiguousarray(vector, vector.dtype if is_known else np.float64)
    _native.largest(source, indices)
    return indices


def index_code(indices: Indices, size: int, code_bytes: int) -> Bytes:
    """The code (union.py) of ascending indices below `size`; ValueError if they are not."""
    code = np.empty(code_bytes, np.uint8)
    _native.encode_indices(np.ascontiguousarray(indices, np.int64), size, code)
    return code


def indices_of(code: Bytes, count: int, size: int) -> Indices:
    """The inverse; ValueError if it is not the code of so many indices."""
    indices = np.empty(count, np.int64)
    _native.decode_indices(np.ascontiguousarray(code), size, indices)
    return indices


def union_of(parts: Sequence[Indices], size: int) -> Indices:
    """All indices below `size` that are in any of the parts, ascending."""
    indices = np.empty(min(size, sum(map(len, parts))), np.int64)
    return indices[: _native.unite_indices([np.ascontiguousarray(part) for part in parts], size, indices)]


def places_among(indices: Indices, others: Indices) -> Indices:
    """Where each index is among others, -1 if it is not there. Both are ascending."""
    places = np.empty(len(indices), np.int64)
    _native.find_places(np.ascontiguousarray(indices), np.ascontiguousarray(others), places)
    return places


def square_distance(one: Vector, other: Vector) -> float:
    """|one - other|^2, in fp64."""
    return _native.square_distance(_floats(one), _floats(other))


def _floats(vector: Vector) -> Vector:
    """Contiguous, and of a type that the core knows."""
    return np.ascontiguousarray(vector, vector.dtype if vector.dtype in _FLOATS else np.float64)
