"""Jobs over several pipes of a Tofino, and over several Tofinos, with the entries that the controller writes.

Each pipe has its own cells, so each is a node of a job's tree. All pipes have the same address and the same entries,
which match on the port.
"""

from __future__ import annotations

import itertools
import random
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from bmv2_tests.tna_interpreter.switch import PORTS_IN_PIPE, Switch
from bmv2_tests.tofino_cluster import Cluster, Sender, SwitchPort
from bmv2_tests.tofino_network import MAIN, PASSES_AGAIN
from wiresum.conformance.frames import Host, UdpFrame
from wiresum.join.constants import SWITCH_PORT, Header, Kind

LOWER_END, UPPER_END = PORTS_IN_PIPE + 60, 60
"""The ports of the cable, at the lower and the upper pipe."""
ONE = f"""\
[[switch]]
name = "rack"
kind = "tofino"
p4runtime = "127.0.0.1:9559"
address = "10.0.0.1"
mac = "02:00:0a:00:00:01"
cables = [[{UPPER_END}, {LOWER_END}]]
"""
ADDRESSES = ("10.0.0.10", "10.0.0.11", "10.0.0.12", "10.0.0.13")
LOWER, UPPER = (0, 1), (2, 3)
"""The ranks at each pipe; the upper pipe is pipe 0."""
DATA, EMPTY, RESULT, META, QUESTION, MISSING = Kind
PORTS = (PORTS_IN_PIPE + 8, PORTS_IN_PIPE + 9, 8, 9)


def host(name: str, address: str, port: int) -> str:
    mac = "02:00:" + ":".join(f"{int(part):02x}" for part in address.split("."))
    return f'[[switch.host]]\nname = "{name}"\naddress = "{address}"\nmac = "{mac}"\nport = {port}\n'


def with_hosts(text: str) -> str:
    return text + "".join(
        host(f"host{rank}", address, port) for rank, (address, port) in enumerate(zip(ADDRESSES, PORTS, strict=True))
    )


class Pair:
    """Four workers, two at each pipe, that sum round after round."""

    def __init__(self, switch: Switch, folder: Path) -> None:
        self.cluster = Cluster(with_hosts(ONE), {"rack": switch}, folder)
        self.switch = switch
        self.words = [[10**rank, 2 * 10**rank] for rank in range(4)]
        self.senders = self.cluster.start("both", ADDRESSES, self.words)

    def send(self, rank: int, kind: int = DATA, round_number: int = 1) -> dict[int, bytes]:
        """Sends a packet of a rank without loss; gives the datagrams that come out, by rank."""
        sender = self.senders[rank]
        sender.sums = sender.sums[: round_number - 1] + [0] * (round_number - 1 - len(sender.sums))
        found = {}
        for place, frame in self.cluster.send(sender.place, sender.packet(kind), random.Random(0), 0.0):
            if place.port != LOWER_END:
                found[self.rank_at(place, frame)] = UdpFrame.unpack(frame).payload
        return found

    def rank_at(self, place: SwitchPort, frame: bytes) -> int:
        (rank,) = (rank for rank in range(4) if self.senders[rank].host == UdpFrame.unpack(frame).target)
        assert place.port == PORTS[rank]
        return rank

    def between(self, datagram: bytes) -> bytes:
        """The frame of a datagram on the cable between the pipes."""
        own: Host = self.senders[0].gateway
        return UdpFrame(own, own, SWITCH_PORT, SWITCH_PORT, datagram).pack()


@pytest.fixture
def pair(switch: Switch, tmp_path: Path) -> Pair:
    return Pair(switch, tmp_path)


@pytest.mark.parametrize("order", list(itertools.permutations(range(4)))[::7])
def test_all_workers_get_the_sum_of_both_pipes(pair: Pair, order: Sequence[int]) -> None:  # R8.4, R8.11
    for round_number in (1, 2):
        for rank in order[:-1]:
            assert pair.send(rank, DATA, round_number) == {}
        results = pair.send(order[-1], DATA, round_number)
        assert set(results) == {0, 1, 2, 3}
        for datagram in results.values():
            assert datagram[0] & 15 == RESULT
            assert datagram[24:] == struct.pack("!I", round_number * 1111) * 64


