"""The array types of this package, and the few operations on them that must give the same bits everywhere.

Workers derive scales and choices from what they have in common, each on its own. If two of them rounded differently,
they would decode the same sum to different gradients and drift apart without an error. So what follows avoids every
operation whose result depends on the width of a machine's vectors or on a library's choice of algorithm.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Vector: TypeAlias = npt.NDArray[np.floating[Any]]
"""One dimension, float32 or float64."""
Int32Array: TypeAlias = npt.NDArray[np.int32]
Indices: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = npt.NDArray[np.uint8]

_COLUMNS = 128


def square_norm(vector: Vector) -> float:
    """|v|^2 in float64, the same bits on every machine: columns are added row by row, and then without rounding."""
    squares = np.square(vector, dtype=np.float64)
    whole = len(squares) // _COLUMNS * _COLUMNS
    columns = np.zeros(_COLUMNS)
    if whole:
        columns += np.add.reduce(squares[:whole].reshape(-1, _COLUMNS), axis=0)
    return math.fsum([*columns.tolist(), *squares[whole:].tolist()])


def largest(magnitudes: Vector, count: int) -> Indices:
    """Where the `count` largest values are, ascending. Among equals the lower index wins, whatever numpy's version."""
    if count >= len(magnitudes):
        return np.arange(len(magnitudes))
    threshold = np.partition(magnitudes, len(magnitudes) - count)[len(magnitudes) - count]
    above = np.flatnonzero(magnitudes > threshold)
    equal = np.flatnonzero(magnitudes == threshold)
    return np.sort(np.concatenate([above, equal[: count - len(above)]]))


def is_finite(vector: Vector) -> bool:
    return bool(np.isfinite(vector).all())


def blocks(vector: Vector, block: int) -> Vector:
    """The vector as rows of `block` values, the last row filled up with zeros; a view where nothing is filled."""
    missing = -len(vector) % block
    filled = np.concatenate([vector, np.zeros(missing, vector.dtype)]) if missing else vector
    return filled.reshape(-1, block)
