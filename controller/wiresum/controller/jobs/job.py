"""A job as data: its workers, its leases at switches, and a move under way. `TRANSITIONS` and `LEASE_FOLLOWING` hold
every allowed change of state. Pure.

States of a job:
    forming    workers are asking; no switch knows of the job yet
    queued     all have asked; the job waits for slots
    admitting  slots are leased, and the job is being installed in its switches
    running    all have their grants
    moving     workers halt, switches are told to forget the job, and it waits for another lease (moving.py)
    ending     switches are told to forget the job, and workers why it ended
    gone       the name, the number and the leases are free

A job has one lease all its life, unless it moves: then it waits for the next one, and the former one is released.
States of a lease:
    wanted     the job forms, or the lease waits in the queue (waiting.py)
    admitting  the lease has its slots, and is being installed in its switches
    held       all its switches have the lease
    released   its switches are told to forget the lease; what they have forgotten is free
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
"""Random bytes of a member's token, enough that nobody guesses one."""
RUNS_MAX = 16
"""How many runs of consecutive ranks a text names."""


def draw_token() -> str:
    """Returns a new member token."""
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
    """The worker has asked to join."""
    GRANTED = "granted"
    """The worker has its grant, but no heartbeat came yet."""
    ATTENDING = "attending"
    LEFT = "left"
    LOST = "lost"


@dataclass(eq=False)
class Worker:
    """A member of one job. Compared by identity."""

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
    """Until when the worker waits for its grant."""
    token: str = field(default_factory=draw_token, repr=False)
    presence: Presence = Presence.WAITING
    agreed: dict[str, str] = field(default_factory=dict, repr=False)
    """Settings that must be equal at all workers, by name."""
    positions: bytes = field(default=b"", repr=False)
    """Where the worker has halted, as in join.proto, if its job continues after losing its lease; empty once it has its
    grant."""
    roles: bytes = field(default=b"", repr=False)
    """For each slot, what the worker resends before it continues."""
    admission: join.Admission = join.Admission.QUEUE
    """Whether the job may wait for slots, and whether it is its program's first."""
    call: int = 0
    """Number of the worker's newest Join; older calls do not count."""
    away_since: float | None = None
    """Since when the worker's Join is broken off; it may ask again."""
    heard_waiting: str = ""
    """The reason for waiting that the worker was told last."""
    stream: int = 0
    """Number of the worker's newest Attend stream."""
    attended_at: float = 0.0
    """When the newest Attend stream began."""
    heard_at: float = 0.0
    round_newest: int = 0
    """The newest round, as the worker itself reports; used as a sign of life only."""
    tensor_newest: int | None = None
    """Tag of the latest collective that the worker has begun, as it reports; None: it has reported none."""
    sums_wrong: int | None = None
    """Wrong sums that the worker has had so far, as it reports; None: it has reported nothing to this service."""
    switch_name: str = ""
    """The worker's switch, once the job has slots."""
    number: int = 0
    """Number of the worker's host at its switch. If the job has one switch and no workers that share a stream, this is
    the rank."""
    broken_at: float | None = None
    """Since when the worker's Attend stream is broken; None: it stands."""
    broken_in_silence: bool = False
    """True if the worker had been silent for a while when its stream broke."""
    contributions: int | None = None
    """The switch's newest count of the worker's packets; None: not asked since the last heartbeat."""
    counted_at: float = 0.0
    """When `contributions` last grew."""
    said_first_at: float = 0.0
    """When the switch first gave this count."""
    said_last_at: float = 0.0
    """When the switch last gave this count: between the two no packet came in."""
    told: bool = False
    certificate: str = ""
    """Serial of the worker's newest certificate; empty: it has none."""
    holder: str = ""
    """Name in the worker's certificate."""
    certificate_expires_at: float = 0.0
    """When the certificate of the worker's connection expires, in Unix time; 0: unknown, or there is none."""
    called_from: str = ""
    """Address of the worker's first Join; empty: this host, or unknown."""
    host_id: bytes = b""
    """Workers of one job with equal `host_id` and address share a stream; empty: the worker shares with nobody."""
    global_rank: int | None = None
    """The worker's rank in its whole program, as the worker says; None: equal to `rank`."""

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
            global_rank=self.global_rank,
        )

    def hang_up(self, now: float) -> None:
        """Notes that the worker's Join broke off. If it asks again, it sends its positions again."""
        self.away_since = now
        if self.job.waits:
            self.positions = self.roles = b""

    def come_back(self, positions: bytes) -> None:
        self.away_since = None
        shape = self.job.terms.shape
        if not self.positions and shape is not None and len(positions) == shape.slots * POSITION_BYTES:
            self.positions = positions

    def is_attempt(self, attempt: str) -> bool:
        """True if this very worker asks again."""
        return bool(self.attempt) and same_secret(self.attempt, attempt)


