"""Stages `own` and `answer` answer for the switch's own address, and for no other."""

from __future__ import annotations

import finsy as fy
import pytest
from scapy.layers.inet import ICMP, IP
from scapy.layers.l2 import ARP, Ether
from scapy.utils import checksum

from bmv2_tests.bmv2_harness import PORTS, Bmv2Harness
from wiresum.controller.p4runtime import own

BROADCAST = "ff:ff:ff:ff:ff:ff"


@pytest.mark.parametrize("port", range(PORTS))
def test_an_arp_request_for_the_switch_is_answered(harness: Bmv2Harness, port: int) -> None:
    host = harness.hosts[port]
    request = ARP(op="who-has", hwsrc=host.mac, psrc=host.address, pdst=harness.star.address)
    ((came_at, frame),) = harness.exchange([(port, bytes(Ether(src=host.mac, dst=BROADCAST) / request))])
    answer = Ether(frame)
    assert came_at == port
    assert (answer.src, answer.dst) == (harness.star.mac, host.mac)
    assert answer[ARP].op == 2
    assert (answer[ARP].hwsrc, answer[ARP].psrc) == (harness.star.mac, harness.star.address)
    assert (answer[ARP].hwdst, answer[ARP].pdst) == (host.mac, host.address)


@pytest.mark.parametrize("padding", [0, 18, 400])
def test_a_unicast_arp_request_is_answered_without_what_follows_it(harness: Bmv2Harness, padding: int) -> None:
    """Hosts check so that an address that they know still holds."""
    host = harness.hosts[0]
    request = ARP(op="who-has", hwsrc=host.mac, psrc=host.address, pdst=harness.star.address)
    frame = bytes(Ether(src=host.mac, dst=harness.star.mac) / request) + bytes(padding)
    ((_, answer),) = harness.exchange([(0, frame)])
    assert Ether(answer)[ARP].hwsrc == harness.star.mac
    assert len(answer) == min(len(frame), 60)


@pytest.mark.parametrize("address", ["0.0.0.0", own.KEYS_ADDRESS, "0.0.0.2", "10.111.0.2", "255.255.255.255"])
def test_an_arp_request_for_an_address_that_is_not_the_switchs_is_not_answered(
    harness: Bmv2Harness, address: str
) -> None:
    """Nor for the one under which the controller keeps its number."""
    assert any(map(own.is_keys_given, harness.switch.tables.read("own", [fy.P4TableEntry("own")])))
    host = harness.hosts[0]
    request = ARP(op="who-has", hwsrc=host.mac, psrc=host.address, pdst=address)
    for destination in (BROADCAST, harness.star.mac, own.NO_MAC):
        frame = bytes(Ether(src=host.mac, dst=destination) / request)
        assert {answer for _, answer in harness.exchange([(0, frame)])} == {frame}


def test_an_arp_request_to_another_hosts_mac_is_that_hosts(harness: Bmv2Harness) -> None:
    host, other = harness.hosts[0], harness.hosts[1]
    request = ARP(op="who-has", hwsrc=host.mac, psrc=host.address, pdst=harness.star.address)
    frame = bytes(Ether(src=host.mac, dst=other.mac) / request)
    assert harness.exchange([(0, frame)]) == [(other.port, frame)]


def test_an_arp_request_for_another_host_is_flooded(harness: Bmv2Harness) -> None:
    asker, asked = harness.hosts[0], harness.hosts[1]
    request = ARP(op="who-has", hwsrc=asker.mac, psrc=asker.address, pdst=asked.address)
    frame = bytes(Ether(src=asker.mac, dst=BROADCAST) / request)
    assert sorted(harness.exchange([(0, frame)])) == [(port, frame) for port in range(1, PORTS)]


def test_an_arp_reply_is_not_answered(harness: Bmv2Harness) -> None:
    host = harness.hosts[0]
    reply = ARP(op="is-at", hwsrc=host.mac, psrc=host.address, hwdst=harness.star.mac, pdst=harness.star.address)
    assert not harness.exchange([(0, bytes(Ether(src=host.mac, dst=harness.star.mac) / reply))])


