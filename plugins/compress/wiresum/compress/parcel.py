"""States as bytes for other workers: JSON, in which an array is an object of its own, and so is a mapping, whose names
may be any. What comes from a peer is data, and nothing in it can run."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

_ARRAY = "array"
_MAPPING = "mapping"
_KINDS = "biuf"
"""Of NumPy's types: numbers and truth values."""

Bytes = npt.NDArray[np.uint8]


def packed(state: Any) -> Bytes:
    """Of mappings with text as keys, sequences, arrays of numbers, numbers, text and None."""
    return np.frombuffer(json.dumps(_plain(state)).encode(), np.uint8)


def unpacked(parcel: Bytes) -> Any:
    """The same again, with lists for sequences. ValueError if it is nothing that `packed` makes."""
    try:
        return _restored(json.loads(parcel.tobytes()))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"another worker's state makes no sense: {error}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        assert value.dtype.kind in _KINDS, f"arrays of {value.dtype} do not travel"
        content = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {_ARRAY: content, "dtype": value.dtype.str, "shape": list(value.shape)}
    if isinstance(value, Mapping):
        assert all(isinstance(name, str) for name in value)
        return {_MAPPING: {name: _plain(item) for name, item in value.items()}}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


def _restored(value: Any) -> Any:
    if isinstance(value, list):
        return [_restored(item) for item in value]
    if not isinstance(value, dict):
        return value
    if _MAPPING in value:
        return {name: _restored(item) for name, item in value[_MAPPING].items()}
    dtype = np.dtype(value["dtype"])
    if dtype.kind not in _KINDS:
        raise ValueError(f"an array of {dtype}")
    content = base64.b64decode(value[_ARRAY], validate=True)
    return np.frombuffer(content, dtype).reshape(value["shape"]).copy()
