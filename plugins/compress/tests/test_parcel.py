from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from wiresum.compress.parcel import packed, unpacked

ARRAYS = npst.arrays(
    st.sampled_from([np.float64, np.float32, np.int64, np.uint32, np.bool_]), npst.array_shapes(min_side=0)
)
NUMBERS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
NAMES = st.text() | st.sampled_from(["array", "mapping"])  # a parameter may have any name
STATES = st.recursive(NUMBERS | ARRAYS, lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner), max_leaves=10)


def same(left: Any, right: Any) -> bool:
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[name], right[name]) for name in left)
    return bool(left == right or (left != left and right != right))


@given(STATES)
def test_a_state_arrives_bit_for_bit(state: Any) -> None:
    assert same(state, unpacked(packed(state)))


def array(**fields: Any) -> bytes:
    return json.dumps({"array": "AAAAAA==", "dtype": "<f4", "shape": [1], **fields}).encode()


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\xff\xfe",
        pickle.dumps({"step": 3}),
        b"[" * 100_000,
        array(dtype="O"),
        array(dtype="no such type"),
        array(dtype=7),
        array(shape=[2]),
        array(shape="wide"),
        array(array="not base64"),
        array(array=None),
        b'{"array": ""}',
        b'{"mapping": [1]}',
        b'{"step": 3}',
    ],
    ids=repr,
)
def test_other_bytes_are_refused_and_no_code_in_them_runs(sent: bytes) -> None:
    with pytest.raises(ValueError, match="another worker's state is not valid"):
        unpacked(np.frombuffer(sent, np.uint8))
