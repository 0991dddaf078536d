"""Stages `parser` and `form`: frames that are not valid packets of this protocol. The vectors cover malformed
payloads."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from scapy.layers.inet import IP, UDP, IPOption_NOP
from scapy.layers.l2 import Ether

from bmv2_tests.bmv2_harness import Bmv2Harness
from wiresum_lab.doubles.workers import DATA, EMPTY, QUESTION, Packet

BATCH = 24
"""bmv2 has room for them on the way to one port."""
OF_OTHERS = 4 + 4 + 1 + 13 + 8 + 32 + 12
"""Bits by which a packet becomes other traffic: IPv4's version, header length, fragment and protocol, the destination,
and the upper bits of its port."""


def test_a_checksum_that_comes_out_as_zero_is_taken_in_its_other_form(harness: Bmv2Harness) -> None:  # R2.8
    with harness.job(1) as job:
        frame = job.frame(_with_checksum_zero(job.packet(), bytes(job.frame(job.packet()))))
        assert bytes(frame)[40:42] == b"\xff\xff"
        assert job.send_frame(0, frame).reason == "admitted"


def test_a_checksum_that_comes_out_as_zero_is_sent_in_its_other_form(harness: Bmv2Harness) -> None:  # R2.13
    with harness.job(1) as job:
        (copy,) = job.send(job.packet()).copies
        again = job.packet(after=2)  # of the same cell; the round counts in the checksum, too
        changed = replace(again, words=(copy.packet.words[0] - 2, *copy.packet.words[1:]))
        (copy,) = job.send(_with_checksum_zero(changed, copy.frame)).copies
        assert copy.frame[40:42] == b"\xff\xff"


def _with_checksum_zero(packet: Packet, frame: bytes) -> Packet:
    """Adds to the packet's first word what the checksum of this frame says: then its sum is all ones."""
    missing = int.from_bytes(frame[40:42], "big")
    return replace(packet, words=(packet.words[0] + missing, *packet.words[1:]))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [DATA, EMPTY, QUESTION])
def test_no_flipped_bit_of_a_frame_has_an_effect(harness: Bmv2Harness, kind: int) -> None:  # R2.8, R3.5
    """Neither of a contribution that would complete the cell nor of a question to a complete one. Behind the Ethernet
    header, that is: its addresses and type say whether a frame comes to the switch at all."""
    with harness.job(2) as job:
        job.send(job.packet(0, words=job.words(3)))
        if kind == QUESTION:
            job.send(job.packet(1, words=job.words(4)))
        port, right = job.hosts[1].port, bytes(job.frame(job.packet(1, kind=kind, words=job.words(4))))
        flipped = [_flipped(right, bit) for bit in range(8 * 14, 8 * len(right))]
        before, stray = job.counters(), harness.switch.stray()
        for first in range(0, len(flipped), BATCH):
            batch = flipped[first : first + BATCH]
            came = harness.exchange((port, frame) for frame in batch)
            assert {frame for _, frame in came} <= set(batch), "a frame to another address may be passed on"
        after, stray_after = job.counters(), harness.switch.stray()
        assert after.contributions == before.contributions
        counted = Counter(after.packets) + Counter(stray_after.packets)
        counted.subtract(Counter(before.packets) + Counter(stray.packets))
        assert +counted == {"malformed": len(flipped) - OF_OTHERS}
        outcome = job.send_frame(port, Ether(right))
        assert outcome.result.words == job.words(3 if kind == EMPTY else 7)


def _flipped(frame: bytes, bit: int) -> bytes:
    changed = bytearray(frame)
    changed[bit // 8] ^= 0x80 >> bit % 8
    return bytes(changed)


@pytest.mark.parametrize("change", [{"options": [IPOption_NOP()] * 4}, {"flags": "MF"}, {"frag": 1}])
def test_options_and_fragments_are_not_aggregated(harness: Bmv2Harness, change: dict[str, object]) -> None:  # R2.10
    with harness.job(1) as job:
        frame = job.frame(job.packet())
        for name, value in change.items():
            setattr(frame[IP], name, value)
        outcome = job.send_frame(0, frame)
        assert not outcome.copies
        assert outcome.reasons == {}


@pytest.mark.parametrize("port", [43487, 43504, 53])
def test_another_udp_port_of_the_switch_is_other_traffic(harness: Bmv2Harness, port: int) -> None:  # R2.3
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
