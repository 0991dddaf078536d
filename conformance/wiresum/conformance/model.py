"""The required answer to any packet, and the rules that require it: sections 3 and 8 of docs/protocol.md as a program.

The model is as plain as the protocol's text, and shares no code with any switch. The vectors hold it to the protocol:
it gives what each of them expects (conformance/tests/test_model.py).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import NamedTuple

from wiresum.conformance.scenarios import Arrival, End, Expectation, Job, Member, Scenario, Step, Verdict
from wiresum.join.constants import HEADER_BYTES, PARENT, PARENT_BIT, WIRE_VERSION, Header, Kind

DIVERGED = 2
"""The flag of a RESULT whose workers call different collectives."""
ROUNDS = 1 << 32
ROUNDS_OF_SLOT = 2
"""The distance from a round to the next of the same cell."""
WORKER_THAT_ASKS = 0
_WORDS = 1 << 32


_OF_FRAME = ("R2.7", "R2.8", "R2.12")
"""The rules by which a host refuses a frame."""


class Answer(NamedTuple):
    expectation: Expectation
    rules: tuple[str, ...]
    """The rules that decide the answer."""


@dataclass
class Cell:
    owner: int = 0
    round: int = 0
    tensor: int = 0
    bitmap: int = 0
    exponent: int = 0
    words: tuple[int, ...] | None = None
    """The sum so far; None before the round's first DATA."""
    diverged: bool = False
    asked: bool = False
    """True if a question has come since the last contribution."""


class _Dropped(Exception):  # noqa: N818 - no error: it ends the way of a packet
    def __init__(self, reason: str, *rules: str) -> None:
        super().__init__(reason)
        self.reason, self.rules = reason, rules


class Model:
    """A switch that follows the protocol."""

    def __init__(self) -> None:
        self._jobs: dict[int, Job] = {}
        self._cells: dict[int, Cell] = {}

    def handle(self, event: Job | End | Arrival) -> Answer | None:
        """Returns the required answer to a packet; None for any other event."""
        if isinstance(event, Arrival):
            return self.answer(event)
        if isinstance(event, Job):
            self._jobs[event.number] = event
        else:
            del self._jobs[event.job.number]
        return None

    def answer(self, arrival: Arrival) -> Answer:
        try:
            header, words = _parsed(arrival.datagram)
            job = self._admitted(arrival, header)
            index = _cell_of(arrival, job, header, words)
            cell = self._cells.setdefault(index, Cell())
            if header.kind == Kind.QUESTION:
                return _asked(job, cell, header)
            if header.kind in (Kind.RESULT, Kind.MISSING):
                return _from_parent(job, cell, header, words)
            return self._contributed(job, index, header, words)
        except _Dropped as dropped:
            return Answer(Expectation(Verdict.DROP, dropped.reason, (), b""), dropped.rules)

    def _admitted(self, arrival: Arrival, header: Header) -> Job:
        job = self._jobs.get(header.job)
        from_parent = header.kind in (Kind.RESULT, Kind.MISSING)
        sender = Member(header.job, PARENT if from_parent else header.worker)
        if (
            job is None
            or header.key != job.key
            or sender != arrival.source
            or arrival.port != arrival.source
            or (job.parent is None if from_parent else header.worker >= job.workers)
            or not 0 <= arrival.thread - job.port_offset < job.threads
            or arrival.source_thread != arrival.thread - job.port_offset
        ):
            raise _Dropped("malformed", "R3.2", "R8.8") if from_parent else _Dropped("unknown", "R3.1")
        return job

    def _contributed(self, job: Job, index: int, header: Header, words: tuple[int, ...]) -> Answer:
        cell = self._cells[index]
        newer = _is_newer(cell, header)
        if not newer and header.round != cell.round:
            raise _Dropped("stale", "R3.7", "R3.8")
        related = ["R3.6" if newer else "R3.7", *(["R3.23"] if cell.asked else [])]
        if newer:
            cell = self._cells[index] = Cell(header.key, header.round, header.tensor)
        cell.asked = False
        expectation, rules = _summed(job, cell, header, words)
        return Answer(expectation, (*related, *rules))


