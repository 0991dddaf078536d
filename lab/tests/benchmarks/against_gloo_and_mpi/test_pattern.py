"""The benchmark's tensors reveal a wrong sum, and are the same in C and in Python."""

import re
from pathlib import Path

import numpy as np

from wiresum_lab.benchmarks.against_gloo_and_mpi import pattern

ELEMENTS = 3 * pattern.TABLE_ELEMENTS + 1000


def filled(rank: int, repetition: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    tensor = np.empty(ELEMENTS, np.float32)
    pattern.fill(tensor, pattern.table(rank), repetition)
    return tensor


def test_the_sum_of_all_workers_equals_the_expected_tensor() -> None:
    for repetition in (0, 1, 40):
        total = filled(0, repetition) + filled(1, repetition) + filled(2, repetition)
        expected = pattern.table(0) + pattern.table(1) + pattern.table(2)
        assert pattern.wrong_elements(total, expected, repetition) == 0


def test_a_single_wrong_element_is_counted_at_any_position() -> None:
    for at in (0, pattern.TABLE_ELEMENTS, ELEMENTS - 1):
        total = filled(0, 1)
        total[at] += 1
        assert pattern.wrong_elements(total, pattern.table(0), 1) == 1


def test_the_sum_of_an_earlier_repetition_is_wrong_nearly_everywhere() -> None:
    assert pattern.wrong_elements(filled(0, 1), pattern.table(0), 2) > ELEMENTS / 2


def test_a_misplaced_chunk_is_wrong() -> None:
    total = filled(0, 0)
    total[:360], total[360:720] = total[360:720].copy(), total[:360].copy()
    assert pattern.wrong_elements(total, pattern.table(0), 0) > 360


def test_values_are_small_integers_and_differ_between_workers() -> None:
    tables = [pattern.table(rank) for rank in range(8)]
    for table in tables:
        assert set(np.unique(table)) == set(range(-pattern.VALUE_MAX, pattern.VALUE_MAX + 1))
    for table in tables[1:]:
        assert np.count_nonzero(table != tables[0]) > pattern.TABLE_ELEMENTS / 2


def test_the_c_program_has_the_same_constants() -> None:
    source = (Path(pattern.__file__).parent / "mpi.c").read_text()
    constants = dict(re.findall(r"k(\w+) = (\d+)", source))
    assert int(constants["TableElements"]) == pattern.TABLE_ELEMENTS
    assert int(constants["ValueMax"]) == pattern.VALUE_MAX
    assert int(constants["RepetitionStride"]) == pattern.REPETITION_STRIDE
    for number in ("2654435761", "40503", "0x9E3779B9", "2246822519"):
        assert number in source
