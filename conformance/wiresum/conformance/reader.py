"""Reads the vectors: packets in, and the required answers of a switch. The README beside them describes the format.

All values are turned into what a player needs: the bytes of each datagram, its sender and source, and the bytes,
receivers and reason of the answer. The expected bytes follow from the file and from the echo rule of docs/protocol.md,
section 3; no switch is involved.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import cycle, islice
from pathlib import Path

from wiresum.conformance.frames import FrameChanges
from wiresum.conformance.scenarios import (
    DROP_REASONS,
    MACS,
    SCENARIO_SLOTS_MAX,
    End,
    Expectation,
    Job,
    Member,
    Scenario,
    Step,
    Verdict,
)
from wiresum.join.constants import (
    BELOW_ROOT_WORKERS_MAX,
    PARENT,
    SWITCH_WORKERS_MAX,
    THREADS_MAX,
    WIRE_VERSION,
    Header,
    Kind,
)

FOLDER = Path(__file__).resolve().parent / "vectors"

FEATURES = frozenset({"diverged_flag", "frames", "trees", "udp_checksum"})
"""The profiles that a scenario may name."""

SCENARIO_LANES_MAX = 360
DATAGRAM_BYTES_MAX = 1472
"""The UDP payload of an IPv4 packet of 1500 bytes."""

RULE = re.compile(r"\bR[0-9]+\.[0-9]+\b")
"""A rule's number in docs/protocol.md."""
_PROFILE_OF_KINDS = {"meta": {Kind.META}, "question": {Kind.QUESTION}}
_KINDS: dict[str, int] = {kind.name: kind for kind in Kind} | {str(kind): kind for kind in range(len(Kind), 16)}
_TENSOR = 0x01020304  # All bytes differ, so a moved or swapped field is noticed.
_CHUNK = 0x05060708
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_NUMBER = re.compile(r"0x[0-9A-F]+|[0-9]+")
_MEMBER = re.compile(r"([0-9]+)\.([0-9]+|parent)")
_HEX = re.compile(r"([0-9A-F]{2})+")
_WORD_MASK = 0xFFFFFFFF


class VectorError(ValueError):
    """A file does not follow the format; the text begins with file and line."""


@cache
def load_all(folder: Path = FOLDER) -> tuple[Scenario, ...]:
    """Loads all scenarios of all files, by file name and line. Raises `VectorError` if there is none, or two have the
    same name."""
    scenarios = [scenario for path in sorted(folder.glob("*.txt")) for scenario in load(path)]
    if not scenarios:
        raise VectorError(f"{folder}: no scenario: vectors are *.txt files here")
    seen: dict[str, Scenario] = {}
    for scenario in scenarios:
        if first := seen.get(scenario.name):
            place = f"{scenario.path}:{scenario.line}"
            raise VectorError(f"{place}: {first.path.name}:{first.line} has a scenario {scenario.name} too")
        seen[scenario.name] = scenario
    return tuple(scenarios)


def load(path: Path) -> tuple[Scenario, ...]:
    """Loads the scenarios of one file. Raises `VectorError` with file and line."""
    return tuple(_File(path).scenarios())


@dataclass(frozen=True)
class _Line:
    path: Path
    number: int
    text: str
    tokens: tuple[str, ...]
    rules: tuple[str, ...] = ()

    def error(self, complaint: str) -> VectorError:
        return VectorError(f"{self.path}:{self.number}: {complaint}")


class _File:
    def __init__(self, path: Path) -> None:
        self._path = path

    def scenarios(self) -> Iterator[Scenario]:
        block: list[_Line] = []
        rules: list[str] = []
        for line in self._lines():
            if line.tokens[0] == "scenario":
                if block:
                    yield _scenario(block, rules)
                    rules = []
                block = [line]
            elif block:
                block.append(line)
            else:
                raise line.error("a file begins with a scenario line")
            rules += line.rules
        if not block:
            raise VectorError(f"{self._path}:1: no scenario in this file")
        yield _scenario(block, rules)

    def _lines(self) -> Iterator[_Line]:
        """Yields the lines without their comments; a line has the rules that its comment, or one right above it,
        names."""
        above: list[str] = []
        for number, raw in enumerate(self._path.read_text(encoding="ascii").splitlines(), start=1):
            text, _, comment = (part.strip() for part in raw.partition("#"))
            above += RULE.findall(comment)
            if text:
                yield _Line(self._path, number, text, tuple(text.split()), tuple(above))
            if text or not comment:
                above = []


