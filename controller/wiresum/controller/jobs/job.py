"""A job as data: its workers, what it has at switches, and a move under way. `TRANSITIONS` and `LEASE_FOLLOWING` have
every way from one state to another. Pure.

A job:
forming    workers are asking; no switch knows of it yet
queued     all have asked; it waits for slots
admitting  slots are leased, and their switches are being told
running    all have their grants
moving     its workers halt, its switches are told to forget it, and it waits for another lease (moving.py)
ending     its switches are told to forget it, and its workers why it ended
gone       the name, the number and the leases are free

A lease, of which a job has one all its life, unless it moves: then it waits for the next, and what it had is released:
wanted     the job forms, or the lease waits in the queue (waiting.py)
admitting  it has its slots, and its switches are being told
held       all its switches have it
released   its switches are told to forget it; what they have forgotten is free
"""

from __future__ import annotations

import enum
import hmac
import logging
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from wiresum import join
from wiresum.controller.driver import Endpoint
from wiresum.controller.jobs.positions import POSITION_BYTES, ROLE_BYTES
from wiresum.controller.jobs.tree import Node, Offer, in_words

log = logging.getLogger(__name__)

TOKEN_BYTES = 16
"""Of a member's token: nobody guesses it."""
RUNS_MAX = 16
"""Of ranks in a row, named in a text."""


def draw_token() -> str:
    """A member's."""
    return secrets.token_hex(TOKEN_BYTES)


class State(enum.Enum):
    FORMING = "forming"
    QUEUED = "queued"
    ADMITTING = "admitting"
    RUNNING = "running"
    MOVING = "moving"
    ENDING = "ending"
    GONE = "gone"


class Event(enum.Enum):
    COMPLETED = "the last worker has asked"
    GIVEN_UP = "a worker went away before the job began, or the time was up, or an operator ended it"
    LEASED = "it has its slots"
    ADMITTED = "all its switches have the job"
    MOVES = "its workers are told to halt"
    MOVED = "it has another lease, and its workers are told"
    ENDED = "a worker was lost or ended the job, or all have left, or a switch does not take it, or was lost"
    CLEARED = "its switches have forgotten the job, and the workers know"


TRANSITIONS: Mapping[tuple[State, Event], State] = {
    (State.FORMING, Event.COMPLETED): State.QUEUED,
    (State.FORMING, Event.GIVEN_UP): State.GONE,
    (State.QUEUED, Event.LEASED): State.ADMITTING,
    (State.QUEUED, Event.GIVEN_UP): State.GONE,
    (State.ADMITTING, Event.ADMITTED): State.RUNNING,
    (State.ADMITTING, Event.ENDED): State.ENDING,
    (State.RUNNING, Event.MOVES): State.MOVING,
    (State.RUNNING, Event.ENDED): State.ENDING,
    (State.MOVING, Event.MOVED): State.RUNNING,
    (State.MOVING, Event.ENDED): State.ENDING,
    (State.ENDING, Event.CLEARED): State.GONE,
}


class Presence(enum.Enum):
    WAITING = "waiting"
    """It has asked."""
    GRANTED = "granted"
    """It has its grant, but no heartbeat came yet."""
    ATTENDING = "attending"
    LEFT = "left"
    LOST = "lost"


