"""What the compiled Tofino program does, on the vendor's model, with cut frames, which only the chip's parser decides.
The conformance suite has the rest."""

from __future__ import annotations

import pytest

from bmv2_tests.test_tofino_forwarding import ELSEWHERE, JOB, MEMBERS, contribution
from bmv2_tests.tofino_model.model_switch import ModelSwitch
from bmv2_tests.tofino_network import STRANGER, TofinoNetwork
from wiresum.conformance.frames import UdpFrame
from wiresum.join.constants import FLOOD_GROUP, SWITCH_PORT

FIRST, SECOND = 41, 42
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
