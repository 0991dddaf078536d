"""Random packets to a switch, valid and invalid, from workers, networks and attackers; and scenarios made of them, with
the expectations that the model gives.

A `Traffic` depends only on its seed. It follows the rounds of each slot loosely, so that most packets are relevant to
their cells: contributions, completing ones, duplicates, questions, packets that are reordered or a round late, other
kinds in the middle of a round. Some packets have a wrong byte, or are random. The packet that begins a round is never
late or invalid, because the slot would then fall behind for good. A job with a parent also hears from its parent, when
all have contributed and at other times.

Each packet has its own number in `chunk`, which every answer echoes.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from wiresum.conformance.model import Model
from wiresum.conformance.scenarios import Arrival, Job, Member, Scenario, Step
from wiresum.join.constants import PARENT, Header, Kind

LATE_MAX = 24
"""The most packets that may overtake a late one."""
HISTORY = 64
"""The original of a duplicate is at most so many packets back."""
FIRST_ROUNDS = (1, 2, 0x7FFFFFF0, 0xFFFFFFF0, 0xFFFFFFFF)
"""Some first rounds are near the wrap-around, or near the change of the sign bit."""
WRONG_PORTS = (-1, 1, 2, 8)
"""Offsets include ports of other threads, for a worker with several."""
JOBS = (
    (3, 1, 4, None),
    (2, 2, 4, None),
    (1, 1, 1, None),
    (3, 2, 4, 30),
    (1, 1, 2, 0),
    (8, 1, 4, None),
    (5, 8, 8, None),
)
"""Workers, threads, slots, and the number at the parent of the jobs with one."""


def scenario(seed: int, packets: int, lanes: int, profiles: Collection[str]) -> Scenario:
    """Makes a scenario of random packets, of the kinds that a switch with these profiles knows."""
    jobs, base = [], 0
    for number, (workers, threads, slots, parent) in enumerate(JOBS, start=1):
        if parent is None or "trees" in profiles:
            jobs.append(Job(number, 0x11111111 * number, workers, threads, lanes, base, slots, parent))
        base += slots
    model = Model()
    for job in jobs:
        model.handle(job)
    steps: list[Step] = []
    for arrival in Traffic(seed, jobs, profiles).packets(packets):
        expectation, rules = model.answer(arrival)
        steps.append(
            Step(**vars(arrival), expectation=expectation, line=len(steps) + 1, text=_text(arrival), rules=rules)
        )
    return Scenario(f"sequence_{seed}", Path(f"seed {seed}"), 0, frozenset(), (*jobs, *steps))


def _text(arrival: Arrival) -> str:
    return f"from {arrival.source}, thread {arrival.thread}: {arrival.datagram[:24].hex(' ', 4)}"


@dataclass
class _Slot:
    """The workers' view of a slot."""

    round: int
    tensor: int = 1
    contributed: set[int] = field(default_factory=set)