@pytest.mark.parametrize("payload", [b"", b"odd", bytes(range(256)), b"\xff" * 8, b"\xf7\xff" + bytes(6)])
def test_a_ping_is_answered_with_its_payload(harness: Bmv2Harness, payload: bytes) -> None:
    host = harness.hosts[2]
    ping = IP(src=host.address, dst=harness.star.address, ttl=3) / ICMP(id=77, seq=5) / payload
    ((came_at, frame),) = harness.exchange([(2, bytes(Ether(src=host.mac, dst=harness.star.mac) / ping))])
    pong = Ether(frame)
    assert came_at == 2
    assert (pong.src, pong.dst) == (harness.star.mac, host.mac)
    assert (pong[IP].src, pong[IP].dst, pong[IP].ttl) == (harness.star.address, host.address, 64)
    assert (pong[ICMP].type, pong[ICMP].code, pong[ICMP].id, pong[ICMP].seq) == (0, 0, 77, 5)
    assert bytes(pong[ICMP].payload) == payload
    assert_checksums_right(pong)


@pytest.mark.parametrize("seq", [0, 1, 0x07FE, 0x07FF, 0x0800, 0xF7FF, 0xF800, 0xFFFE, 0xFFFF])
def test_the_checksum_of_an_answer_handles_the_carry(harness: Bmv2Harness, seq: int) -> None:
    host = harness.hosts[0]
    ping = (
        Ether(src=host.mac, dst=harness.star.mac) / IP(src=host.address, dst=harness.star.address) / ICMP(id=0, seq=seq)
    )
    ((_, frame),) = harness.exchange([(0, bytes(ping))])
    assert_checksums_right(Ether(frame))


@pytest.mark.parametrize("wrong", [{"chksum": 0x1234}, {"len": 27}, {"len": 20}, {"len": 1500}])
def test_a_damaged_ping_is_not_answered(harness: Bmv2Harness, wrong: dict[str, int]) -> None:
    host = harness.hosts[0]
    ping = IP(src=host.address, dst=harness.star.address, **wrong) / ICMP(id=77, seq=5) / b"payload"
    assert not harness.exchange([(0, bytes(Ether(src=host.mac, dst=harness.star.mac) / ping))])


@pytest.mark.parametrize("destination", [BROADCAST, "01:00:5e:00:00:01", "02:00:00:00:99:99"])
def test_a_ping_to_another_mac_is_not_the_switchs(harness: Bmv2Harness, destination: str) -> None:
    host = harness.hosts[0]
    ping = IP(src=host.address, dst=harness.star.address) / ICMP(id=77, seq=5) / b"payload"
    frame = bytes(Ether(src=host.mac, dst=destination) / ping)
    assert {passed for _, passed in harness.exchange([(0, frame)])} == {frame}


def test_who_sent_a_ping_with_a_damaged_payload_notices(harness: Bmv2Harness) -> None:
    """The switch changes the checksum by as much as the message, so what was wrong stays wrong."""
    host = harness.hosts[0]
    ping = bytearray(
        bytes(
            Ether(src=host.mac, dst=harness.star.mac)
            / IP(src=host.address, dst=harness.star.address)
            / ICMP(id=77, seq=5)
            / b"payload"
        )
    )
    ping[-1] ^= 1
    ((_, frame),) = harness.exchange([(0, bytes(ping))])
    assert checksum(bytes(Ether(frame)[ICMP])) != 0


def test_what_follows_a_ping_is_not_sent_back(harness: Bmv2Harness) -> None:
    host = harness.hosts[0]
    ping = IP(src=host.address, dst=harness.star.address) / ICMP(id=77, seq=5) / b"payload"
    frame = bytes(Ether(src=host.mac, dst=harness.star.mac) / ping)
    ((_, answer),) = harness.exchange([(0, frame + bytes(range(200)))])
    assert len(answer) == len(frame)
    assert_checksums_right(Ether(answer))


def test_other_icmp_is_not_answered(harness: Bmv2Harness) -> None:
    host = harness.hosts[0]
    for icmp in (ICMP(type=0), ICMP(type=8, code=1), ICMP(type=3)):
        frame = Ether(src=host.mac, dst=harness.star.mac) / IP(src=host.address, dst=harness.star.address) / icmp
        assert not harness.exchange([(0, bytes(frame))])


def assert_checksums_right(frame: Ether) -> None:
    """Checks as a receiver does: the ones' complement sum over everything is zero."""
    assert checksum(bytes(frame[IP])[:20]) == 0
    assert checksum(bytes(frame[ICMP])) == 0