@dataclass(eq=False)
class Worker:
    """One member of one job. Compared by identity."""

    job: Job = field(repr=False)
    rank: int
    endpoint: Endpoint
    threads_max: int
    lanes_max: int
    slots_wanted: int
    host_name: str
    process_id: int
    attempt: str = field(repr=False)
    asked_at: float
    deadline: float
    """Until when it waits for its grant."""
    token: str = field(default_factory=draw_token, repr=False)
    presence: Presence = Presence.WAITING
    agreed: dict[str, str] = field(default_factory=dict, repr=False)
    """Its settings that must be those of the others, by name."""
    can_move: bool = False
    """It says so."""
    positions: bytes = field(default=b"", repr=False)
    """Of a job that goes on, until it has its grant: where it has halted, as in join.proto."""
    roles: bytes = field(default=b"", repr=False)
    """And what it repeats first."""
    admission: join.Admission = join.Admission.QUEUE
    """Whether the job may wait for slots, and whether it is its program's first."""
    call: int = 0
    """Number of its newest Join; older ones do not count."""
    away_since: float | None = None
    """Since when its Join is broken off; it may ask again."""
    heard_waiting: str = ""
    """What it waits for, as it was last told."""
    stream: int = 0
    """Number of its newest Attend stream."""
    attended_at: float = 0.0
    """When that stream began."""
    heard_at: float = 0.0
    round_newest: int = 0
    """As it says itself: no more than a sign of life."""
    tensor_newest: int | None = None
    """The tag of the latest collective that it has begun, as it says itself; None: it has said of none."""
    switch_name: str = ""
    """Its switch, once the job has slots."""
    number: int = 0
    """Of its host at that switch; its rank if the job has one switch, and no workers that share a stream."""
    broken_at: float | None = None
    """Since when its stream is broken."""
    broken_in_silence: bool = False
    """It had been silent for a while when its stream broke."""
    contributions: int | None = None
    """The switch's newest count of its packets; None: not asked since the last heartbeat."""
    counted_at: float = 0.0
    """When this count last grew."""
    said_first_at: float = 0.0
    """When the switch first gave this count ..."""
    said_last_at: float = 0.0
    """... and when it last did: no packet came in between."""
    told: bool = False
    certificate: str = ""
    """The serial of the newest one; empty: none."""
    holder: str = ""
    """The name in that certificate."""
    certificate_expires_at: float = 0.0
    """When that of its connection expires, in Unix time; 0: unknown, or it has none."""
    called_from: str = ""
    """Where its first Join came from; empty: from this host, or unknown."""
    host_id: bytes = b""
    """Workers of one job with the same one, and the same address, share a stream; empty: it shares its own with
    nobody."""

    def __str__(self) -> str:
        return join.describe_peer(self.peer())

    def peer(self) -> join.Peer:
        return join.Peer(
            rank=self.rank,
            host_name=self.host_name,
            process_id=self.process_id,
            address=self.endpoint.address,
            called_from=self.called_from,
            certificate=self.holder,
        )

    def hang_up(self, now: float) -> None:
        """Its Join broke off. It says its positions again if it asks again."""
        self.away_since = now
        if self.job.waits:
            self.positions = self.roles = b""

    def come_back(self, positions: bytes) -> None:
        self.away_since = None
        shape = self.job.terms.shape
        if not self.positions and shape is not None and len(positions) == shape.slots * POSITION_BYTES:
            self.positions = positions

    def is_attempt(self, attempt: str) -> bool:
        """Is it this very worker that asks again?"""
        return bool(self.attempt) and same_secret(self.attempt, attempt)


@dataclass(eq=False)
class GoingOn:
    """From when a job has moved until all its workers have gone on."""

    at: float
    roles: dict[int, bytes]
    """By rank, of those that have not gone on yet, as far as is known: what each repeats first."""
    told_on: dict[int, int] = field(default_factory=dict)
    """By rank: the number of the stream on which it was told."""