def _scenario(block: Sequence[_Line], rules: Iterable[str]) -> Scenario:
    head, *body = block
    if len(head.tokens) != 2 or not _NAME.fullmatch(head.tokens[1]):
        raise head.error("expected 'scenario NAME', the name in lower case with underscores")
    needs: set[str] = set()
    jobs = _Jobs()
    events: list[Job | Step | End] = []
    for line in body:
        word = line.tokens[0]
        if word == "needs":
            if events:
                raise line.error("'needs' must stand before the first job")
            needs.add(_feature(line))
        elif word == "job":
            events.append(jobs.admit(line))
        elif word == "end":
            events.append(jobs.end(line))
        else:
            events.append(_StepParser(line, jobs.known).step())
    if not any(isinstance(event, Step) for event in events):
        raise head.error(f"scenario {head.tokens[1]} has no packet")
    kinds = {step.kind for step in events if isinstance(step, Step)}
    needs |= {profile for profile, needed in _PROFILE_OF_KINDS.items() if kinds & needed}
    return Scenario(
        head.tokens[1], head.path, head.number, frozenset(needs), tuple(events), tuple(dict.fromkeys(rules))
    )


def _feature(line: _Line) -> str:
    if len(line.tokens) != 2 or line.tokens[1] not in FEATURES:
        raise line.error(f"expected 'needs' and one of: {', '.join(sorted(FEATURES))}")
    return line.tokens[1]


class _Fields:
    """The NAME=VALUE tokens of a line; each must be used, so that a misspelt one is an error."""

    def __init__(self, line: _Line, tokens: Sequence[str]) -> None:
        self._line = line
        self._values: dict[str, str] = {}
        for token in tokens:
            name, equals, value = token.partition("=")
            if not (name and equals and value):
                raise line.error(f"expected NAME=VALUE, not '{token}'")
            if name in self._values:
                raise line.error(f"{name} is given twice")
            self._values[name] = value

    def has(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str) -> str | None:
        return self._values.pop(name, None)

    def number(self, name: str, bits: int, default: int | None = None) -> int:
        text = self.text(name)
        if text is not None:
            return _number(self._line, text, (1 << bits) - 1, name)
        if default is None:
            raise self._line.error(f"{name}= is missing")
        return default

    def end(self) -> None:
        if self._values:
            raise self._line.error(f"nothing here is called {', '.join(self._values)}")


