"""What bmv2 does with frames to its own address, beyond what every switch does (wiresum.conformance.frame_cases)."""

from __future__ import annotations

import pytest
from scapy.layers.inet import ICMP, IP
from scapy.layers.l2 import ARP, Ether

from bmv2_tests.bmv2_harness import Bmv2Harness


@pytest.mark.parametrize("padding", [0, 18, 400])
def test_an_arp_request_is_answered_without_what_follows_it(harness: Bmv2Harness, padding: int) -> None:
    host = harness.hosts[0]
    request = ARP(op="who-has", hwsrc=host.mac, psrc=host.address, pdst=harness.star.address)
    frame = bytes(Ether(src=host.mac, dst=harness.star.mac) / request) + bytes(padding)
    ((_, answer),) = harness.exchange([(0, frame)])
    assert len(answer) == min(len(frame), 60)


@pytest.mark.parametrize("trailer", [b"", bytes(range(200))])
def test_a_ping_is_answered_without_what_follows_it(harness: Bmv2Harness, trailer: bytes) -> None:
    host = harness.hosts[0]
    ping = IP(src=host.address, dst=harness.star.address) / ICMP(id=77, seq=5) / b"payload"
    frame = bytes(Ether(src=host.mac, dst=harness.star.mac) / ping)
    ((_, answer),) = harness.exchange([(0, frame + trailer)])
    assert len(answer) == len(frame)


@pytest.mark.parametrize("length", [27, 20, 1500])
def test_a_ping_whose_length_is_wrong_is_not_answered(harness: Bmv2Harness, length: int) -> None:
    host = harness.hosts[0]
    ping = IP(src=host.address, dst=harness.star.address, len=length) / ICMP(id=77, seq=5) / b"payload"
    assert not harness.exchange([(0, bytes(Ether(src=host.mac, dst=harness.star.mac) / ping))])
