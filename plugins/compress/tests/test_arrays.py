"""Joining arrays: adjacent parts are joined without a copy, and all others are copied correctly."""

from __future__ import annotations

import numpy as np
import pytest

from wiresum.compress.arrays import joined

WHOLE = np.arange(24.0)


def test_adjacent_parts_of_one_array_are_joined_without_a_copy() -> None:
    parts = np.split(WHOLE, [3, 10])
    assert np.shares_memory(joined(parts), WHOLE)
    assert joined(parts).tolist() == WHOLE.tolist()
    assert joined(parts[1:]).tolist() == WHOLE[3:].tolist()


@pytest.mark.parametrize(
    "parts",
    [
        [WHOLE[3:], WHOLE[:3]],
        [WHOLE[:3], WHOLE[4:]],
        [WHOLE[:3], WHOLE[3:].copy()],
        [WHOLE[:6:2], WHOLE[6:]],
        [WHOLE[:1], WHOLE[1::2]],
        [WHOLE.reshape(4, 6)[:, 0], WHOLE[1:]],
        [WHOLE.astype(np.float32)[:3], WHOLE[3:]],
    ],
    ids=["another order", "a gap", "another array", "strides", "strides at the end", "a column", "another type"],
)
def test_other_parts_are_copied(parts: list[np.ndarray]) -> None:
    result = joined(parts)
    assert result.tolist() == [value for part in parts for value in part.tolist()]
    assert not np.shares_memory(result, WHOLE)