@pytest.mark.parametrize("kind", [EMPTY, META])
def test_empty_and_meta_rounds_pass_through_the_tree(pair: Pair, kind: int) -> None:
    for rank in range(3):
        assert pair.send(rank, kind) == {}
    results = pair.send(3, kind)
    assert set(results) == {0, 1, 2, 3}
    assert {datagram[24:] for datagram in results.values()} == {bytes(256) if kind == EMPTY else b""}


def test_each_pipe_of_a_tofino_1_recirculates_one_packet_in_a_round(pair: Pair, generation: int) -> None:
    """They are the sum for the parent, and the root's RESULT. The RESULT that comes down is written in one pass."""
    for rank in range(4):
        pair.send(rank)
    assert pair.switch.recirculated == 2 * PASSES_AGAIN[generation]


def test_a_question_is_passed_up_and_its_answer_down(pair: Pair) -> None:  # R8.6
    """The sum for the parent was lost while the cable was unplugged."""
    for rank in UPPER:
        assert pair.send(rank) == {}
    pair.cluster.unplug()
    for rank in LOWER:
        assert pair.send(rank) == {}
    pair.cluster.plug_in()
    assert set(pair.send(0, QUESTION)) == {0, 1, 2, 3}
    results: dict[int, bytes] = {}
    for rank in range(4):
        results |= pair.send(rank, QUESTION)
    assert {datagram[24:] for datagram in results.values()} == {struct.pack("!I", 1111) * 64}
    assert set(results) == {0, 1, 2, 3}


def test_a_sum_with_mixed_words_is_ignored_by_the_parent(tmp_path: Path) -> None:
    """On Tofino 1, which needs two passes, a sum that is sent up again can leave with some words of the parent's
    RESULT. That RESULT shows that the parent already has the sum."""
    pair = Pair(Switch(MAIN), tmp_path)
    for rank in range(4):
        pair.send(rank)
    pair.cluster.unplug()
    for rank in LOWER:
        pair.send(rank, DATA, 2)
    pass_once = pair.switch.one_pass
    entry = pair.cluster.entry("both", "rack/1")
    assert entry.uplink is not None
    missing = Header(
        kind=MISSING, job=entry.job, key=entry.key, worker=entry.uplink.worker, round=2, tensor=7, chunk=11
    )
    result = pair.between(replace(missing, kind=RESULT).pack() + struct.pack("!I", 7777) * 64)
    (looping,) = pass_once(LOWER_END, pair.between(missing.pack()))
    assert len(list(pass_once(LOWER_END, result))) == 2
    (mixed,) = pass_once(looping.port, looping.frame)
    assert mixed.port == LOWER_END
    words = struct.unpack("!64I", UdpFrame.unpack(mixed.frame).payload[24:])
    assert set(words[::2]) == {22}
    assert set(words[1::2]) == {7777}
    # The parent completes the round with the sum that it already has.
    for rank in UPPER:
        pair.send(rank, DATA, 2)
    whole = UdpFrame.unpack(mixed.frame).payload[:24] + struct.pack("!I", 22) * 64
    assert len(pair.switch.receive(UPPER_END, pair.between(whole))) == 3
    pair.switch.receive(UPPER_END, mixed.frame)
    assert pair.send(2, QUESTION, 2)[2][24:] == struct.pack("!I", 2222) * 64


def test_a_flooded_frame_leaves_once_by_each_port_and_does_not_circulate(pair: Pair) -> None:
    sender = pair.senders[0]
    frame = b"\xff" * 6 + sender.host.mac + b"\x88\xb5" + bytes(50)
    copies = pair.switch.receive(sender.place.port, frame)
    assert sorted(copy.port for copy in copies) == sorted(PORTS[1:])


def test_hosts_at_two_pipes_reach_each_other(pair: Pair) -> None:
    one, other = pair.senders[0], pair.senders[3]
    frame = UdpFrame(one.host, other.host, 5000, 5001, b"hello").pack()
    (copy,) = pair.switch.receive(one.place.port, frame)
    assert (copy.port, copy.frame) == (other.place.port, frame)


# Trees of several Tofinos.

SPINE = ONE.replace("rack", "spine").replace("10.0.0.1", "10.0.9.1").replace("0a:00:00:01", "0a:00:09:01")
SPINE = SPINE.replace(":9559", ":9560") + host("e", "10.0.9.10", 8) + host("f", "10.0.9.11", PORTS_IN_PIPE + 8)
RACK = ONE + f'parent = "spine"\nparent_port = {PORTS_IN_PIPE + 20}\nport_at_parent = {PORTS_IN_PIPE + 21}\n'
OTHERS = ("10.0.9.10", "10.0.9.11")
"""One host at each pipe of the spine."""