def _number(line: _Line, text: str, largest: int, name: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise line.error(f"{name}: '{text}' is no number (decimal, or 0x and capital hexadecimal digits)")
    value = int(text, 16) if text.startswith("0x") else int(text)
    if value > largest:
        raise line.error(f"{name}: {text} is larger than {largest}")
    return value


class _Jobs:
    """The jobs of a scenario while its lines are read."""

    def __init__(self) -> None:
        self.known: dict[int, Job] = {}
        """The newest job of each number; packets may come from a job that has ended."""
        self._running: dict[int, Job] = {}
        self._ended: list[Job] = []

    def admit(self, line: _Line) -> Job:
        job = _job(line)
        if objection := _objection(job) or self._conflict(job):
            raise line.error(objection)
        self.known[job.number] = self._running[job.number] = job
        return job

    def end(self, line: _Line) -> End:
        job = None
        if len(line.tokens) == 2:
            job = self._running.pop(_number(line, line.tokens[1], 0xFFFF, "job"), None)
        if job is None:
            raise line.error("expected 'end' and the number of a job that runs")
        self._ended.append(job)
        return End(job)

    def _conflict(self, job: Job) -> str | None:
        """Returns why a job conflicts with those before it; otherwise None."""
        if job.number in self._running:
            return f"job {job.number} is declared twice"
        for other in self._running.values():
            if job.overlaps(other):
                return f"the lease overlaps that of job {other.number}"
        if any(job.overlaps(other) and job.key == other.key for other in self._ended):
            return f"key {job.key:#x} was that of a job in the same slots"
        return None


def _job(line: _Line) -> Job:
    if len(line.tokens) < 2:
        raise line.error("expected 'job NUMBER key=... workers=... threads=... lanes=... slot_base=... slots=...'")
    fields = _Fields(line, line.tokens[2:])
    job = Job(
        number=_number(line, line.tokens[1], 0xFFFF, "job"),
        key=fields.number("key", 32),
        workers=fields.number("workers", 8),
        threads=fields.number("threads", 8),
        lanes=fields.number("lanes", 16),
        slot_base=fields.number("slot_base", 16),
        slots=fields.number("slots", 16),
        parent=fields.number("parent", 8) if fields.has("parent") else None,
    )
    fields.end()
    return job


def _objection(job: Job) -> str | None:
    """Returns why a switch or this format refuses a job by itself; otherwise None."""
    if job.key == 0:
        return "key 0 is nobody's"
    if not 1 <= job.workers <= SWITCH_WORKERS_MAX:
        return f"a job has 1 to {SWITCH_WORKERS_MAX} workers"
    if job.parent is not None and (job.workers == SWITCH_WORKERS_MAX or job.parent >= SWITCH_WORKERS_MAX):
        most = BELOW_ROOT_WORKERS_MAX
        return f"a switch with a parent has up to {most} workers, and is one of up to {SWITCH_WORKERS_MAX}"
    if not 1 <= job.lanes <= SCENARIO_LANES_MAX:
        return f"a packet has 1 to {SCENARIO_LANES_MAX} lanes"
    if job.slots.bit_count() != 1 or job.threads.bit_count() != 1 or job.threads > min(job.slots, THREADS_MAX):
        return f"slots and threads are powers of two, at most {THREADS_MAX} threads, and no more than slots"
    if job.slot_base + job.slots > SCENARIO_SLOTS_MAX:
        return f"leases lie in the first {SCENARIO_SLOTS_MAX} slots"
    return None


_ECHOED = {"job": 16, "key": 32, "worker": 8, "cell": 16, "round": 32, "tensor": 32, "chunk": 32}
"""Fields that a RESULT copies from the packet that triggered it, and their bits; a file may give them explicitly."""


class _StepParser:
    """One packet line: 'SENDER KIND FIELDS -> VERDICT FIELDS'."""

    def __init__(self, line: _Line, jobs: Mapping[int, Job]) -> None:
        self._line = line
        self._jobs = jobs

    def step(self) -> Step:
        tokens = self._line.tokens
        if tokens.count("->") != 1:
            raise self._line.error(
                "expected 'job', 'end', 'needs', 'scenario', or a packet: SENDER KIND FIELDS -> VERDICT"
            )
        arrow = tokens.index("->")
        packet, outcome = tokens[:arrow], tokens[arrow + 1 :]
        if len(packet) < 2 or not outcome:
            raise self._line.error("expected SENDER KIND before the arrow, and a verdict behind it")
        sender = self._member(packet[0], "sender")
        job = self._jobs[sender.job]
        fields = _Fields(self._line, packet[2:])
        if packet[1] == "RAW":
            header, datagram, thread = None, self._raw(fields), 0
        else:
            header = self._header(packet[1], sender, job, fields)
            datagram = self._datagram(header, job, fields)
            thread = _owner(job, header.cell // 2)
        source, port = self._origin(sender, fields)
        thread = fields.number("thread", 4, thread)
        source_thread = fields.number("source_thread", 4, thread)
        mac, changes = self._frame(fields)
        fields.end()
        expectation = self._expectation(outcome, sender, header)
        origin = (sender, source, port, thread, source_thread)
        return Step(*origin, datagram, expectation, self._line.number, self._line.text, changes, mac)

    def _member(self, text: str, what: str) -> Member:
        match = _MEMBER.fullmatch(text)
        if match is None:
            raise self._line.error(f"{what}: '{text}' is no JOB.WORKER or JOB.parent")
        member = Member(int(match[1]), PARENT if match[2] == "parent" else int(match[2]))
        job = self._jobs.get(member.job)
        if job is None or (job.parent is None if member.worker == PARENT else member.worker >= job.workers):
            raise self._line.error(f"{what}: '{text}' is no JOB.WORKER that was declared")
        return member

    def _origin(self, sender: Member, fields: _Fields) -> tuple[Member | None, Member]:
        source: Member | None = sender
        port = sender
        if (text := fields.text("source")) is not None:
            source = None if text == "stranger" else self._member(text, "source")
        if (text := fields.text("port")) is not None:
            port = self._member(text, "port")
            if port == sender:
                raise self._line.error("port: a packet comes in at its sender's own port anyway")
        return source, port

    def _raw(self, fields: _Fields) -> bytes:
        text = fields.text("hex") or ""
        if not _HEX.fullmatch(text):
            raise self._line.error("RAW needs hex= and an even number of capital hexadecimal digits")
        return bytes.fromhex(text)

    def _frame(self, fields: _Fields) -> tuple[str | None, FrameChanges]:
        mac, checksum = fields.text("mac"), fields.text("udp_checksum")
        if mac is not None and mac not in MACS:
            raise self._line.error(f"mac: '{mac}' is none of: {', '.join(MACS)}")
        if checksum not in (None, "none"):
            raise self._line.error(f"udp_checksum: '{checksum}' is not 'none'")
        return mac, FrameChanges(
            ip_length=fields.number("ip_length", 16) if fields.has("ip_length") else None,
            udp_length=fields.number("udp_length", 16) if fields.has("udp_length") else None,
            without_udp_checksum=checksum is not None,
            flip=fields.number("flip", 13) if fields.has("flip") else None,
            trailer=fields.number("trailer", 11, 0),
            cut=fields.number("cut", 11, 0),
        )

    def _header(self, kind: str, sender: Member, job: Job, fields: _Fields) -> Header:
        if kind not in _KINDS:
            raise self._line.error(f"'{kind}' is no kind: {', '.join(_KINDS)}, or RAW")
        round_number = fields.number("round", 32)
        if fields.has("slot") and fields.has("cell"):
            raise self._line.error("a packet has either slot= or cell=")
        slot = fields.number("slot", 15, 0)
        cell = fields.number("cell", 16, 2 * slot + (round_number & 1))
        return Header(
            version=fields.number("version", 4, WIRE_VERSION),
            kind=_KINDS[kind],
            flags=fields.number("flags", 8, 0),
            job=fields.number("job", 16, job.number),
            key=fields.number("key", 32, job.key),
            worker=fields.number("worker", 8, job.parent if sender.worker == PARENT else sender.worker),
            exponent=fields.number("exponent", 8, 0),
            cell=cell,
            round=round_number,
            tensor=fields.number("tensor", 32, _TENSOR),
            chunk=fields.number("chunk", 32, _CHUNK),
        )

    def _datagram(self, header: Header, job: Job, fields: _Fields) -> bytes:
        words = fields.text("words")
        if words is None and header.kind == Kind.DATA:
            raise self._line.error("DATA needs words=")
        datagram = header.pack() + (b"" if words is None else self._words(words, job.lanes))
        if (size := fields.text("bytes")) is None:
            return datagram
        length = _number(self._line, size, DATAGRAM_BYTES_MAX, "bytes")
        return datagram[:length].ljust(length, b"\0")

    def _words(self, text: str, lanes: int) -> bytes:
        form, _, values = text.partition(":")
        if form not in _WORD_FORMS:
            raise self._line.error(f"words: '{text}' begins with none of: {', '.join(_WORD_FORMS)}")
        separator, count, make = _WORD_FORMS[form]
        numbers = [_number(self._line, value, _WORD_MASK, "words") for value in values.split(separator)]
        if len(numbers) > lanes or (count is not None and len(numbers) != count):
            raise self._line.error(f"words: {form} has {count or f'up to {lanes}'} numbers, not {len(numbers)}")
        return struct.pack(f"!{lanes}I", *make(numbers, lanes))

    def _expectation(self, outcome: Sequence[str], sender: Member, header: Header | None) -> Expectation:
        verdict = next((verdict for verdict in Verdict if verdict.value == outcome[0]), None)
        if verdict is None:
            raise self._line.error(f"'{outcome[0]}' is no verdict: {', '.join(v.value for v in Verdict)}")
        if header is None and verdict is not Verdict.DROP:
            raise self._line.error("a RAW datagram can only be dropped")
        if verdict is Verdict.DROP:
            if len(outcome) != 2 or outcome[1] not in DROP_REASONS:
                raise self._line.error(f"expected 'drop' and one of: {', '.join(sorted(DROP_REASONS))}")
            return Expectation(verdict, outcome[1], (), b"")
        if verdict in (Verdict.HOLD, Verdict.PASS):
            if len(outcome) != 1:
                raise self._line.error(f"nothing stands behind '{verdict.value}'")
            return Expectation(verdict, "admitted" if verdict is Verdict.HOLD else "", (), b"")
        assert header is not None
        if verdict is Verdict.MISSING:
            if len(outcome) != 1 or header.kind != Kind.QUESTION:
                raise self._line.error("'missing' answers a QUESTION, and nothing stands behind it")
            return Expectation(
                verdict, "resent", (sender,), replace(header, kind=Kind.MISSING, flags=0, exponent=0).pack()
            )
        if verdict in (Verdict.UP, Verdict.AGAIN):
            receivers = (Member(sender.job, PARENT),)
            reason = "admitted" if verdict is Verdict.UP else "resent"
            return Expectation(verdict, reason, receivers, self._raised(header, self._jobs[sender.job], outcome[1:]))
        datagram = self._result(header, self._jobs[sender.job], outcome[1:])
        if verdict is Verdict.MULTICAST:
            return Expectation(verdict, "admitted", self._jobs[sender.job].members, datagram)
        return Expectation(verdict, "resent", (sender,), datagram)

    def _raised(self, header: Header, job: Job, tokens: Sequence[str]) -> bytes:
        if job.parent is None or not tokens or tokens[0] not in _KINDS:
            raise self._line.error("expected 'up' or 'again' and a kind, of a job that has a parent")
        fields = _Fields(self._line, tokens[1:])
        words = fields.text("words")
        raised = replace(
            header,
            version=WIRE_VERSION,
            kind=_KINDS[tokens[0]],
            worker=job.parent,
            flags=fields.number("flags", 8, 0),
            exponent=fields.number("exponent", 8, 0),
        )
        fields.end()
        if (raised.kind == Kind.DATA) != (words is not None):
            raise self._line.error("DATA has words=, and nothing else that goes up")
        return raised.pack() + (b"" if words is None else self._words(words, job.lanes))

    def _result(self, header: Header, job: Job, tokens: Sequence[str]) -> bytes:
        bare = "bare" in tokens
        fields = _Fields(self._line, [token for token in tokens if token != "bare"])
        words = fields.text("words")
        if bare == (words is not None):
            raise self._line.error("a RESULT has either words=... or is 'bare'")
        echoed = {name: fields.number(name, bits, getattr(header, name)) for name, bits in _ECHOED.items()}
        result = replace(
            header,
            version=WIRE_VERSION,
            kind=Kind.RESULT,
            flags=fields.number("flags", 8, 0),
            exponent=fields.number("exponent", 8, 0),
            **echoed,
        )
        fields.end()
        return result.pack() + (b"" if words is None else self._words(words, job.lanes))


def _owner(job: Job, slot: int) -> int:
    """Returns the thread that owns a slot; for a slot beyond the lease, the last thread."""
    return min(slot // (job.slots // job.threads), job.threads - 1)


_WORD_FORMS: Mapping[str, tuple[str, int | None, Callable[[list[int], int], list[int]]]] = {
    "fill": (":", 1, lambda values, lanes: values * lanes),
    "ramp": (":", 2, lambda values, lanes: [(values[0] + values[1] * lane) & _WORD_MASK for lane in range(lanes)]),
    "alternate": (":", 2, lambda values, lanes: list(islice(cycle(values), lanes))),
    "list": (",", None, lambda values, lanes: values + [0] * (lanes - len(values))),
}
"""Notations for a packet's words: the separator, the number of values, and the function that makes the words."""
