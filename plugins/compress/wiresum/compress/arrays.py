"""Array types and small operations on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Vector: TypeAlias = npt.NDArray[np.floating[Any]]
"""A one-dimensional array of float32 or float64."""
Int32Array: TypeAlias = npt.NDArray[np.int32]
Indices: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Sparse:
    """A sparse vector: values and their indices, which are distinct."""

    indices: Indices
    values: Vector

    def ascending(self) -> Sparse:
        if (np.diff(self.indices) > 0).all():
            return self
        order = np.argsort(self.indices)
        return Sparse(self.indices[order], self.values[order])

    def dense(self, size: int) -> Vector:
        result: Vector = np.zeros(size, self.values.dtype)
        result[self.indices] = self.values
        return result


def joined(parts: Sequence[Vector]) -> Vector:
    """The concatenated parts; a view if they are consecutive slices of one array, as np.split returns them."""
    base = parts[0].base
    if len(parts) == 1:
        return parts[0]
    if isinstance(base, np.ndarray) and base.ndim == 1 and base.flags.c_contiguous:
        begin = end = (_address(parts[0]) - _address(base)) // base.itemsize
        for part in parts:
            follows = part.base is base and _address(part) == _address(base) + end * base.itemsize
            if not (follows and part.dtype == base.dtype and part.flags.c_contiguous):
                break
            end += len(part)
        else:
            return base[begin:end]
    return np.concatenate(parts)


def _address(array: npt.NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def is_ascending_below(indices: Indices, size: int) -> bool:
    """True if `indices` are strictly ascending positions in a vector of `size` values."""
    return len(indices) == 0 or bool(indices[0] >= 0 and indices[-1] < size and (np.diff(indices) > 0).all())


def is_finite(vector: Vector) -> bool:
    return bool(np.isfinite(vector).all())


def blocks(vector: Vector, block: int) -> Vector:
    """The vector as rows of `block` values, padded with zeros; a view if no padding is needed."""
    missing = -len(vector) % block
    filled = np.concatenate([vector, np.zeros(missing, vector.dtype)]) if missing else vector
    return filled.reshape(-1, block)
