"""What the Tofino program does besides aggregation: other hosts' traffic, its own address, every copy of a RESULT."""

from __future__ import annotations

import dataclasses
import struct
from ipaddress import IPv4Address

import pytest

from bmv2_tests.tna_interpreter.switch import Copy, Switch
from bmv2_tests.tofino_network import MAIN, PASSES_AGAIN, STRANGER, SWITCH, TofinoNetwork, write
from wiresum.conformance.frames import Host, UdpFrame, arp_frame, icmp_frame
from wiresum.conformance.scenarios import Job, Member
from wiresum.controller.p4runtime import own
from wiresum.join.constants import FLOOD_GROUP, PARENT, SWITCH_PORT, Header, Kind

JOB = Job(number=7, key=0xC0FFEE01, workers=3, threads=1, lanes=64, slot_base=0, slots=4)
NEXT_KEY = JOB.key + 1
MEMBERS = JOB.members
ELSEWHERE = Host(bytes.fromhex("02000000aaaa"), IPv4Address("10.2.0.1"))
DATA, EMPTY, _, META, QUESTION, _ = Kind


@pytest.fixture(scope="module")
def tofino1() -> Switch:
    return Switch(MAIN)


@pytest.fixture
def two_passes(tofino1: Switch) -> TofinoNetwork:
    """A Tofino 1. (A Tofino 2 needs one pass, so nothing can happen between passes.)"""
    made = TofinoNetwork(tofino1)
    made.admit(JOB)
    return made


@pytest.fixture
def network(switch: Switch) -> TofinoNetwork:
    made = TofinoNetwork(switch)
    made.admit(JOB)
    return made


def contribution(member: Member, kind: int = DATA, word: int = 1, round_number: int = 1) -> bytes:
    fields = {"worker": member.worker, "cell": round_number & 1, "round": round_number, "tensor": 1}
    header = Header(kind=kind, job=JOB.number, key=JOB.key, **fields)
    return header.pack() + struct.pack("!I", word) * 64 * (kind == DATA)


def contribute(network: TofinoNetwork, member: Member, kind: int = DATA, *, ecn: int = 0, word: int = 1) -> list[Copy]:
    frame = network.own_frame(member, contribution(member, kind, word), ecn=ecn)
    return network.send(network.port(member), frame.pack())


def complete(network: TofinoNetwork, kind: int = DATA, *, ecn: int = 0) -> list[Copy]:
    for member in MEMBERS[:-1]:
        assert contribute(network, member, kind) == []
    return contribute(network, MEMBERS[-1], kind, ecn=ecn)


@pytest.mark.parametrize("length", [14, 20, 33, 34, 41, 42, 65, 66, 100, 321])
def test_frames_of_others_that_end_within_a_header_are_dropped(network: TofinoNetwork, length: int) -> None:
    """The remaining bytes count as that header, and would be missing in the frame that leaves."""
    network.chip.groups[FLOOD_GROUP] = [(1, 0)]
    frame = UdpFrame(STRANGER, ELSEWHERE, 5000, SWITCH_PORT, contribution(MEMBERS[0])).pack()
    assert [copy.frame for copy in network.send(2, frame)] == [frame]
    assert network.send(2, frame[:length]) == []
    assert network.packets().total() == 0


@pytest.mark.parametrize("address", ["0.0.0.0", own.KEYS_ADDRESS, "0.0.0.2", "10.0.0.2"])
def test_arp_for_an_address_that_is_not_the_switchs_is_not_answered(network: TofinoNetwork, address: str) -> None:
    """Nor for the one under which the controller keeps its number."""
    write(network.chip, own.keys_given(own.KeysGiven(64, 0xBEEF)))
    asked = Host(bytes(6), IPv4Address(address))
    for destination in (b"\xff" * 6, SWITCH.mac, bytes(6)):
        assert network.send(5, arp_frame(1, STRANGER, asked, to=destination)) == []
    assert network.packets().total() == 0


