"""Stage `forward` passes the traffic of other hosts unchanged."""

from __future__ import annotations

import pytest
from scapy.layers.inet import ICMP, IP, TCP, UDP, IPOption_Timestamp
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import ARP, Dot1Q, Ether
from scapy.packet import Packet, Raw

from bmv2_tests.bmv2_harness import PORTS, Bmv2Harness
from wiresum.join.constants import SWITCH_PORT

A, B = "10.111.1.1", "10.111.1.2"

OTHER_TRAFFIC = {
    "tcp": IP(src=A, dst=B) / TCP(dport=29500) / b"hello",
    "tcp of a full frame": IP(src=A, dst=B) / TCP(dport=29500) / bytes(1460),
    "udp": IP(src=A, dst=B) / UDP(dport=53) / b"hello",
    "udp with a wrong checksum": IP(src=A, dst=B) / UDP(dport=53, chksum=1) / b"hello",
    "ipv4 with a wrong checksum": IP(src=A, dst=B, chksum=1) / UDP(dport=53) / b"hello",
    "ipv4 at its last hop": IP(src=A, dst=B, ttl=0) / UDP(dport=53) / b"hello",
    "ipv4 with options": IP(src=A, dst=B, options=[IPOption_Timestamp()]) / UDP(dport=53) / b"hello",
    "a fragment": IP(src=A, dst=B, frag=100, flags="MF") / Raw(bytes(64)),
    "a ping": IP(src=A, dst=B) / ICMP() / b"hello",
    "to another's port of ours, short": IP(src=A, dst=B) / UDP(dport=SWITCH_PORT) / b"hello",
    "to another's port of ours, header": IP(src=A, dst=B) / UDP(dport=SWITCH_PORT) / (b"\x10" + bytes(23)),
    "to another's port of ours, full": IP(src=A, dst=B) / UDP(dport=SWITCH_PORT + 15) / (b"\x10" + bytes(279)),
    "ipv6": IPv6(src="fd00::1", dst="fd00::2") / UDP(dport=53) / b"hello",
    "a vlan": Dot1Q(vlan=5) / IP(src=A, dst=B) / UDP(dport=SWITCH_PORT) / bytes(280),
    "another ethertype": Raw(bytes(range(46))),
    "an arp reply": ARP(op="is-at", psrc=A, pdst=B),
    "arp of another kind": ARP(hwtype=6, hwlen=8, plen=4) / Raw(bytes(20)),
    "an ipv4 header that is cut off": Raw(b"\x45" + bytes(9)),
    "an arp header that is cut off": Raw(bytes(9)),
    "a udp header that is cut off": Raw(bytes(IP(src=A, dst=B, proto=17, len=28))[:20] + b"\0\0\0"),
    "nothing at all": Raw(b""),
}
ETHERTYPES = {"an ipv4 header that is cut off": 0x0800, "an arp header that is cut off": 0x0806}
ETHERTYPES |= {"a udp header that is cut off": 0x0800, "another ethertype": 0x88B5, "nothing at all": 0x88B5}


@pytest.mark.parametrize("name", OTHER_TRAFFIC)
def test_a_frame_to_a_host_arrives_unchanged_at_its_port_alone(harness: Bmv2Harness, name: str) -> None:
    sender, receiver = harness.hosts[0], harness.hosts[2]
    frame = _frame(sender.mac, receiver.mac, name)
    assert harness.exchange([(0, frame)]) == [(2, frame)]


@pytest.mark.parametrize("name", ["tcp", "ipv6", "an arp reply", "a fragment"])
@pytest.mark.parametrize("mac", ["ff:ff:ff:ff:ff:ff", "33:33:00:00:00:01", "02:00:00:00:99:99"])
def test_broadcast_and_unknown_destinations_are_flooded_to_all_other_ports(
    harness: Bmv2Harness, name: str, mac: str
) -> None:
    for port in range(PORTS):
        frame = _frame(harness.hosts[port].mac, mac, name)
        assert sorted(harness.exchange([(port, frame)])) == [(p, frame) for p in range(PORTS) if p != port]


def test_other_traffic_is_not_counted(harness: Bmv2Harness) -> None:
    with harness.job(1) as job:
        frame = job.frame(job.packet())
        frame.dst, frame[IP].dst = harness.hosts[1].mac, harness.hosts[1].address
        before = harness.switch.stray(), job.counters()
        assert harness.exchange([(0, bytes(frame))]) == [(1, bytes(frame))]
        assert (harness.switch.stray(), job.counters()) == before


def test_frames_reach_all_hosts_of_a_port_but_never_leave_by_their_own_port(harness: Bmv2Harness) -> None:
    """A host behind the port of arrival has already got the frame."""
    for host in harness.hosts[1:]:
        frame = _frame(harness.hosts[0].mac, host.mac, "udp")
        assert harness.exchange([(0, frame)]) == ([(host.port, frame)] if host.port else []), host


def _frame(source: str, destination: str, name: str) -> bytes:
    payload: Packet = OTHER_TRAFFIC[name]
    ethernet = Ether(src=source, dst=destination)
    if name in ETHERTYPES:
        ethernet.type = ETHERTYPES[name]
    return bytes(ethernet / payload)