@dataclass(eq=False)
class GoingOn:
    """Exists from when a job has moved until all its workers have continued."""

    at: float
    roles: dict[int, bytes]
    """By rank, what each worker resends first, for those that have not continued yet, as far as is known."""
    told_on: dict[int, int] = field(default_factory=dict)
    """For each rank, the number of the stream on which the worker was told to continue."""


@dataclass(eq=False)
class Members:
    """The workers of one job."""

    world_size: int
    workers: dict[int, Worker] = field(default_factory=dict)
    """The workers that have asked, by rank."""
    left_first: Worker | None = None
    left_at: float = 0.0
    may_be_halted: set[int] = field(default_factory=set)
    """Ranks that the former service may have told to halt, and that have not said anything yet."""
    going_on: GoingOn | None = None
    """Set while the job has moved and not all workers have continued."""
    refused: tuple[int, str] | None = None
    """The rank that was refused last, and in words from where and why."""

    def missing(self, *, without: Worker | None = None) -> str:
        """Names the ranks that have not asked, in words, and why one of them was refused; `without` counts as
        missing."""
        there = {rank for rank, worker in self.workers.items() if worker is not without}
        ranks = [rank for rank in range(self.world_size) if rank not in there]
        why = f" ({self.refused[1]})" if self.refused is not None and self.refused[0] in ranks else ""
        return f"rank{'s' if len(ranks) > 1 else ''} {_runs(ranks)} of {self.world_size}{why}"

    @property
    def further(self) -> bool:
        """True if the job leaves a part of each switch to jobs that are their program's first."""
        return any(worker.admission == join.Admission.FURTHER for worker in self.workers.values())

    def is_complete(self) -> bool:
        """True if all workers have asked."""
        return len(self.workers) == self.world_size

    def is_whole(self) -> bool:
        """True if all workers have asked and none of their calls is broken off."""
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
    """Sizes that the next lease of a job must share with its former one."""

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
    """Slots, a number and a key at the switches of one tree, or the wish for them. Compared by identity."""

    job: Job = field(repr=False)
    shape: Shape | None = None
    """Sizes that a halted job needs in order to continue; None: any will do, as the job begins with this lease."""
    state: LeaseState = LeaseState.WANTED
    offers: tuple[Offer, ...] = ()
    """Where the lease may get slots: at most one offer in each tree of the configuration."""
    unfit: tuple[str, ...] = ()
    """For a lease to move to: why other trees can never have it."""
    kind: int = 0
    """Leases of one kind lack the same resources: waiting.py."""
    ticket: int = 0
    """Orders jobs of equal priority in the queue."""
    overtaken: int = 0
    """How many later leases got slots that this one might have used."""
    wants: Wants = Wants.ROOM
    """Why the lease has no slots yet."""
    nodes: dict[str, Node] = field(default_factory=dict)
    """The switches of the lease by name, the root first; empty until it has slots."""
    number: int = 0
    """Job number at all switches of the lease, until the last one has forgotten it."""
    key: int = field(default=0, repr=False)
    """Key of the job's packets; drawn when the lease gets its slots."""
    keys_reserved: int = 0
    """How many keys of the sequence were reserved when `key` was drawn; 0: the lease was restored."""
    slots: int = 0
    """Slots at each switch of the lease; 0: it has none yet."""
    threads: int = 0
    port_offset: int = 0
    """At each switch, thread t sends to port `port_offset + t`, counted from the switch's base port."""
    lanes: int = 0

    def __str__(self) -> str:
        return str(self.job) if self.is_current else f"a lease of {self.job}"

    @property
    def is_current(self) -> bool:
        """True if this is the lease that the job has. If not, the job is to move to it, or does not use it any more."""
        return self.job.lease is self

    @property
    def is_over(self) -> bool:
        """True if no job needs this lease any more, and its switches have only to forget it. A job that moves needs the
        lease that it has until it has the next one, since it counts in its tenant's quota."""
        return self.state is LeaseState.RELEASED and not (self.is_current and self.job.state is State.MOVING)

    @property
    def is_on_one_host(self) -> bool:
        """True if all workers share one stream, so that no packet of the job leaves their host."""
        return len(self.nodes) == 1 and len(self.root.branch.hosts) == 1 and self.job.members.world_size > 1

    @property
    def root(self) -> Node:
        """The root of a lease that has slots."""
        return next(iter(self.nodes.values()))

    @property
    def switch_name(self) -> str:
        """Name of the root switch; empty: the lease has no slots."""
        return next(iter(self.nodes), "")

    def sharing_of(self, worker: Worker) -> tuple[int, ...]:
        """The ranks that share a stream with this worker, its own among them; empty: none does."""
        node = self.nodes.get(worker.switch_name)
        host = node.branch.hosts[worker.number] if node is not None else ()
        return host if len(host) > 1 else ()

    def where(self) -> str:
        """The names of the switches, in words."""
        return in_words(self.nodes)

    def step(self, state: LeaseState) -> None:
        assert state in LEASE_FOLLOWING[self.state], f"{self} is {self.state.value}: {state.value}"
        self.state = state