def _summed(job: Job, cell: Cell, header: Header, words: tuple[int, ...]) -> Answer:
    _note(cell, header)
    bit = 1 << header.worker
    duplicate = bool(cell.bitmap & bit)
    if header.kind == Kind.DATA:
        if cell.words is None:
            cell.words = words
        elif not duplicate:
            cell.words = tuple((old + new) % _WORDS for old, new in zip(cell.words, words, strict=True))
    cell.bitmap |= bit
    if cell.bitmap & _full(job) != _full(job):
        reason = "duplicate" if duplicate else "admitted"
        verdict = Verdict.DROP if duplicate else Verdict.HOLD
        return Answer(Expectation(verdict, reason, (), b""), ("R3.10", "R3.17") if duplicate else ("R3.18",))
    if duplicate:
        return _again(job, cell, header)
    if job.parent is not None:
        return Answer(_raised(job, cell, header, Verdict.UP), ("R8.4", "R8.5", *_of_sum(cell, header)))
    result = _result(job, cell, header, Verdict.MULTICAST, job.members)
    return Answer(result, ("R3.16", "R3.27", *_of_sum(cell, header)))


def with_rules(scenario: Scenario) -> Scenario:
    """Returns the scenario with the deciding rules in each step, and all of them in the scenario, besides its
    comments'."""
    model = Model()
    events: list[Job | Step | End] = []
    for event in scenario.events:
        if isinstance(event, Step) and event.refused_by_hosts:
            events.append(replace(event, rules=_OF_FRAME if event.mac is None else ("R2.6",)))
        elif (answer := model.handle(event)) is not None and isinstance(event, Step):
            events.append(replace(event, rules=answer.rules))
        else:
            events.append(event)
    of_steps = [rule for event in events if isinstance(event, Step) for rule in event.rules]
    return replace(scenario, events=tuple(events), rules=tuple(dict.fromkeys([*scenario.rules, *of_steps])))


def _parsed(datagram: bytes) -> tuple[Header, tuple[int, ...]]:
    if len(datagram) < HEADER_BYTES:
        raise _Dropped("malformed", "R2.15")
    header, payload = Header.unpack(datagram), datagram[HEADER_BYTES:]
    has_words = header.kind in (Kind.DATA, Kind.RESULT)
    if header.version != WIRE_VERSION or header.kind >= len(Kind):
        raise _Dropped("malformed", "R2.15")
    if len(payload) % 4 if has_words else payload:
        raise _Dropped("malformed", "R2.15")
    return header, struct.unpack(f"!{len(payload) // 4}I", payload)


def _cell_of(arrival: Arrival, job: Job, header: Header, words: tuple[int, ...]) -> int:
    lengths = {Kind.DATA: (job.lanes,), Kind.RESULT: (0, job.lanes)}.get(Kind(header.kind), (0,))
    if len(words) not in lengths:
        raise _Dropped("malformed", "R3.3")
    if (header.cell ^ header.round) & 1:
        raise _Dropped("malformed", "R3.3")
    cells_of_thread = ROUNDS_OF_SLOT * job.slots // job.threads
    if header.cell // cells_of_thread != arrival.thread - job.port_offset:
        raise _Dropped("out_of_lease", "R2.5", "R3.4")
    return ROUNDS_OF_SLOT * job.slot_base + header.cell


def _is_newer(cell: Cell, header: Header) -> bool:
    return cell.owner != header.key or header.round == (cell.round + ROUNDS_OF_SLOT) % ROUNDS


def _note(cell: Cell, header: Header) -> None:
    cell.diverged |= header.tensor != cell.tensor or bool(header.flags & DIVERGED)
    cell.exponent = max(cell.exponent, header.exponent)


def _full(job: Job) -> int:
    return (1 << job.workers) - 1


