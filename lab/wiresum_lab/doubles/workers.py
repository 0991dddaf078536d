"""Doubles for tests of a switch: workers made of plain sockets, which send the packets of the test; and packets of
misbehaving workers."""

from __future__ import annotations

import itertools
import random
import select
import socket
import struct
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import ClassVar
from weakref import WeakKeyDictionary

from wiresum.controller import Endpoint, JobEntry
from wiresum.join.constants import HEADER_BYTES, WIRE_VERSION, Header, Kind
from wiresum.switch.software_switch import SoftwareSwitch
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import wait_until

DATA, EMPTY, RESULT, META, QUESTION, MISSING = Kind


@dataclass(frozen=True)
class Packet(Header):
    """A packet: a header, and the words after it."""

    words: tuple[int, ...] = ()

    def to_bytes(self) -> bytes:
        return self.pack() + struct.pack(f"!{len(self.words)}I", *self.words)

    @classmethod
    def from_bytes(cls, datagram: bytes) -> Packet:
        header = Header.unpack(datagram)
        assert header.version == WIRE_VERSION
        count = (len(datagram) - HEADER_BYTES) // 4
        words = struct.unpack_from(f"!{count}I", datagram, HEADER_BYTES)
        return cls(**vars(header), words=words)


CIRCLE = 1 << 32
"""How many rounds there are before the number wraps around, and how many values a word has."""


class Misdeeds:
    """Packets of workers that break all rules: of any kind, in any round; and complete rounds, so that cells hold sums.
    The caller fills in the job's number and key."""

    def __init__(self, chance: random.Random, *, cells: int, workers: int, lanes: int) -> None:
        self._chance, self._cells, self._workers, self._lanes = chance, cells, workers, lanes
        self._reached = [first_round(cell) for cell in range(cells)]
        """A round that each cell may have reached, by cell."""
        self.tried: set[tuple[int, int]] = set()
        """Cell and round of each sum that a cell may hold by now."""

    def next(self) -> list[Packet]:
        cell = self._chance.randrange(self._cells)
        if self._chance.random() < 0.6:
            kind = self._chance.choice((DATA, DATA, EMPTY, META, QUESTION))
            return [self._packet(self._chance.randrange(self._workers), kind, cell, self._any_round(cell))]
        kind = self._chance.choice((DATA, DATA, EMPTY, META))
        reached = self._reached[cell]
        self._reached[cell] = (reached + 2) % CIRCLE
        everybody = self._chance.sample(range(self._workers), self._workers)
        return [self._packet(worker, kind, cell, reached) for worker in everybody]

    def _any_round(self, cell: int) -> int:
        reached = self._reached[cell]
        base = self._chance.choice((0, reached, reached, reached + CIRCLE // 2, self._chance.randrange(CIRCLE)))
        number = base + self._chance.choice((-4, -2, 0, 2, 4))
        if self._chance.random() < 0.9:
            number += (number ^ cell) & 1  # of the cell's parity
        return number % CIRCLE

    def _packet(self, worker: int, kind: int, cell: int, number: int) -> Packet:
        self.tried.add((cell, number))
        return Packet(
            kind=kind,
            flags=self._chance.randrange(256),
            worker=worker,
            exponent=self._chance.randrange(256),
            cell=cell,
            round=number,
            tensor=self._chance.choice((1, 1, self._chance.randrange(CIRCLE))),
            chunk=self._chance.randrange(CIRCLE),
            words=tuple(self._chance.randrange(CIRCLE) for _ in range(self._lanes)) if kind == DATA else (),
        )


def first_round(cell: int) -> int:
    """The first round for which a job uses a cell."""
    return 1 if cell % 2 else 2


@dataclass
class Job:
    """The workers of one job, each with a socket of its own (one thread), and their switch."""

    device: SoftwareSwitch
    entry: JobEntry
    sockets: list[socket.socket] = field(default_factory=list)

    def packet(self, worker: int, round: int, words: tuple[int, ...] = (), kind: int = DATA, slot: int = 0) -> Packet:  # noqa: A002
        return Packet(
            kind=kind,
            job=self.entry.job,
            key=self.entry.key,
            worker=worker,
            cell=2 * slot + round % 2,
            round=round,
            tensor=1,
            chunk=slot,
            words=words,
        )

    _sent: ClassVar[WeakKeyDictionary[SoftwareSwitch, int]] = WeakKeyDictionary()
    """How many packets all jobs have sent to each switch."""

    def send(self, packet: Packet) -> None:
        self._sent[self.device] = self._sent.get(self.device, 0) + 1
        address, port = self.device.endpoint
        self.sockets[packet.worker].sendto(packet.to_bytes(), (address, port + self.entry.port_offset))

    def receive(self, worker: int) -> Packet:
        return Packet.from_bytes(self.sockets[worker].recv(65536))

    def hears_nothing(self, worker: int) -> bool:
        """Whether no packet is there for a worker, once the switch has handled all packets: on loopback, its answers
        have arrived then."""
        sent = self._sent[self.device]
        wait_until(lambda: self.device.stats().datagrams_received >= sent, "the switch has handled all packets")
        arrived = select.poll()  # select() takes no descriptor above 1023, and a long test run has opened more
        arrived.register(self.sockets[worker], select.POLLIN)
        return not arrived.poll(0)


class DataplaneHarness:
    """Makes switches and jobs, and cleans up after them."""

    def __init__(self, cleanup: ExitStack) -> None:
        self._cleanup = cleanup
        self._keys = itertools.count(0xFEED0001)
        """Keys for jobs. No key comes twice: with the same key a job would find sums of an earlier job in its cells."""

    def switch(self, *, threads: int = 2, slots: int = 64, lanes_max: int = 16) -> SoftwareSwitch:
        device = SoftwareSwitch(port=0, threads=threads, slots=slots, lanes_max=lanes_max, jobs_max=8)
        self._cleanup.callback(device.close)
        return device

    def open_socket(self) -> socket.socket:
        made = self._cleanup.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        made.bind(("127.0.0.1", 0))
        made.settimeout(PATIENCE_S)
        return made

    def entry(self, sockets: list[socket.socket], *, job: int = 1, slot_base: int = 0, slots: int = 8) -> JobEntry:
        return JobEntry(
            job=job,
            key=next(self._keys),
            workers=len(sockets),
            threads=1,
            lanes=4,
            slot_base=slot_base,
            slots=slots,
            endpoints=tuple(Endpoint(*made.getsockname()) for made in sockets),
        )

    def job(self, device: SoftwareSwitch, workers: int, *, number: int = 1, slot_base: int = 0) -> Job:
        sockets = [self.open_socket() for _ in range(workers)]
        entry = self.entry(sockets, job=number, slot_base=slot_base)
        device.admit(entry)
        return Job(device, entry, sockets)