@dataclass(eq=False)
class Members:
    """Of one job."""

    world_size: int
    workers: dict[int, Worker] = field(default_factory=dict)
    """By rank: those that have asked."""
    left_first: Worker | None = None
    left_at: float = 0.0
    may_be_halted: set[int] = field(default_factory=set)
    """Ranks that the service before may have told to halt, and that have not said anything yet."""
    going_on: GoingOn | None = None
    """The job has moved, and not all of them have gone on."""

    def missing(self, *, without: Worker | None = None) -> str:
        """Which ranks have not asked; `without` counts as one."""
        there = {rank for rank, worker in self.workers.items() if worker is not without}
        ranks = [rank for rank in range(self.world_size) if rank not in there]
        return f"rank{'s' if len(ranks) > 1 else ''} {_runs(ranks)} of {self.world_size}"

    @property
    def further(self) -> bool:
        """It leaves a part of each switch to jobs that are their program's first."""
        return any(worker.admission == join.Admission.FURTHER for worker in self.workers.values())

    def is_complete(self) -> bool:
        """All have asked."""
        return len(self.workers) == self.world_size

    def is_whole(self) -> bool:
        """All have asked, and wait."""
        if len(self.workers) != self.world_size:
            return False
        for worker in self.workers.values():  # noqa: SIM110 - `all` takes three times as long, and queues are long
            if worker.away_since is not None:
                return False
        return True

    def all_left(self) -> bool:
        return all(worker.presence is Presence.LEFT for worker in self.workers.values())

    def note_left(self, worker: Worker, now: float) -> None:
        worker.presence = Presence.LEFT
        if self.left_first is None:
            self.left_first, self.left_at = worker, now


class Shape(NamedTuple):
    """Of a lease that a job goes on at: as of the one that it had."""

    slots: int
    threads: int
    lanes: int

    def __str__(self) -> str:
        return f"{self.slots} slots, {self.threads} threads, packets of {self.lanes} words"


class Wants(enum.Enum):
    """What a lease in the queue waits for."""

    ROOM = "slots, a job number, or room in the tables, at all switches of a tree that covers its hosts"
    TURN = "a job that has waited longer"
    WORKER = "one of its workers, whose connection broke, to ask again"
    SWITCH = "switches that take jobs"
    QUOTA = "other jobs of its tenant to end"


class LeaseState(enum.Enum):
    WANTED = "wanted"
    ADMITTING = "admitting"
    HELD = "held"
    RELEASED = "released"


LEASE_FOLLOWING: Mapping[LeaseState, frozenset[LeaseState]] = {
    LeaseState.WANTED: frozenset({LeaseState.ADMITTING}),
    LeaseState.ADMITTING: frozenset({LeaseState.HELD, LeaseState.RELEASED}),
    LeaseState.HELD: frozenset({LeaseState.RELEASED}),
    LeaseState.RELEASED: frozenset(),
}


@dataclass(eq=False)
class Lease:
    """Compared by identity."""

    job: Job = field(repr=False)
    shape: Shape | None = None
    """The job has halted, and goes on once it has such a lease; None: any will do, as the job begins there."""
    state: LeaseState = LeaseState.WANTED
    offers: tuple[Offer, ...] = ()
    """Where it may get slots: at most one in each tree of the configuration."""
    unfit: tuple[str, ...] = ()
    """Of one to move to: why other trees can never have it."""
    kind: int = 0
    """Leases of one kind lack the same: waiting.py."""
    ticket: int = 0
    """Orders jobs of the same priority in the queue."""
    overtaken: int = 0
    """How many later ones got slots that it might have used."""
    wants: Wants = Wants.ROOM
    """Why it has no slots yet."""
    nodes: dict[str, Node] = field(default_factory=dict)
    """Its switches by name, the root first, once it has slots."""
    number: int = 0
    """At all its switches, until the last one has forgotten it."""
    key: int = field(default=0, repr=False)
    """Of its packets; drawn when it gets its slots."""
    keys_reserved: int = 0
    """How many keys of the sequence were reserved then; 0: it was restored."""
    slots: int = 0
    """At each of its switches; 0: it has none yet."""
    threads: int = 0
    port_offset: int = 0
    """At all of its switches: thread t talks to their port `port_offset + t`."""
    lanes: int = 0

    def __str__(self) -> str:
        return str(self.job) if self.is_current else f"a lease of {self.job}"

    @property
    def is_current(self) -> bool:
        """Is it what its job has? If not, the job is to move to it, or does not use it any more."""
        return self.job.lease is self

    @property
    def is_on_one_host(self) -> bool:
        """All its workers share one stream, and no packet of it leaves their host."""
        return len(self.nodes) == 1 and len(self.root.branch.hosts) == 1 and self.job.members.world_size > 1

    @property
    def root(self) -> Node:
        """Of one that has slots."""
        return next(iter(self.nodes.values()))

    @property
    def switch_name(self) -> str:
        """The root's; empty: it has no slots."""
        return next(iter(self.nodes), "")

    def sharing_of(self, worker: Worker) -> tuple[int, ...]:
        """The ranks that share a stream with this worker, its own among them; empty: none does."""
        node = self.nodes.get(worker.switch_name)
        host = node.branch.hosts[worker.number] if node is not None else ()
        return host if len(host) > 1 else ()

    def where(self) -> str:
        """Its switches, in words."""
        return in_words(self.nodes)

    def step(self, state: LeaseState) -> None:
        assert state in LEASE_FOLLOWING[self.state], f"{self} is {self.state.value}: {state.value}"
        self.state = state


