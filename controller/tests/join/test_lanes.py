from __future__ import annotations

import pytest

from wiresum.join.constants import LANES_MAX
from wiresum.join.lanes import lanes_of_mtu, packet_bytes


@pytest.mark.parametrize(
    ("mtu", "lanes"), [(65536, 16368), (9000, 2232), (1500, 360), (1280, 304), (576, 128), (84, 8), (83, 7), (56, 1)]
)
def test_the_lanes_are_a_multiple_of_the_vector_width_if_the_mtu_allows(mtu: int, lanes: int) -> None:  # R2.18
    assert lanes_of_mtu(mtu) == lanes
    assert packet_bytes(lanes) <= mtu


def test_lanes_are_bounded_by_the_datagram_size() -> None:
    assert lanes_of_mtu(1 << 20) <= LANES_MAX


def test_an_mtu_that_is_too_small_for_one_lane_is_refused() -> None:
    with pytest.raises(ValueError, match="MTU of 55 bytes"):
        lanes_of_mtu(55)
