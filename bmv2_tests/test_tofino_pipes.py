"""One job over two pipes of a Tofino: the one is the other's parent, and a cable joins a port of each.

Each pipe has cells of its own, so each is a node of the job's tree. Both have the switch's own address: the ports tell
them apart. No line of the program knows of this.
"""

from __future__ import annotations

import itertools
import struct
from collections import defaultdict
from ipaddress import IPv4Address

import pytest

from frames import Host, UdpFrame
from tna_interpreter.switch import PORTS_IN_PIPE, Copy, Switch
from tofino_network import MAIN, PARENT_BIT, RECEIVER_PARENT, SWITCH, SWITCH_PORT, UPLINK_GROUPS

JOB, KEY = 9, 0xC0FFEE09
WORKERS = range(4)
CHILD = 4
"""The lower pipe, as a worker of the upper one. All numbers differ: entries of `deliver` are those of both pipes."""
LOWER, UPPER = 1, 2
"""Rows and groups of the two nodes."""
LOWER_END, UPPER_END = 60, PORTS_IN_PIPE + 60
"""The cable's ports, of the lower and the upper pipe."""
PORT = {0: 8, 1: 9, 2: PORTS_IN_PIPE + 8, 3: PORTS_IN_PIPE + 9}
"""Of the workers: two in each pipe."""
BASE_PORT = 20000
HEADER = struct.Struct("!BBHIBBHIII")
DATA, EMPTY, RESULT, META, QUESTION, MISSING = range(6)
CELLS = {"cell_base": 0, "lease_mask": 0xFFF8, "lease_prefix": 0}


def host(worker: int) -> Host:
    return Host(bytes.fromhex("0200000009") + bytes([worker]), IPv4Address("10.1.9.0") + worker)


def between(datagram: bytes) -> bytes:
    """The frame of a datagram on the cable."""
    return UdpFrame(SWITCH, SWITCH, SWITCH_PORT, SWITCH_PORT, datagram).pack()


class Network:
    def __init__(self, switch: Switch) -> None:
        switch.restart()
        self.switch = switch
        switch.cables |= {LOWER_END: UPPER_END, UPPER_END: LOWER_END}
        own = {"address": int(SWITCH.address)}
        switch.program.tables["own"].insert(own, "own_address", {"mac": int.from_bytes(SWITCH.mac, "big")})
        switch.groups[LOWER] = [(PORT[worker], worker) for worker in (0, 1)]
        switch.groups[UPPER] = [(PORT[worker], worker) for worker in (2, 3)] + [(UPPER_END, CHILD)]
        switch.groups[UPLINK_GROUPS + LOWER] = [(LOWER_END, RECEIVER_PARENT)]
        for worker in (0, 1):
            others = 0b11 & ~(1 << worker) | PARENT_BIT
            self._admit(LOWER, PORT[worker], worker, host(worker), BASE_PORT, others, has_parent=1)
        for worker in (2, 3):
            self._admit(UPPER, PORT[worker], worker, host(worker), BASE_PORT, 0b11100 & ~(1 << worker))
        self._admit(UPPER, UPPER_END, CHILD, SWITCH, SWITCH_PORT, 0b01100)
        key = self._key(LOWER_END, SWITCH, SWITCH_PORT)
        parameters = {"row": LOWER, "group": LOWER, "bit_workers": 0b11, **CELLS}
        switch.program.tables["admit_parent_entry"].insert(key, "admit_parent", parameters)
        for worker in WORKERS:
            self._deliver(worker, host(worker), BASE_PORT)
        self._deliver(CHILD, SWITCH, SWITCH_PORT)
        self._deliver(RECEIVER_PARENT, SWITCH, SWITCH_PORT, worker=CHILD)

    def _key(self, port: int, source: Host, source_port: int) -> dict[str, int]:
        key = {"ingress_port": port, "source": int(source.address), "source_port": source_port, "thread": 0}
        return {**key, "job": JOB, "key": KEY}

    def _admit(
        self, row: int, port: int, worker: int, source: Host, source_port: int, others: int, has_parent: int = 0
    ) -> None:
        parameters = {"row": row, "group": row, "bit_own": 1 << worker, "bit_others": others, "has_parent": has_parent}
        key = {**self._key(port, source, source_port), "worker": worker}
        self.switch.program.tables["admit"].insert(key, "admit_worker", {**parameters, **CELLS})

    def _deliver(self, receiver: int, to: Host, port: int, **worker: int) -> None:
        address = {"mac": int.from_bytes(to.mac, "big"), "address": int(to.address), "port": port}
        action = "deliver_up" if worker else "deliver_to"
        self.switch.program.tables["deliver"].insert({"job": JOB, "receiver": receiver}, action, {**address, **worker})

    def frame(self, worker: int, kind: int, round_number: int, word: int = 0) -> bytes:
        fields = (worker, 1 + worker, round_number & 1, round_number, 7, 11)
        payload = struct.pack("!I", word) * 64 if kind == DATA else b""
        datagram = HEADER.pack(1 << 4 | kind, 0, JOB, KEY, *fields) + payload
        return UdpFrame(host(worker), SWITCH, BASE_PORT, SWITCH_PORT, datagram).pack()

    def send(self, worker: int, kind: int = DATA, round_number: int = 1, word: int = 0) -> dict[int, bytes]:
        """The datagrams that come out, by worker."""
        copies = self.switch.receive(PORT[worker], self.frame(worker, kind, round_number, word))
        return {self.receiver(copy): UdpFrame.unpack(copy.frame).payload for copy in copies}

    def receiver(self, copy: Copy) -> int:
        target = UdpFrame.unpack(copy.frame).target
        (worker,) = (worker for worker in WORKERS if host(worker) == target)
        assert copy.port == PORT[worker]
        return worker