def test_a_ping_with_a_damaged_ipv4_header_is_not_answered(network: TofinoNetwork) -> None:
    ping = icmp_frame(8, STRANGER, SWITCH, b"\x12\x34\x00\x01ping")
    for bit in range(8 * 14, 8 * 34):
        damaged = bytearray(ping)
        damaged[bit // 8] ^= 0x80 >> bit % 8
        assert network.send(5, bytes(damaged)) == [], f"bit {bit}"


def test_no_flipped_bit_of_an_ipv4_header_or_a_length_has_an_effect(network: TofinoNetwork) -> None:  # R2.7, R2.8
    for member in MEMBERS[:-1]:
        contribute(network, member)
    port, right = network.port(MEMBERS[-1]), network.own_frame(MEMBERS[-1], contribution(MEMBERS[-1])).pack()
    udp_length = range(8 * 38, 8 * 40)
    for bit in (*range(8 * 14, 8 * 34), *udp_length):
        damaged = bytearray(right)
        damaged[bit // 8] ^= 0x80 >> bit % 8
        before = network.packets()
        assert network.send(port, bytes(damaged)) == [], f"bit {bit}"
        assert (network.packets() - before).keys() <= {"malformed", "other"}, f"bit {bit}"
    assert len(network.send(port, right)) == JOB.workers


def test_other_traffic_to_the_switch_is_dropped_and_counted(network: TofinoNetwork) -> None:
    assert network.send(5, UdpFrame(STRANGER, SWITCH, 5000, 80, b"hello").pack()) == []
    assert network.packets() == {"other": 1}


@pytest.mark.parametrize("kind", [DATA, EMPTY, META])
@pytest.mark.parametrize("ecn", [0, 1, 3])
def test_a_congestion_mark_reaches_the_workers(network: TofinoNetwork, kind: int, ecn: int) -> None:  # R3.22
    frames = [UdpFrame.unpack(copy.frame) for copy in complete(network, kind, ecn=ecn)]
    assert [frame.ecn for frame in frames] == [ecn] * JOB.workers


@pytest.mark.parametrize("ecn", [0, 1, 3])
def test_the_answer_to_a_question_keeps_its_congestion_mark(network: TofinoNetwork, ecn: int) -> None:  # R3.22
    (missing,) = contribute(network, MEMBERS[0], QUESTION, ecn=ecn)
    complete(network)
    (result,) = contribute(network, MEMBERS[0], QUESTION, ecn=ecn)
    assert [UdpFrame.unpack(copy.frame).ecn for copy in (missing, result)] == [ecn, ecn]


@pytest.mark.parametrize(("kind", "has_words"), [(META, False), (EMPTY, False), (DATA, True)])
def test_only_packets_that_return_words_of_a_sum_recirculate(
    network: TofinoNetwork, generation: int, kind: int, has_words: bool
) -> None:
    passes = PASSES_AGAIN[generation] if has_words else 0
    assert len(contribute(network, MEMBERS[0], QUESTION)) == 1
    before = network.chip.recirculated
    assert len(complete(network, kind)) == JOB.workers
    assert network.chip.recirculated - before == passes
    assert len(contribute(network, MEMBERS[0], QUESTION)) == 1
    assert network.chip.recirculated - before == 2 * passes


def test_a_copy_without_a_receiver_is_lost(network: TofinoNetwork) -> None:
    network.chip.groups[1].append((60, 9))
    assert len(complete(network)) == JOB.workers


def test_contributions_are_counted_by_worker(network: TofinoNetwork) -> None:
    contribute(network, MEMBERS[0])
    contribute(network, MEMBERS[0])
    contribute(network, MEMBERS[2])
    contribute(network, MEMBERS[1], QUESTION)
    assert [network.contributions(member) for member in MEMBERS] == [1, 0, 1]
    assert network.packets_of(JOB.number, "duplicate") == 1
    assert network.packets_of(JOB.number, "resent") == 1
    assert network.results(JOB.number) == 0


@pytest.mark.parametrize("kind", [DATA, QUESTION])
# R3.21
def test_a_sum_is_not_sent_if_its_cell_moves_on_between_the_passes(two_passes: TofinoNetwork, kind: int) -> None:
    """A packet of a newer round writes the cell while the packet that is to carry the RESULT recirculates."""
    pass_once = two_passes.chip.one_pass
    for member in MEMBERS[:-1] if kind == DATA else MEMBERS:
        contribute(two_passes, member)
    last = MEMBERS[-1]
    triggering = two_passes.own_frame(last, contribution(last, kind)).pack()
    (looping,) = pass_once(two_passes.port(last), triggering)
    newer = two_passes.own_frame(last, contribution(last, word=99, round_number=3)).pack()
    assert list(pass_once(two_passes.port(last), newer)) == []
    assert list(pass_once(looping.port, looping.frame)) == []


@pytest.mark.parametrize("kind", [DATA, QUESTION])
def test_a_sum_is_not_sent_if_another_job_takes_its_cell_between_the_passes(  # R3.21
    two_passes: TofinoNetwork, kind: int
) -> None:
    """The next job in these slots begins with the same round."""
    pass_once = two_passes.chip.one_pass
    for member in MEMBERS[:-1] if kind == DATA else MEMBERS:
        contribute(two_passes, member)
    last = MEMBERS[-1]
    (looping,) = pass_once(two_passes.port(last), two_passes.own_frame(last, contribution(last, kind)).pack())
    two_passes.evict(JOB)
    two_passes.admit(dataclasses.replace(JOB, key=NEXT_KEY))

    def of_next_job(member: Member, word: int) -> bytes:
        old_key, new_key = JOB.key.to_bytes(4, "big"), NEXT_KEY.to_bytes(4, "big")
        return two_passes.own_frame(member, contribution(member, word=word).replace(old_key, new_key)).pack()

    assert list(pass_once(two_passes.port(last), of_next_job(last, 100))) == []
    assert list(pass_once(looping.port, looping.frame)) == []
    for member in MEMBERS[:-1]:  # and the old packet has not touched the cell
        copies = two_passes.send(two_passes.port(member), of_next_job(member, 1))
    assert {UdpFrame.unpack(copy.frame).payload[24:] for copy in copies} == {struct.pack("!I", 102) * 64}


def test_a_sum_for_the_parent_is_not_sent_if_its_cell_moves_on_between_the_passes(two_passes: TofinoNetwork) -> None:
    pass_once = two_passes.chip.one_pass
    below = dataclasses.replace(JOB, number=8, key=NEXT_KEY, slot_base=4, parent=5)
    two_passes.admit(below)
    numbers = ((JOB.number, JOB.key), (below.number, below.key))
    of_job, of_below = (number.to_bytes(2, "big") + key.to_bytes(4, "big") for number, key in numbers)

    def frame(worker: int, round_number: int) -> bytes:
        datagram = contribution(Member(8, worker), word=1 + worker, round_number=round_number).replace(of_job, of_below)
        return two_passes.own_frame(Member(8, worker), datagram).pack()

    for moves_on in (False, True):
        round_number = 3 if moves_on else 1
        for worker in (0, 1):
            assert two_passes.send(two_passes.port(Member(8, worker)), frame(worker, round_number)) == []
        (looping,) = pass_once(two_passes.port(Member(8, 2)), frame(2, round_number))
        if moves_on:
            assert list(pass_once(two_passes.port(Member(8, 0)), frame(0, 5))) == []
        sent = list(pass_once(looping.port, looping.frame))
        assert [copy.port for copy in sent] == ([] if moves_on else [two_passes.port(Member(8, PARENT))])
