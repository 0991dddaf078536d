"""The bounds of goodput count what the shaper counts."""

import pytest

from wiresum_lab.benchmarks.bounds import network_mbit, ring_mbit
from wiresum_lab.namespaces.links import burst_bytes

TENSOR_BYTES = 14_400_000


def paced(tensor_bytes: int, frame_bytes: float) -> float:
    """The goodput in Mbit/s of a tensor whose frames, except for one burst, are sent at 100 Mbit/s."""
    return 100 * tensor_bytes / (frame_bytes - burst_bytes(100.0))


def test_the_bound_counts_all_headers_and_subtracts_one_burst() -> None:
    assert network_mbit(TENSOR_BYTES, 100.0) == pytest.approx(paced(TENSOR_BYTES, 10_000 * 1506))
    assert network_mbit(TENSOR_BYTES + 4, 100.0) == pytest.approx(paced(TENSOR_BYTES + 4, 10_000 * 1506 + 70))
    assert network_mbit(TENSOR_BYTES, 100.0) == pytest.approx(100 * 1440 / 1506, rel=0.003)


def test_narrower_lanes_have_their_own_bound() -> None:
    for bits, packets in ((16, 5000), (8, 2500)):
        assert network_mbit(TENSOR_BYTES, 100.0, bits) == pytest.approx(paced(TENSOR_BYTES, packets * 1506))


def test_jumbo_packets_have_a_higher_bound() -> None:
    jumbo = 8928 * 1000
    assert network_mbit(jumbo, 100.0, mtu=9000) == pytest.approx(paced(jumbo, 1000 * (9014 - 20)))
    assert ring_mbit(TENSOR_BYTES, 100.0, 8, 9000) == pytest.approx(100 * 8948 / 9014 / 1.75, rel=0.003)


def test_a_tensor_that_fits_the_burst_and_a_link_without_a_shape_have_no_bound() -> None:
    assert network_mbit(14_400, 100.0) is None
    assert network_mbit(TENSOR_BYTES, None) is None and ring_mbit(TENSOR_BYTES, None, 8) is None


def test_a_ring_sends_almost_twice_the_tensor() -> None:
    assert ring_mbit(TENSOR_BYTES, 100.0, 8) == pytest.approx(100 * 1448 / 1514 / 1.75, rel=0.003)
    assert ring_mbit(TENSOR_BYTES, 100.0, 2) == pytest.approx(100 * 1448 / 1514, rel=0.003)
