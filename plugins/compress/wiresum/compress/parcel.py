"""Encodes states as bytes for other workers, in JSON, which unlike a pickle cannot run code of a peer.

An array becomes an object with the key "array", a mapping an object with the key "mapping", so that the mapping's own
keys may be any text.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from wiresum.compress.arrays import Bytes

_ARRAY = "array"
_MAPPING = "mapping"
_KINDS = "biuf"
"""NumPy's dtype kinds of numbers and booleans."""


def packed(state: Any) -> Bytes:
    """Encodes a state of mappings with text keys, sequences, arrays of numbers, numbers, text and None."""
    return np.frombuffer(json.dumps(_plain(state)).encode(), np.uint8)


def unpacked(parcel: Bytes) -> Any:
    """The inverse of `packed`, with lists for sequences. ValueError if `packed` cannot have made the parcel."""
    try:
        return _restored(json.loads(parcel.tobytes()))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"another worker's state is not valid: {error}") from error


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