@dataclass(frozen=True)
class Asker:
    """Who calls Join, as far as the service knows."""

    name: str = ""
    """For operators: the certificate's name, and the address."""
    address: str = ""
    """Empty: this host."""
    certificate: str = ""
    """Its serial."""
    holder: str = ""
    """The name in it."""
    own_account: bool = False
    """The certificate names no tenant, and so is one by its own name."""
    expires_at: float = 0.0
    """When the certificate does, in Unix time; 0: unknown, or there is none."""


NOBODY = Asker()


@dataclass(frozen=True)
class Terms:
    """What its first worker, or its operator, has said of a job."""

    priority: int = 0
    reserved: bool = False
    """An operator created it, and set its terms."""
    slots_reserved: int = 0
    """0: the operator did not say."""
    job_token: str = field(default="", repr=False)
    """Workers must show it; empty: they need not."""
    within: str = ""
    """An operator created it for this switch, or those below it; empty: for any."""
    asker: Asker = NOBODY
    """Its first worker."""
    shape: Shape | None = None
    """Its workers have halted elsewhere, and go on here with such a lease; None: it begins here."""
    resumed_id: bytes = field(default=b"", repr=False)
    """Of a job that goes on: as its workers say; they prove with it that it is theirs."""


class Cause(enum.Enum):
    SWITCH_LOST = "switch_lost"
    SWITCH_RESTARTED = "switch_restarted"
    SWITCH_DRAINED = "switch_drained"
    INTERRUPTED = "interrupted"
    """The service before has ended in the middle of a move, or a worker has halted because it had lost the service."""


@dataclass(eq=False)
class Move:
    """A move under way, from its cause until the workers are told their new lease."""

    cause: Cause
    reason: str
    """A clause for people."""
    since: float
    lease: Lease | None = None
    """The job's next one: in the queue, being admitted, or there, as its state says; None: it is not asked for."""
    obstacle: str = ""
    """Why there is no such lease."""
    again_at: float = 0.0
    """When another one may be asked for."""
    halting_since: float = 0.0
    """Since when they are to halt ..."""
    told_at: float = 0.0
    """... and when they were told so: once that was on disk."""
    positions: dict[int, bytes] = field(default_factory=dict)
    """By rank, of those that have halted, as they say them."""


@dataclass(eq=False)
class Watch:
    """When a job that runs was last seen to do something."""

    progress_at: float = 0.0
    """When a worker's rounds last moved, which takes a packet of every worker."""
    active_at: float | None = None
    """When its root was last seen to have summed something."""
    results: int | None = None
    """The root's newest count."""
    count_asked_at: float = 0.0
    attend_s_max: float = 0.0
    """How long a granted worker may take to its first heartbeat."""
    restored: bool = False
    """It ran before the service was started."""

    def note_progress(self, now: float) -> None:
        self.progress_at = now