def _asked(job: Job, cell: Cell, header: Header) -> Answer:
    same = cell.owner == header.key and cell.round == header.round
    newer = _is_newer(cell, header)
    cell.asked = True
    if not (same or newer):
        raise _Dropped("stale", "R3.7", "R3.8")
    if newer or not cell.bitmap & 1 << header.worker:
        missing = replace(header, kind=Kind.MISSING, flags=0, exponent=0)
        expectation = Expectation(Verdict.MISSING, "resent", (Member(job.number, header.worker),), missing.pack())
        return Answer(expectation, ("R3.6" if newer else "R3.7", "R3.24", "R3.26"))
    if cell.bitmap & _full(job) != _full(job):
        raise _Dropped("duplicate", "R3.25")
    return _again(job, cell, header)


def _again(job: Job, cell: Cell, header: Header) -> Answer:
    """Answers a duplicate, or a question, in a cell that all workers of this switch have contributed to."""
    question = header.kind == Kind.QUESTION
    if job.parent is None or cell.bitmap & PARENT_BIT:
        expectation = _result(job, cell, header, Verdict.RESEND, (Member(job.number, header.worker),))
        return Answer(expectation, ("R3.25" if question else "R3.17", *_of_sum(cell, header)))
    if header.worker != WORKER_THAT_ASKS:
        raise _Dropped("duplicate", "R8.7")
    raised = _raised(job, cell, header, Verdict.AGAIN)
    if cell.words is None:
        return Answer(raised, ("R8.6",))
    asks = Header.unpack(raised.datagram)
    return Answer(replace(raised, datagram=replace(asks, kind=Kind.QUESTION, flags=0, exponent=0).pack()), ("R8.6",))


def _from_parent(job: Job, cell: Cell, header: Header, words: tuple[int, ...]) -> Answer:
    if (cell.owner, cell.round) != (header.key, header.round) or cell.bitmap & _full(job) != _full(job):
        raise _Dropped("stale", "R8.9")
    if cell.bitmap & PARENT_BIT:
        raise _Dropped("duplicate", "R8.9")
    if header.kind == Kind.MISSING:
        return Answer(_raised(job, cell, header, Verdict.AGAIN), ("R8.12",))
    _note(cell, header)
    cell.bitmap |= PARENT_BIT
    cell.words = words or cell.words
    result = replace(header, flags=_flags(cell), exponent=cell.exponent).pack() + _packed(words)
    return Answer(Expectation(Verdict.MULTICAST, "admitted", job.members, result), ("R8.10", "R8.11"))


def _result(job: Job, cell: Cell, header: Header, verdict: Verdict, receivers: tuple[Member, ...]) -> Expectation:
    result = replace(header, kind=Kind.RESULT, flags=_flags(cell), exponent=cell.exponent).pack()
    words = () if header.kind == Kind.META else cell.words or (0,) * job.lanes
    reason = "admitted" if verdict is Verdict.MULTICAST else "resent"
    return Expectation(verdict, reason, receivers, result + _packed(words))


def _raised(job: Job, cell: Cell, header: Header, verdict: Verdict) -> Expectation:
    assert job.parent is not None
    kind = Kind.META if header.kind == Kind.META else Kind.EMPTY
    kind = kind if cell.words is None else Kind.DATA
    raised = replace(header, kind=kind, worker=job.parent, flags=_flags(cell), exponent=cell.exponent).pack()
    reason = "admitted" if verdict is Verdict.UP else "resent"
    return Expectation(verdict, reason, (Member(job.number, PARENT),), raised + _packed(cell.words or ()))


def _flags(cell: Cell) -> int:
    return DIVERGED if cell.diverged else 0


def _packed(words: tuple[int, ...]) -> bytes:
    return struct.pack(f"!{len(words)}I", *words)


def _of_sum(cell: Cell, header: Header) -> tuple[str, ...]:
    """Returns the rules about what an answer with the cell's sum carries."""
    of_words = ("R8.10",) if cell.bitmap & PARENT_BIT else ("R3.9", "R3.12", "R3.13", "R3.14", "R3.21")
    return ("R3.11", "R3.15", "R3.19", "R3.20", *(() if header.kind == Kind.META else of_words))