@dataclass(frozen=True)
class Asker:
    """The caller of a Join, as far as the service knows."""

    name: str = ""
    """The certificate's name and the address, for operators."""
    address: str = ""
    """Address of the caller; empty: this host."""
    certificate: str = ""
    """Serial of the caller's certificate; empty: none."""
    holder: str = ""
    """Name in the certificate."""
    own_account: bool = False
    """True if the certificate names no tenant, so that its own name counts as the tenant."""
    expires_at: float = 0.0
    """When the certificate expires, in Unix time; 0: unknown, or there is none."""


NOBODY = Asker()


@dataclass(frozen=True)
class Terms:
    """What a job's first worker, or its operator, has said of the job."""

    priority: int = 0
    reserved: bool = False
    """True if an operator created the job and set its terms."""
    slots_reserved: int = 0
    """Slots that the operator reserved; 0: the operator did not say."""
    job_token: str = field(default="", repr=False)
    """Token that workers must show; empty: none is needed."""
    within: str = ""
    """Name of the switch, with those below, that an operator created the job for; empty: any switch will do."""
    asker: Asker = NOBODY
    """The caller that started the job as its first worker."""
    shape: Shape | None = None
    """Sizes of the lease that a job needs whose workers have halted elsewhere and continue here; None: the job begins
    here."""
    resumed_id: bytes = field(default=b"", repr=False)
    """Id of a continued job, as its workers say; with it they prove that the job is theirs. Empty: the job begins
    here."""


class Cause(enum.Enum):
    SWITCH_LOST = "switch_lost"
    SWITCH_RESTARTED = "switch_restarted"
    SWITCH_DRAINED = "switch_drained"
    INTERRUPTED = "interrupted"
    """The former service ended in the middle of a move, or a worker has halted because it had lost the service."""


@dataclass(eq=False)
class Move:
    """A move under way, from its cause until the workers are told their new lease."""

    cause: Cause
    reason: str
    """Why the job moves, a clause for people."""
    since: float
    lease: Lease | None = None
    """The job's next lease: queued, being admitted, or held, as its state says; None: no lease is asked for now."""
    obstacle: str = ""
    """Why the job has no next lease."""
    again_at: float = 0.0
    """When another lease may be asked for."""
    halting_since: float = 0.0
    """Since when the workers are to halt."""
    told_at: float = 0.0
    """When the workers were told to halt, which is once the move was on disk."""
    positions: dict[int, bytes] = field(default_factory=dict)
    """For each rank that has halted, its positions as the worker says them."""


