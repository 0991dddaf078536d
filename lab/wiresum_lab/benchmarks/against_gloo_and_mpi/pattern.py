"""The tensors of the benchmark, and their expected sum. `mpi.c` computes the same tensors.

Elements are small whole numbers, so every system's sum is exact, at every lane width and in every order of addition.
They come from a table with a prime number of entries, which each repetition reads from another entry on. So the check
detects a chunk at the wrong place, and a sum left over from the repetition before.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

TABLE_ELEMENTS = 65_521
VALUE_MAX = 3
REPETITION_STRIDE = 7919


def table(rank: int) -> NDArray[np.float32]:
    """The table of one worker: values -3 .. 3."""
    index = np.arange(TABLE_ELEMENTS, dtype=np.uint32)
    with np.errstate(over="ignore"):
        hashed = (index * np.uint32(2_654_435_761) + np.uint32(rank) * np.uint32(40_503)) ^ np.uint32(0x9E37_79B9)
        hashed = (hashed * np.uint32(2_246_822_519)) >> np.uint32(16)
    values: NDArray[np.float32] = (hashed % np.uint32(2 * VALUE_MAX + 1)).astype(np.float32) - VALUE_MAX
    return values


def fill(out: NDArray[np.float32], values: NDArray[np.float32], repetition: int) -> None:
    """Sets out[i] = values[(i + shift) mod TABLE_ELEMENTS]."""
    rolled = np.roll(values, -shift(repetition))
    whole = len(out) // TABLE_ELEMENTS * TABLE_ELEMENTS
    out[:whole].reshape(-1, TABLE_ELEMENTS)[:] = rolled
    out[whole:] = rolled[: len(out) - whole]


def wrong_elements(result: NDArray[np.float32], expected: NDArray[np.float32], repetition: int) -> int:
    """How many elements of `result` differ from those of the table `expected`."""
    rolled = np.roll(expected, -shift(repetition))
    whole = len(result) // TABLE_ELEMENTS * TABLE_ELEMENTS
    wrong = np.count_nonzero(result[:whole].reshape(-1, TABLE_ELEMENTS) != rolled)
    return int(wrong) + int(np.count_nonzero(result[whole:] != rolled[: len(result) - whole]))


def shift(repetition: int) -> int:
    return repetition * REPETITION_STRIDE % TABLE_ELEMENTS