class Traffic:
    def __init__(self, seed: int, jobs: Sequence[Job], profiles: Collection[str]) -> None:
        self._random = random.Random(seed)
        self._jobs, self._asks = jobs, "question" in profiles
        self._weights = (140, 30, 28 if "meta" in profiles else 0)
        self._slots = [[_Slot(self._random.choice(FIRST_ROUNDS)) for _ in range(entry.slots)] for entry in jobs]
        self._number = 0
        self._history: list[Arrival] = []
        self._begins = False
        """True if the newest packet begins a round of its slot."""

    def packets(self, count: int) -> Iterator[Arrival]:
        """Yields the packets, in order of arrival at the switch."""
        late: list[tuple[int, int, Arrival]] = []
        for number in range(count):
            arrival = self._next()
            self._history = [*self._history[-HISTORY + 1 :], arrival]
            if self._random.random() < 0.1 and not self._begins:
                late.append((number + self._random.randint(1, LATE_MAX), number, arrival))
            else:
                yield arrival
            late.sort()
            while late and late[0][0] <= number:
                yield late.pop(0)[2]
        yield from (arrival for _, _, arrival in late)

    def _next(self) -> Arrival:
        dice = self._random.random()
        self._begins = False
        if dice < 0.10 and self._history:
            return self._random.choice(self._history)
        if dice < 0.70:
            return self._contribution()
        if dice < 0.82 and self._asks:
            return self._question()
        if dice < 0.87:
            return self._off_round()
        if dice < 0.90:
            return self._answer_anyhow()
        return self._malformed() if dice < 0.95 else self._not_admitted()

    def _contribution(self) -> Arrival:
        """Makes a contribution to the slot's round by a worker that has not contributed. The last one advances the
        slot, or the parent's RESULT does if there is a parent."""
        index, slot = self._place()
        entry, state = self._jobs[index], self._slots[index][slot]
        if len(state.contributed) == entry.workers:
            return self._answer(index, slot)
        worker = self._random.choice(sorted(set(range(entry.workers)) - state.contributed))
        self._begins = not state.contributed
        state.contributed.add(worker)
        arrival = self._arrival(index, worker, slot, state.round, state.tensor)
        if len(state.contributed) == entry.workers and entry.parent is None:
            self._move_on(index, slot)
        return arrival

    def _answer(self, index: int, slot: int) -> Arrival:
        """Makes the parent's timely answer; a RESULT advances the slot."""
        state = self._slots[index][slot]
        (kind,) = self._random.choices((Kind.RESULT, Kind.MISSING), (3, 1))
        if kind == Kind.RESULT:
            self._move_on(index, slot)
        return self._arrival(index, PARENT, slot, state.round, state.tensor, kind)

    def _answer_anyhow(self) -> Arrival:
        """Makes a parent's packet, whether the job has a parent or not."""
        index, slot = self._place()
        state = self._slots[index][slot]
        number = (state.round - self._random.choice((-2, 0, 0, 1, 2))) % (1 << 32)
        return self._arrival(
            index, PARENT, slot, number, state.tensor, self._random.choice((Kind.RESULT, Kind.MISSING))
        )

    def _move_on(self, index: int, slot: int) -> None:
        state = self._slots[index][slot]
        self._slots[index][slot] = _Slot((state.round + 1) % (1 << 32), state.tensor + 1)

    def _question(self) -> Arrival:
        """Makes a worker's question about the slot's round or the one before, which is usually complete."""
        index, slot = self._place()
        state = self._slots[index][slot]
        worker = self._random.randrange(self._jobs[index].workers)
        number = (state.round - self._random.randrange(2)) % (1 << 32)
        return self._arrival(index, worker, slot, number, state.tensor, Kind.QUESTION)

    def _off_round(self) -> Arrival:
        """Makes a worker's packet of another round than the slot's."""
        index, slot = self._place()
        state = self._slots[index][slot]
        step = self._random.choice((-3, -2, -1, 1, 2, 3, 4, -1000, 1 << 31, (1 << 31) + 2))
        worker = self._random.randrange(self._jobs[index].workers)
        kind = self._random.choice((None, None, Kind.QUESTION if self._asks else None))
        return self._arrival(index, worker, slot, (state.round + step) % (1 << 32), state.tensor, kind)

    def _malformed(self) -> Arrival:
        arrival = self._contribution_like()
        datagram = bytearray(arrival.datagram)
        match self._random.randrange(6):
            case 0:
                datagram = datagram[: self._random.randrange(len(datagram) + 1)]
            case 1:
                datagram += self._random.randbytes(self._random.randint(1, 40))
            case 2:
                datagram[0] = self._random.randrange(256)
            case 3:
                datagram = bytearray(self._random.randbytes(self._random.randrange(600)))
            case 4:
                datagram[0] = 1 << 4 | self._random.choice((Kind.RESULT, Kind.MISSING))
            case _:
                datagram[self._random.randrange(24)] ^= 1 << self._random.randrange(8)
        return replace(arrival, datagram=bytes(datagram))

    def _not_admitted(self) -> Arrival:
        """Makes a packet with one wrong field in the admission key, or with a wrong cell."""
        index, slot = self._place()
        entry, state = self._jobs[index], self._slots[index][slot]
        worker = self._random.randrange(entry.workers)
        packet, words = self._packet(index, worker, slot, state.round, Kind.DATA, state.tensor)
        source, thread, port = worker, self._owner(index, slot), 0
        match self._random.randrange(7):
            case 0:
                packet = replace(packet, job=self._random.choice((0, packet.job ^ 1, 0xFFFF)))
            case 1:
                packet = replace(packet, key=packet.key ^ 1 << self._random.randrange(32))
            case 2:
                packet = replace(packet, worker=self._random.randrange(256))
            case 3:
                source = self._random.randrange(entry.workers)
            case 4:
                thread = self._random.randrange(16)
            case 5:
                port = self._random.choice(WRONG_PORTS)
            case _:
                packet = replace(packet, cell=self._random.choice((2 * entry.slots, 0xFFFF, packet.cell ^ 1)))
        return self._sent(index, source, thread, packet.pack() + words, port)

    def _contribution_like(self) -> Arrival:
        index, slot = self._place()
        state = self._slots[index][slot]
        return self._arrival(index, self._random.randrange(self._jobs[index].workers), slot, state.round, state.tensor)

    def _place(self) -> tuple[int, int]:
        index = self._random.randrange(len(self._jobs))
        return index, self._random.randrange(self._jobs[index].slots)

    def _owner(self, index: int, slot: int) -> int:
        entry = self._jobs[index]
        return slot // (entry.slots // entry.threads)

    def _arrival(
        self, index: int, worker: int, slot: int, number: int, tensor: int, kind: int | None = None
    ) -> Arrival:
        """Makes a packet of this kind, or of a random kind that contributes."""
        if kind is None:
            (kind,) = self._random.choices((Kind.DATA, Kind.EMPTY, Kind.META), self._weights)
        tensor += self._random.random() < 0.03
        packet, words = self._packet(index, worker, slot, number, kind, tensor)
        return self._sent(index, worker, self._owner(index, slot), packet.pack() + words)

    def _sent(self, index: int, worker: int, thread: int, datagram: bytes, port: int = 0) -> Arrival:
        """`port`: the distance of the source port from the one that this worker uses for this thread."""
        job = self._jobs[index]
        member = Member(job.number, 0 if worker == PARENT and job.parent is None else worker)
        return Arrival(member, member, member, thread, thread + port, datagram)

    def _packet(
        self, index: int, worker: int, slot: int, number: int, kind: int, tensor: int = 0
    ) -> tuple[Header, bytes]:
        entry = self._jobs[index]
        self._number += 1
        packet = Header(
            kind=kind,
            flags=self._random.choice((0, 0, 1, 255)),
            job=entry.number,
            key=entry.key,
            worker=self._random.randrange(32) if worker == PARENT else worker,
            exponent=self._random.choice((0, 1, 254, 255, self._random.randrange(256))),
            cell=2 * slot + number % 2,
            round=number,
            tensor=tensor,
            chunk=self._number,
        )
        has_words = kind == Kind.DATA or (kind == Kind.RESULT and self._random.random() < 0.8)
        return packet, self._words(entry.lanes) if has_words else b""

    def _words(self, lanes: int) -> bytes:
        edge = self._random.choice((0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, None, None, None))
        return struct.pack("!I", edge) * lanes if edge is not None else self._random.randbytes(4 * lanes)
