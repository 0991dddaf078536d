"""Random packets to a switch, valid and invalid, from workers, networks and attackers.

A `Traffic` depends only on its seed. It follows the rounds of each slot loosely, so that most packets are relevant to
their cells: contributions, completing ones, duplicates, questions, packets that are reordered or a round late, other
kinds in the middle of a round. Some packets have a wrong byte, or are random. The packet that begins a round is never
late or invalid, because the slot would then fall behind for good. A job with an uplink also hears from its parent, when
all have contributed and at other times.

Each packet has its own number in `chunk`, which every answer echoes, so that an answer can be assigned to its cause.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from wiresum.controller import JobEntry
from wiresum.join.constants import PARENT
from wiresum_lab.doubles.workers import DATA, EMPTY, META, MISSING, QUESTION, RESULT, Packet

LATE_MAX = 24
"""How many packets may overtake a late one."""
HISTORY = 64
"""How many packets back a duplicate's original may be."""
FIRST_ROUNDS = (1, 2, 0x7FFFFFF0, 0xFFFFFFF0, 0xFFFFFFFF)
"""Some are near the wrap-around, or near the change of the sign bit."""
WRONG_PORTS = (-1, 1, 2, 8)
"""Includes ports of other threads, for a worker with several."""


@dataclass(frozen=True)
class Sending:
    """One packet: the job and worker that send it, whose address it carries, and the port of the switch."""

    job: int
    """The index of the job, not its number."""
    source: int
    """The index of the worker whose address it carries, or `PARENT`."""
    thread: int
    datagram: bytes
    port: int = 0
    """The distance of its source port from the one that this worker uses for this thread."""


@dataclass
class _Slot:
    """The state of a slot as seen by the workers."""

    round: int
    tensor: int = 1
    contributed: set[int] = field(default_factory=set)


