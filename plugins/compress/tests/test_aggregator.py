"""The aggregator interface, in one process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from wiresum.compress import InProcess


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_words_are_added_as_a_switch_adds_them(bits: int) -> None:
    aggregator = InProcess(3)
    generator = np.random.default_rng(bits)
    bound = (2 ** (bits - 1) - 1) // 3
    values = [generator.integers(-bound, bound + 1, 1001).astype(np.int32) for _ in range(3)]
    assert (aggregator.sum(values, bits) == np.sum(values, axis=0)).all()


def test_sums_of_32_bits_wrap() -> None:
    big = np.array([2**31 - 1], np.int32)
    assert InProcess(2).sum([big, np.ones(1, np.int32)], 32).tolist() == [-(2**31)]


def test_contributions_stay_unchanged() -> None:
    values = np.ones(4, np.int32)
    InProcess(2).sum([values, values], 32)
    assert values.tolist() == [1, 1, 1, 1]


def test_a_maximum_keeps_nans() -> None:
    result = InProcess(2).maximum([np.array([1.0, np.nan, 5.0]), np.array([2.0, 0.0, 3.0])])
    assert result[[0, 2]].tolist() == [2, 5]
    assert np.isnan(result[1])


def test_bytes_of_any_length_are_gathered() -> None:
    parcels = [np.arange(length, dtype=np.uint8) for length in (3, 0, 7)]
    gathered = InProcess(3).gather(parcels, sizes_equal=False)
    assert [parcel.tolist() for parcel in gathered] == [parcel.tolist() for parcel in parcels]


@pytest.mark.parametrize("length", [-1, 2**32 + 1, 2**63 - 1])
def test_a_length_that_no_worker_has_is_refused(length: int) -> None:
    class Hostile(InProcess):
        def _gather(self, contributions: Any) -> Any:
            return [contributions[0], np.array([length], "<i8").view(np.uint8)]

    with pytest.raises(ValueError, match=f"{length}"):
        Hostile(2).gather([np.zeros(3, np.uint8)] * 2, sizes_equal=False)


def test_parcels_go_where_they_are_sent() -> None:
    parcels = {worker: np.full(4, worker, np.uint8) for worker in range(3)}
    delivered = InProcess(3).deliver([(2, 0), (1, 2)], parcels, 4)
    assert {worker: parcel.tolist() for worker, parcel in delivered.items()} == {0: [2] * 4, 2: [1] * 4}


def test_traffic_is_counted_for_one_worker() -> None:
    aggregator = InProcess(4)
    aggregator.sum([np.ones(10, np.int32)] * 4, 8)
    assert (aggregator.traffic.sent_bytes, aggregator.traffic.received_bytes) == (12, 12)
    aggregator.gather([np.ones(5, np.uint8)] * 4)
    assert (aggregator.traffic.sent_bytes, aggregator.traffic.received_bytes) == (17, 32)
    aggregator.deliver([(1, 0), (3, 2)], {worker: np.ones(8, np.uint8) for worker in range(4)}, 8)
    assert (aggregator.traffic.sent_bytes, aggregator.traffic.received_bytes) == (21, 36)
    assert aggregator.traffic.rounds == 3
