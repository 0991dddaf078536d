"""What the compiled Tofino program does besides aggregation, on the vendor's model: a selection of
test_tofino_forwarding.py, and cases that only the chip's parser decides."""

from __future__ import annotations

import pytest

from bmv2_tests.test_tofino_forwarding import ELSEWHERE, JOB, MEMBERS, complete, contribution
from bmv2_tests.tofino_model.model_switch import ModelSwitch
from bmv2_tests.tofino_network import STRANGER, SWITCH, TofinoNetwork
from wiresum.conformance.frames import Host, UdpFrame, arp_frame, icmp_frame
from wiresum.join.constants import FLOOD_GROUP, SWITCH_PORT

FIRST, SECOND, THIRD = 41, 42, 43
"""External ports on either generation, which no worker of the job uses."""
CHECK_SEQUENCE_BYTES = 4
"""They follow a frame, and the parser can read them; so it does not notice if up to four bytes are missing."""
CUT_WITHIN_HEADER = {1: "malformed", 2: "other"}
"""The reason that is counted for a packet to the switch's port that ends within the protocol's header. On Tofino 2
the compiler uses one parser state for the port and that header; if bytes are missing, the parser does neither."""


@pytest.fixture
def network(tofino_model: ModelSwitch) -> TofinoNetwork:
    made = TofinoNetwork(tofino_model)
    made.admit(JOB)
    return made


def left(network: TofinoNetwork, port: int, frame: bytes, expected: int) -> list[tuple[int, bytes]]:
    return sorted((copy.port, copy.frame) for copy in network.send(port, frame, expected))


@pytest.mark.parametrize("payload", [b"x" * 18, contribution(MEMBERS[0])])
def test_traffic_of_others_is_flooded_unchanged_to_all_other_ports(network: TofinoNetwork, payload: bytes) -> None:
    network.chip.replicate(FLOOD_GROUP, [(port, 0) for port in (FIRST, SECOND, THIRD)])
    frame = UdpFrame(STRANGER, ELSEWHERE, 5000, SWITCH_PORT, payload, ecn=1, dscp=9, ttl=3).pack()
    assert left(network, SECOND, frame, 2) == [(FIRST, frame), (THIRD, frame)]


def test_frames_to_a_known_host_leave_by_its_port_alone(network: TofinoNetwork) -> None:
    network.chip.insert("forward", {"mac": int.from_bytes(ELSEWHERE.mac, "big")}, "forward_to", {"port": SECOND})
    frame = UdpFrame(STRANGER, ELSEWHERE, 5000, 80, b"hello" * 4).pack()
    assert left(network, FIRST, frame, 1) == [(SECOND, frame)]
    assert left(network, SECOND, frame, 0) == [], "a frame does not leave by its own port"


@pytest.mark.parametrize("length", [65, 66, 100, 322 - CHECK_SEQUENCE_BYTES - 1])
def test_frames_of_others_that_end_within_a_header_are_dropped(network: TofinoNetwork, length: int) -> None:
    network.chip.replicate(FLOOD_GROUP, [(FIRST, 0)])
    frame = UdpFrame(STRANGER, ELSEWHERE, 5000, SWITCH_PORT, contribution(MEMBERS[0])).pack()
    assert left(network, SECOND, frame, 1) == [(FIRST, frame)]
    assert left(network, SECOND, frame[:length], 0) == []
    assert network.chip.late() == []


@pytest.mark.parametrize("length", [65, 66, 322 - CHECK_SEQUENCE_BYTES - 1])
def test_a_truncated_contribution_is_malformed(network: TofinoNetwork, length: int) -> None:
    frame = network.own_frame(MEMBERS[0], contribution(MEMBERS[0])).pack()
    before = network.packets()
    assert left(network, network.port(MEMBERS[0]), frame[:length], 0) == []
    assert network.packets() - before == {"malformed": 1}


def test_a_contribution_that_ends_within_its_header_is_refused(network: TofinoNetwork, tofino_generation: int) -> None:
    frame = network.own_frame(MEMBERS[0], contribution(MEMBERS[0])).pack()
    before = network.packets()
    assert left(network, network.port(MEMBERS[0]), frame[:60], 0) == []
    assert network.packets() - before == {CUT_WITHIN_HEADER[tofino_generation]: 1}


def test_a_frame_of_others_without_its_last_bytes_passes_unchanged(network: TofinoNetwork) -> None:
    """The parser takes the check sequence for the missing bytes, and the frame leaves with its original length."""
    network.chip.replicate(FLOOD_GROUP, [(FIRST, 0)])
    frame = UdpFrame(STRANGER, ELSEWHERE, 5000, SWITCH_PORT, contribution(MEMBERS[0])).pack()
    cut = frame[:-CHECK_SEQUENCE_BYTES]
    assert left(network, SECOND, cut, 1) == [(FIRST, cut)]


def test_a_contribution_without_its_last_bytes_is_completed_by_the_check_sequence(network: TofinoNetwork) -> None:
    frame = network.own_frame(MEMBERS[0], contribution(MEMBERS[0])).pack()
    before = network.packets()
    assert left(network, network.port(MEMBERS[0]), frame[:-CHECK_SEQUENCE_BYTES], 0) == []
    assert network.packets() - before == {"admitted": 1}


def test_a_contribution_with_a_wrong_ipv4_checksum_is_refused(network: TofinoNetwork) -> None:
    frame = bytearray(network.own_frame(MEMBERS[0], contribution(MEMBERS[0])).pack())
    frame[14 + 8] ^= 1  # the TTL
    before = network.packets()
    assert left(network, network.port(MEMBERS[0]), bytes(frame), 0) == []
    assert network.packets() - before == {"malformed": 1}


def test_a_frame_of_others_keeps_a_wrong_ipv4_checksum(network: TofinoNetwork) -> None:
    network.chip.replicate(FLOOD_GROUP, [(FIRST, 0)])
    frame = bytearray(UdpFrame(STRANGER, ELSEWHERE, 5000, 80, b"hello" * 4).pack())
    frame[14 + 8] ^= 1
    assert left(network, SECOND, bytes(frame), 1) == [(FIRST, bytes(frame))]


def test_arp_for_the_switch_is_answered(network: TofinoNetwork) -> None:
    asked = Host(bytes(6), SWITCH.address)
    answer = arp_frame(2, SWITCH, STRANGER, to=STRANGER.mac) + bytes(18)
    assert left(network, FIRST, arp_frame(1, STRANGER, asked, to=b"\xff" * 6) + bytes(18), 1) == [(FIRST, answer)]


@pytest.mark.parametrize("body", [b"\x12\x34\x00\x01" + b"ping" * 8, b"\xf7\xff" + bytes(30)])
def test_a_ping_to_the_switch_is_answered(network: TofinoNetwork, body: bytes) -> None:
    answer = icmp_frame(0, SWITCH, STRANGER, body)
    assert left(network, FIRST, icmp_frame(8, STRANGER, SWITCH, body, ttl=9), 1) == [(FIRST, answer)]


def test_a_congestion_mark_reaches_the_workers(network: TofinoNetwork) -> None:
    copies = [*complete(network, ecn=3), *network.chip.late()]
    frames = [UdpFrame.unpack(copy.frame) for copy in copies]
    assert [frame.ecn for frame in frames] == [3] * JOB.workers