@dataclass(eq=False)
class Watch:
    """When a running job was last seen to do something."""

    progress_at: float = 0.0
    """When a worker's rounds last advanced, which takes a packet of every worker."""
    active_at: float | None = None
    """When the root was last seen to have summed something."""
    results: int | None = None
    """The root's newest count of results."""
    count_asked_at: float = 0.0
    attend_s_max: float = 0.0
    """How long a granted worker may take until its first heartbeat."""
    restored: bool = False
    """True if the job ran before the service was started."""

    def note_progress(self, now: float) -> None:
        self.progress_at = now


@dataclass(eq=False)
class Job:
    """A job. Each field has one writer, a module of this package, besides the methods here; the fields of its parts
    likewise."""

    name: str
    created_at: float
    terms: Terms
    members: Members
    tenant: str = ""
    candidates: frozenset[str] = frozenset()
    """Names of the switches that all the job's workers are attached to, directly or through switches below."""
    complete_by: float = math.inf
    """When the job gives up if a worker is still missing."""
    state: State = State.FORMING
    lease: Lease = field(init=False)
    """The lease that the job has, or waits for."""
    waiting_said_at: float | None = None
    move_number: int = 0
    """Number of the job's newest move; 0: it has never moved."""
    move: Move | None = None
    """Set while the job moves, or looks for a lease to move to."""
    waits_to_move_since: float | None = None
    """Since when a worker has halted by itself while the tenant's budget of moves is used up (asked_moves.py)."""
    watch: Watch = field(default_factory=Watch)
    unsaved: bool = False
    """True if a worker has left, or has another certificate, and the disk does not have this change yet."""
    tick_fails: bool = False
    """True if a bug keeps the job from being watched."""
    ended: join.JobEnded | None = None
    ended_at: float = 0.0
    """Since when the job's workers may hear from this service that it has ended."""

    def __post_init__(self) -> None:
        self.lease = Lease(self, self.terms.shape)

    def __str__(self) -> str:
        return f"job {self.name!r}"

    @property
    def waits(self) -> bool:
        """True while the job waits for workers or slots."""
        return self.state in (State.FORMING, State.QUEUED)

    @property
    def has_begun(self) -> bool:
        """True if the workers have their grants and the job has not ended."""
        return self.state in (State.RUNNING, State.MOVING)

    @property
    def positions_bytes(self) -> int:
        """The most bytes that all workers of a continued job send and receive before they continue; 0 for a new job."""
        shape = self.terms.shape
        return self.members.world_size * shape.slots * (POSITION_BYTES + ROLE_BYTES) if shape is not None else 0

    def step(self, event: Event, why: str = "") -> None:
        assert (self.state, event) in TRANSITIONS, f"{self} is {self.state.value}: {event.value}"
        self.state = TRANSITIONS[self.state, event]
        if self.state in (State.ENDING, State.GONE):
            self.move = self.members.going_on = None
            for (
                worker
            ) in self.members.workers.values():  # members are remembered for a while longer than their positions
                worker.positions = worker.roles = b""
        log.info("%s is %s: %s", self, self.state.value, why or event.value)

    def forgive(self, stalled: float, now: float) -> None:
        """Shifts all deadlines by the seconds that the service stood still: nobody was silent meanwhile, and no
        deadline passed."""
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
    """Rising numbers for people, as "0, 2-31"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    said = [f"{run[0]}{'-' if run[-1] > run[0] + 1 else ', '}{run[-1]}" if run[1:] else f"{run[0]}" for run in runs]
    return ", ".join(said[:RUNS_MAX]) + (", and others" if len(said) > RUNS_MAX else "")


def same_secret(a: str, b: str) -> bool:
    """Compares two secrets in constant time."""
    return hmac.compare_digest(a.encode(), b.encode())