class Racks:
    def __init__(self, folder: Path, text: str = SPINE + with_hosts(RACK)) -> None:
        self.cluster = Cluster(text, SWITCHES, folder)

    def start(self, name: str, addresses: Sequence[str], rounds: int, seed: int = 0) -> tuple[list[Sender], list[int]]:
        """Starts a job; gives its workers, and the sums that they must get."""
        drawn = random.Random(seed)
        words = [[drawn.getrandbits(32) for _ in range(rounds)] for _ in addresses]
        sums = [sum(of_round) & 0xFFFFFFFF for of_round in zip(*words, strict=True)]
        return self.cluster.start(name, addresses, words), sums


SWITCHES: dict[str, Switch] = {}


@pytest.fixture
def racks(tmp_path: Path) -> Racks:
    for name in ("rack", "spine"):
        SWITCHES.setdefault(name, Switch(MAIN))
    return Racks(tmp_path)


def test_a_job_uses_only_the_pipes_that_it_needs(racks: Racks) -> None:
    racks.start("one-pipe", [ADDRESSES[0], ADDRESSES[1]], 1)
    racks.start("one-switch", ADDRESSES, 1)
    racks.start("all", [*ADDRESSES, *OTHERS], 1)
    assert racks.cluster.tree("one-pipe") == {"rack/1": ""}
    assert racks.cluster.tree("one-switch") == {"rack/1": "", "rack/0": "rack/1"}, "pipe 1 is connected to the spine"
    tree = {"spine/0": "", "spine/1": "spine/0", "rack/1": "spine/1", "rack/0": "rack/1"}
    assert racks.cluster.tree("all") == tree


@pytest.mark.parametrize("seed", range(4))
def test_sums_are_exact_with_loss_while_jobs_share_pipes(racks: Racks, seed: int) -> None:
    """Each link loses every tenth packet. Two of the jobs are at different pipes and have the same number."""
    jobs = [
        racks.start("all", [*ADDRESSES, *OTHERS], 4, seed),
        racks.start("lower", ADDRESSES[:2], 4, 10 + seed),
        racks.start("upper", ADDRESSES[2:], 4, 20 + seed),
        racks.start("one-switch", ADDRESSES, 4, 30 + seed),
    ]
    numbers = {senders[0].job for senders, _ in jobs}
    assert len(numbers) < len(jobs), "each node has its own job numbers"
    racks.cluster.run([sender for senders, _ in jobs for sender in senders], loss=0.1, seed=seed)
    for senders, sums in jobs:
        assert [sender.sums for sender in senders] == [sums] * len(senders)


def test_an_ended_job_leaves_no_entries_and_does_not_disturb_others(racks: Racks) -> None:
    first, _ = racks.start("first", [*ADDRESSES, *OTHERS], 1, 1)
    racks.cluster.run(first)
    stays, sums = racks.start("stays", ADDRESSES, 2, 2)
    held = racks.cluster.entries()
    racks.cluster.end("first")
    assert racks.cluster.entries() != held
    again, others = racks.start("again", [*ADDRESSES, *OTHERS], 2, 3)
    assert racks.cluster.entries() == held
    racks.cluster.run([*stays, *again], loss=0.05, seed=5)
    assert [sender.sums for sender in stays] == [sums] * 4
    assert [sender.sums for sender in again] == [others] * 6
    for name in ("stays", "again"):
        racks.cluster.end(name)
    assert racks.cluster.entries() == racks.cluster.configured


def test_several_pipes_sum_more_workers_than_one_pipe_has_bits_for(tmp_path: Path, racks: Racks) -> None:
    """Sixty-one workers: thirty at one pipe, which also has a bit for the pipe below, and thirty-one at that one."""
    hosts = [(f"10.0.1.{10 + number}", number % 20 + (PORTS_IN_PIPE if number >= 30 else 0)) for number in range(61)]
    text = ONE + "".join(host(f"h{number}", *place) for number, place in enumerate(hosts))
    cluster = Cluster(text, {"rack": SWITCHES["rack"]}, tmp_path)
    senders = cluster.start("many", [address for address, _ in hosts], [[1 << number % 32] for number in range(61)])
    cluster.run(senders)
    assert {sender.sums[0] for sender in senders} == {sum(1 << number % 32 for number in range(61)) & 0xFFFFFFFF}