class Traffic:
    def __init__(self, seed: int, jobs: Sequence[JobEntry]) -> None:
        self._random = random.Random(seed)
        self._jobs = jobs
        self._slots = [[_Slot(self._random.choice(FIRST_ROUNDS)) for _ in range(entry.slots)] for entry in jobs]
        self._number = 0
        self._history: list[Sending] = []
        self._begins = False
        """Whether the newest packet begins a round of its slot."""

    def packets(self, count: int) -> Iterator[Sending]:
        """The packets, in order of arrival at the switch."""
        late: list[tuple[int, int, Sending]] = []
        for number in range(count):
            sending = self._next()
            self._history = [*self._history[-HISTORY + 1 :], sending]
            if self._random.random() < 0.1 and not self._begins:
                late.append((number + self._random.randint(1, LATE_MAX), number, sending))
            else:
                yield sending
            late.sort()
            while late and late[0][0] <= number:
                yield late.pop(0)[2]
        yield from (sending for _, _, sending in late)

    def _next(self) -> Sending:
        dice = self._random.random()
        self._begins = False
        if dice < 0.10 and self._history:
            return self._random.choice(self._history)
        if dice < 0.70:
            return self._contribution()
        if dice < 0.82:
            return self._question()
        if dice < 0.87:
            return self._off_round()
        if dice < 0.90:
            return self._answer_anyhow()
        return self._malformed() if dice < 0.95 else self._not_admitted()

    def _contribution(self) -> Sending:
        """A contribution to the slot's round by a worker that has not contributed. The last one advances the slot,
        or the parent's RESULT does if there is a parent."""
        index, slot = self._place()
        entry, state = self._jobs[index], self._slots[index][slot]
        if len(state.contributed) == entry.workers:
            return self._answer(index, slot)
        worker = self._random.choice(sorted(set(range(entry.workers)) - state.contributed))
        self._begins = not state.contributed
        state.contributed.add(worker)
        sending = self._sending(index, worker, slot, state.round, state.tensor)
        if len(state.contributed) == entry.workers and entry.uplink is None:
            self._move_on(index, slot)
        return sending

    def _answer(self, index: int, slot: int) -> Sending:
        """The parent's timely answer; a RESULT advances the slot."""
        state = self._slots[index][slot]
        (kind,) = self._random.choices((RESULT, MISSING), (3, 1))
        if kind == RESULT:
            self._move_on(index, slot)
        return self._sending(index, PARENT, slot, state.round, state.tensor, kind)

    def _answer_anyhow(self) -> Sending:
        """A parent's packet, whether the job has a parent or not."""
        index, slot = self._place()
        state = self._slots[index][slot]
        number = (state.round - self._random.choice((-2, 0, 0, 1, 2))) % (1 << 32)
        return self._sending(index, PARENT, slot, number, state.tensor, self._random.choice((RESULT, MISSING)))

    def _move_on(self, index: int, slot: int) -> None:
        state = self._slots[index][slot]
        self._slots[index][slot] = _Slot((state.round + 1) % (1 << 32), state.tensor + 1)

    def _question(self) -> Sending:
        """A worker's question about the slot's round or the one before, which is usually complete."""
        index, slot = self._place()
        state = self._slots[index][slot]
        worker = self._random.randrange(self._jobs[index].workers)
        number = (state.round - self._random.randrange(2)) % (1 << 32)
        return self._sending(index, worker, slot, number, state.tensor, QUESTION)

    def _off_round(self) -> Sending:
        """A worker's packet of another round than the slot's."""
        index, slot = self._place()
        state = self._slots[index][slot]
        step = self._random.choice((-3, -2, -1, 1, 2, 3, 4, -1000, 1 << 31, (1 << 31) + 2))
        worker = self._random.randrange(self._jobs[index].workers)
        kind = self._random.choice((None, None, QUESTION))
        return self._sending(index, worker, slot, (state.round + step) % (1 << 32), state.tensor, kind)

    def _malformed(self) -> Sending:
        sending = self._contribution_like()
        datagram = bytearray(sending.datagram)
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
                datagram[0] = 1 << 4 | self._random.choice((RESULT, MISSING))
            case _:
                datagram[self._random.randrange(24)] ^= 1 << self._random.randrange(8)
        return Sending(sending.job, sending.source, sending.thread, bytes(datagram))

    def _not_admitted(self) -> Sending:
        """A packet with one wrong field in the admission key, or with a wrong cell."""
        index, slot = self._place()
        entry, state = self._jobs[index], self._slots[index][slot]
        worker = self._random.randrange(entry.workers)
        packet = self._packet(index, worker, slot, state.round, DATA, state.tensor)
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
        return Sending(index, source, thread, packet.to_bytes(), port)

    def _contribution_like(self) -> Sending:
        index, slot = self._place()
        state = self._slots[index][slot]
        return self._sending(index, self._random.randrange(self._jobs[index].workers), slot, state.round, state.tensor)

    def _place(self) -> tuple[int, int]:
        index = self._random.randrange(len(self._jobs))
        return index, self._random.randrange(self._jobs[index].slots)

    def _owner(self, index: int, slot: int) -> int:
        entry = self._jobs[index]
        return slot // (entry.slots // entry.threads)

    def _sending(
        self, index: int, worker: int, slot: int, number: int, tensor: int, kind: int | None = None
    ) -> Sending:
        """A packet of this kind, or of a random kind that contributes."""
        if kind is None:
            (kind,) = self._random.choices((DATA, EMPTY, META), (140, 30, 28))
        tensor += self._random.random() < 0.03
        packet = self._packet(index, worker, slot, number, kind, tensor)
        return Sending(index, worker, self._owner(index, slot), packet.to_bytes())

    def _packet(self, index: int, worker: int, slot: int, number: int, kind: int, tensor: int = 0) -> Packet:
        entry = self._jobs[index]
        self._number += 1
        packet = Packet(
            kind=kind,
            flags=self._random.choice((0, 0, 1, 255)),
            job=entry.job,
            key=entry.key,
            worker=self._random.randrange(32) if worker == PARENT else worker,
            exponent=self._random.choice((0, 1, 254, 255, self._random.randrange(256))),
            cell=2 * slot + number % 2,
            round=number,
            tensor=tensor,
            chunk=self._number,
        )
        has_words = kind == DATA or (kind == RESULT and self._random.random() < 0.8)
        return replace(packet, words=self._words(entry.lanes)) if has_words else packet

    def _words(self, lanes: int) -> tuple[int, ...]:
        edge = self._random.choice((0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, None, None, None))
        return (edge,) * lanes if edge is not None else tuple(self._random.getrandbits(32) for _ in range(lanes))