PASSES_AGAIN = {1: 1, 2: 0}
"""In each pipe, for a round, by generation of Tofino."""


@pytest.fixture(scope="module", params=PASSES_AGAIN, ids=["tofino1", "tofino2"])
def generation(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


@pytest.fixture(scope="module")
def switch(generation: int) -> Switch:
    return Switch(MAIN, generation=generation)


@pytest.fixture
def network(switch: Switch) -> Network:
    return Network(switch)


@pytest.mark.parametrize("order", list(itertools.permutations(WORKERS))[::5])
def test_all_workers_get_the_sum_of_both_pipes(network: Network, order: tuple[int, ...]) -> None:
    for round_number in (1, 3):
        for worker in order[:-1]:
            assert network.send(worker, DATA, round_number, 10**worker) == {}
        results = network.send(order[-1], DATA, round_number, 10 ** order[-1])
        assert set(results) == set(WORKERS)
        for datagram in results.values():
            assert (datagram[0] & 15, datagram[9]) == (RESULT, 4)
            assert datagram[24:] == struct.pack("!I", 1111) * 64


@pytest.mark.parametrize("kind", [EMPTY, META])
def test_rounds_without_data_pass_through_the_tree(network: Network, kind: int) -> None:
    for worker in WORKERS[:-1]:
        assert network.send(worker, kind) == {}
    results = network.send(WORKERS[-1], kind)
    assert set(results) == set(WORKERS)
    assert {datagram[24:] for datagram in results.values()} == {bytes(256) if kind == EMPTY else b""}


def test_each_pipe_of_a_tofino_1_recirculates_one_packet_of_a_round(network: Network, generation: int) -> None:
    """The sum that goes up and the RESULT of the root; what comes down is written in one pass."""
    for worker in WORKERS:
        network.send(worker, DATA, 1, 1)
    assert network.switch.recirculated == 2 * PASSES_AGAIN[generation]


def test_a_question_finds_its_way_up_and_the_answer_down(network: Network) -> None:
    """The sum that went up is lost: the cable is out for a moment."""
    assert network.send(0, DATA, 1, 1) == {}
    del network.switch.cables[LOWER_END]
    (lost,) = network.switch.receive(PORT[1], network.frame(1, DATA, 1, 10))
    assert lost.port == LOWER_END
    network.switch.cables[LOWER_END] = UPPER_END
    for worker in (2, 3):
        assert network.send(worker, DATA, 1, 10**worker) == {}
    assert set(network.send(0, QUESTION)) == set(WORKERS)
    results: defaultdict[int, bytes] = defaultdict(bytes)
    for worker in WORKERS:
        results |= network.send(worker, QUESTION)
    assert {datagram[24:] for datagram in results.values()} == {struct.pack("!I", 1111) * 64}
    assert set(results) == set(WORKERS)


def test_a_sum_whose_words_the_parent_replaces_between_the_passes_changes_nothing_above() -> None:
    """On Tofino 1, which has two. Sent up for the second time, it leaves with words of both; but the RESULT that
    replaced them says that the parent has had the first."""
    network = Network(Switch(MAIN))
    for worker in WORKERS:
        network.send(worker, DATA, 1, 1)
    network.switch.cables.clear()
    for worker in (0, 1):
        network.switch.receive(PORT[worker], network.frame(worker, DATA, 3, 10))
    pass_once = network.switch.one_pass
    header = (JOB, KEY, 2, 0, 1, 3, 7, 11)
    missing = between(HEADER.pack(1 << 4 | MISSING, 0, *header))
    result = between(HEADER.pack(1 << 4 | RESULT, 0, *header) + struct.pack("!I", 7777) * 64)
    (looping,) = pass_once(LOWER_END, missing)
    assert len(list(pass_once(LOWER_END, result))) == 2
    (mixed,) = pass_once(looping.port, looping.frame)
    assert mixed.port == LOWER_END
    words = struct.unpack("!64I", UdpFrame.unpack(mixed.frame).payload[24:])
    assert set(words[::2]) == {20}
    assert set(words[1::2]) == {7777}
    # The parent, complete: it has the sum from before.
    for worker in (2, 3):
        network.switch.receive(PORT[worker], network.frame(worker, DATA, 3, 1000))
    whole = UdpFrame.unpack(mixed.frame).payload[:24] + struct.pack("!I", 10) * 64
    assert len(network.switch.receive(UPPER_END, between(whole))) == 3
    network.switch.receive(UPPER_END, mixed.frame)
    assert network.send(2, QUESTION, 3)[2][24:] == struct.pack("!I", 2010) * 64
