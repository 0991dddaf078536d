"""NumPy wrappers of the native core: rounding, packing, the largest values, indices of sparse vectors.

stochastic.hpp, format.hpp, selection.hpp and indices.hpp in host_agent/src/numeric define what is computed. Results
have the same bits on every processor: if two workers rounded differently, they would decode the same sum to different
gradients, and their models would diverge without an error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from wiresum.agent import _native
from wiresum.compress.arrays import Bytes, Indices, Int32Array, Vector

DefaultFloats = _native.DefaultFloats
"""Context manager for results that do not depend on the thread's floating-point modes (rounding, subnormals)."""

P = ParamSpec("P")
R = TypeVar("R")


def with_default_floats(function: Callable[P, R]) -> Callable[P, R]:
    """Decorates a function whose results must have the same bits at all workers, although one worker may flush
    subnormals to zero and another may not."""

    @functools.wraps(function)
    def computed(*args: P.args, **kwargs: P.kwargs) -> R:
        with DefaultFloats():
            return function(*args, **kwargs)

    return computed


Draw = tuple[int, int, int, int, int]
"""Key and counter of the random generator, without the index: two words of the key, then worker, step and stream."""

WORD_BITS = 32
_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


def random_words(draw: Draw, first: int, count: int) -> npt.NDArray[np.uint32]:
    """Words `first` to `first + count` of a draw."""
    words = np.empty(count, np.uint32)
    _native.random_words(draw, first, words)
    return words


def rounded(draw: Draw, vector: Vector, quanta: npt.NDArray[np.float64], block: int, limit: int) -> Int32Array:
    """floor(v/q + u), clamped to `limit`. Each block has a quantum q; a quantum of zero makes the block zero."""
    with np.errstate(divide="ignore", over="ignore"):
        inverses = np.where(quanta > 0, 1.0 / quanta, 0.0)
    integers = np.empty(len(vector), np.int32)
    _native.round_stochastically(draw, _floats(vector), inverses, block, limit, integers)
    return integers


def scaled(integers: Int32Array, factors: npt.NDArray[np.float64], block: int, dtype: np.dtype[Any]) -> Vector:
    """Integers times their block's factor, computed in fp64."""
    kind = dtype if dtype in _FLOATS else np.dtype(np.float64)
    values: Vector = np.empty(len(integers), kind)
    _native.scale_integers(np.ascontiguousarray(integers), np.ascontiguousarray(factors), block, values)
    return values.astype(dtype, copy=False)


def pack(integers: Int32Array, bits: int) -> Int32Array:
    """Word j of m holds the integers j, j + m, j + 2m, ... (host_agent/src/numeric/format.hpp)."""
    if bits == WORD_BITS:
        return integers
    packed = np.empty(-(-len(integers) * bits // WORD_BITS), np.uint32)
    _native.pack_lanes(bits, np.ascontiguousarray(integers), packed)
    return packed.view(np.int32)


def unpack(words: Int32Array, bits: int, count: int) -> Int32Array:
    if bits == WORD_BITS:
        return words
    integers = np.empty(count, np.int32)
    _native.unpack_lanes(bits, np.ascontiguousarray(words).view(np.uint32), integers)
    return integers


def largest(vector: Vector | Int32Array, count: int) -> Indices:
    """Indices of the `count` largest magnitudes, ascending. Among equals the lower index wins; NaN is the largest."""
    indices = np.empty(min(count, len(vector)), np.int64)
    is_known = vector.dtype == np.int32 or vector.dtype in _FLOATS
    source: npt.NDArray[Any] = np.ascontiguousarray(vector, vector.dtype if is_known else np.float64)
    _native.largest(source, indices)
    return indices


def index_code_bytes(count: int, size: int) -> int:
    """Length of the code of `count` indices below `size`."""
    return _native.index_code_bytes(count, size)


def index_code(indices: Indices, size: int) -> Bytes:
    """The code of ascending indices below `size`; ValueError if they are not."""
    code = np.empty(index_code_bytes(len(indices), size), np.uint8)
    _native.encode_indices(np.ascontiguousarray(indices, np.int64), size, code)
    return code


def indices_of(code: Bytes, count: int, size: int) -> Indices:
    """The inverse of `index_code`; ValueError if `code` is no code of `count` indices below `size`."""
    indices = np.empty(count, np.int64)
    _native.decode_indices(np.ascontiguousarray(code), size, indices)
    return indices


def union_of(parts: Sequence[Indices], size: int) -> Indices:
    """The union, ascending, of ascending indices below `size`."""
    indices = np.empty(min(size, sum(map(len, parts))), np.int64)
    return indices[: _native.unite_indices([np.ascontiguousarray(part) for part in parts], size, indices)]


def places_among(indices: Indices, others: Indices) -> Indices:
    """The position of each index in `others`; -1 if `others` lacks the index. Both arrays ascend."""
    places = np.empty(len(indices), np.int64)
    _native.find_places(np.ascontiguousarray(indices), np.ascontiguousarray(others), places)
    return places


def square_distance(one: Vector, other: Vector) -> float:
    """|one - other|^2, in fp64."""
    return _native.square_distance(_floats(one), _floats(other))


def _floats(vector: Vector) -> Vector:
    """The vector as a contiguous array of a dtype that the core supports."""
    return np.ascontiguousarray(vector, vector.dtype if vector.dtype in _FLOATS else np.float64)