@dataclass(eq=False)
class Job:
    """Each field has one writer, a module of this package, besides the methods here; so have those of its parts."""

    name: str
    created_at: float
    terms: Terms
    members: Members
    tenant: str = ""
    candidates: frozenset[str] = frozenset()
    """Names of the switches that all its workers hang on, or below."""
    complete_by: float = math.inf
    """When it gives up if a worker is still missing."""
    state: State = State.FORMING
    lease: Lease = field(init=False)
    """What it has, or waits for."""
    waiting_said_at: float | None = None
    move_number: int = 0
    """Of its newest move; 0: it has never moved."""
    move: Move | None = None
    """It moves, or looks for a place to move to."""
    waits_to_move_since: float | None = None
    """A worker has halted by itself, and moves of its tenant's jobs have been asked for too often (asked_moves.py)."""
    watch: Watch = field(default_factory=Watch)
    unsaved: bool = False
    """A worker has left, or has another certificate, and that is not on disk yet."""
    tick_fails: bool = False
    """A bug keeps it from being watched."""
    ended: join.JobEnded | None = None
    ended_at: float = 0.0
    """Since when its workers may hear that, from this service."""

    def __post_init__(self) -> None:
        self.lease = Lease(self, self.terms.shape)

    def __str__(self) -> str:
        return f"job {self.name!r}"

    @property
    def waits(self) -> bool:
        """For workers or slots."""
        return self.state in (State.FORMING, State.QUEUED)

    @property
    def has_begun(self) -> bool:
        """Its workers have their grants, and it has not ended."""
        return self.state in (State.RUNNING, State.MOVING)

    @property
    def positions_bytes(self) -> int:
        """What its workers say before it goes on, and are told: so much at most."""
        shape = self.terms.shape
        return self.members.world_size * shape.slots * (POSITION_BYTES + ROLE_BYTES) if shape is not None else 0

    def step(self, event: Event, why: str = "") -> None:
        assert (self.state, event) in TRANSITIONS, f"{self} is {self.state.value}: {event.value}"
        self.state = TRANSITIONS[self.state, event]
        if self.state in (State.ENDING, State.GONE):
            self.move = self.members.going_on = None
            for worker in self.members.workers.values():  # they are remembered for a while longer than what they said
                worker.positions = worker.roles = b""
        log.info("%s is %s: %s", self, self.state.value, why or event.value)

    def forgive(self, stalled: float, now: float) -> None:
        """The service stood still for so many seconds: nobody was silent meanwhile, and no deadline passed."""
        self.complete_by += stalled
        self.ended_at += stalled
        self.members.left_at += stalled
        self.watch.progress_at += stalled
        if self.watch.active_at is not None:
            self.watch.active_at += stalled
        if self.waits_to_move_since is not None:
            self.waits_to_move_since += stalled
        if self.members.going_on is not None:
            self.members.going_on.at += stalled
        if (move := self.move) is not None:
            move.since += stalled
            move.again_at += stalled
            move.halting_since += stalled
            move.told_at += stalled
        for worker in self.members.workers.values():
            worker.heard_at += stalled
            worker.counted_at += stalled
            worker.deadline += stalled
            if worker.broken_at is not None:
                worker.broken_at, worker.broken_in_silence = now, True
            if worker.away_since is not None:
                worker.away_since += stalled


def _runs(numbers: Sequence[int]) -> str:
    """Rising numbers for people: "0, 2-31"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    said = [f"{run[0]}{'-' if run[-1] > run[0] + 1 else ', '}{run[-1]}" if run[1:] else f"{run[0]}" for run in runs]
    return ", ".join(said[:RUNS_MAX]) + (", and others" if len(said) > RUNS_MAX else "")


def same_secret(a: str, b: str) -> bool:
    """In constant time."""
    return hmac.compare_digest(a.encode(), b.encode())
