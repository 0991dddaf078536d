"""Stages `parser` and `form`: frames that are not valid packets of this protocol. The vectors cover malformed
payloads."""

from __future__ import annotations

import pytest
from scapy.layers.inet import IP, UDP, IPOption_NOP
from scapy.packet import Padding

from bmv2_tests.bmv2_harness import Bmv2Harness
from wiresum_lab.doubles.workers import DATA, EMPTY, META, QUESTION

FULL = 24 + 4 * 64


@pytest.mark.parametrize("kind", [DATA, EMPTY, META, QUESTION])
@pytest.mark.parametrize("length", [0, 1, 23, 24, 25, 26, 28, 276, 278, FULL - 1, FULL, FULL + 1, FULL + 4])
def test_each_kind_has_one_valid_length(harness: Bmv2Harness, kind: int, length: int) -> None:
    right = FULL if kind == DATA else 24
    with harness.job(2) as job:
        datagram = job.packet(kind=kind).to_bytes().ljust(length, b"\1")[:length]
        frame = harness.own_frame(job.hosts[0], payload=datagram)
        accepted = "resent" if kind == QUESTION else "admitted"
        assert job.send_frame(0, frame).reason == (accepted if length == right else "malformed")


@pytest.mark.parametrize("missing", [1, 4, 100, 255, 256, 257, 280, 287])
def test_a_truncated_frame_is_malformed(harness: Bmv2Harness, missing: int) -> None:
    with harness.job(2) as job:
        frame = bytes(job.frame(job.packet()))
        assert len(frame) == 14 + 20 + 8 + FULL
        outcome = job.send_frame(0, frame[:-missing])
        assert not outcome.copies
        # A frame that ends within Ethernet, IPv4 or UDP is not of this protocol, and is counted as other traffic.
        assert outcome.reasons == ({"malformed": 1} if len(frame) - missing >= 42 else {})


def test_a_packet_with_a_wrong_ipv4_checksum_is_malformed(harness: Bmv2Harness) -> None:
    with harness.job(1) as job:
        frame = job.frame(job.packet())
        frame[IP].chksum = 0x1234
        outcome = job.send_frame(0, frame)
        assert outcome.reason == "malformed"
        assert not outcome.copies


def test_the_udp_checksum_is_ignored(harness: Bmv2Harness) -> None:
    with harness.job(1) as job:
        frame = job.frame(job.packet())
        frame[UDP].chksum = 0x1234
        assert job.send_frame(0, frame).reason == "admitted"


def test_ethernet_padding_is_not_part_of_the_packet(harness: Bmv2Harness) -> None:
    with harness.job(1) as job:
        frame = job.frame(job.packet(kind=META)) / Padding(bytes(20))
        outcome = job.send_frame(0, frame)
        assert outcome.reason == "admitted"
        assert [len(copy.datagram) for copy in outcome.copies] == [24]


@pytest.mark.parametrize("change", [{"options": [IPOption_NOP()] * 4}, {"flags": "MF"}, {"frag": 1}])
def test_options_and_fragments_are_not_aggregated(harness: Bmv2Harness, change: dict[str, object]) -> None:
    with harness.job(1) as job:
        frame = job.frame(job.packet())
        for name, value in change.items():
            setattr(frame[IP], name, value)
        outcome = job.send_frame(0, frame)
        assert not outcome.copies
        assert outcome.reasons == {}


@pytest.mark.parametrize("port", [43487, 43504, 53])
def test_another_udp_port_of_the_switch_is_other_traffic(harness: Bmv2Harness, port: int) -> None:
    with harness.job(1) as job:
        frame = job.frame(job.packet())
        frame[UDP].dport = port
        outcome = job.send_frame(0, frame)
        assert not outcome.copies
        assert outcome.reasons == {}


def test_another_protocol_to_the_switch_is_other_traffic(harness: Bmv2Harness) -> None:
    with harness.job(1) as job:
        frame = job.frame(job.packet())
        frame[IP].proto = 6
        outcome = job.send_frame(0, frame)
        assert (outcome.copies, outcome.reasons) == ((), {})
