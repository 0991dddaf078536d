"""Limits of the compressors' native code."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from wiresum.agent import _native
from wiresum.compress import native
from wiresum.compress.union import INDEX_MAX

TOO_MANY = INDEX_MAX + 1
MAP_NORESERVE = 0x4000  # mmap exports the name since Python 3.13


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
def test_more_elements_than_an_index_can_number_are_refused(dtype: type) -> None:
    """The pages are never read, so they take no memory."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    vector = np.frombuffer(mmap.mmap(-1, TOO_MANY * np.dtype(dtype).itemsize, flags), dtype)
    with pytest.raises(ValueError, match=f"a tensor of {TOO_MANY} elements, of which no more than {INDEX_MAX}"):
        native.largest(vector, 3)


def test_indices_of_more_elements_have_no_code() -> None:
    code = np.zeros(64, np.uint8)
    with pytest.raises(ValueError, match="can be told apart by their indices"):
        _native.encode_indices(np.array([1, TOO_MANY - 1]), TOO_MANY, code)
    with pytest.raises(ValueError, match="can be told apart by their indices"):
        _native.decode_indices(code, TOO_MANY, np.zeros(2, np.int64))
