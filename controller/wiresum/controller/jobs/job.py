"""A job and its workers, as data, and the states that it may go through. Pure.

    forming    workers are asking; no switch knows of it yet
    queued     all have asked; it waits for slots
    admitting  slots are leased, and their switches are being told
    running    all have their grants
    ending     nobody can use the job any more: its switches are told to forget it, and the workers are told why
    gone       the name, the number and the leases are free

`TRANSITIONS` is the whole of it: nothing else moves a job.
"""

from __future__ import annotations

import enum
import hmac
import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from wiresum import join
from wiresum.controller.driver import Endpoint
from wiresum.controller.jobs.tree import Node, Tree, in_words

log = logging.getLogger(__name__)

RUNS_MAX = 16
"""Of ranks in a row that are named in a text."""


class State(enum.Enum):
    FORMING = "forming"
    QUEUED = "queued"
    ADMITTING = "admitting"
    RUNNING = "running"
    ENDING = "ending"
    GONE = "gone"


class Event(enum.Enum):
    COMPLETED = "the last worker has asked"
    GIVEN_UP = "a worker went away before the job began, or the time was up, or an operator ended it"
    LEASED = "it has its slots"
    ADMITTED = "all its switches have the job"
    ENDED = "a worker was lost or ended the job, or all have left, or a switch does not take it, or was lost"
    CLEARED = "its switches have forgotten the job, and the workers know"


TRANSITIONS: Mapping[tuple[State, Event], State] = {
    (State.FORMING, Event.COMPLETED): State.QUEUED,
    (State.FORMING, Event.GIVEN_UP): State.GONE,
    (State.QUEUED, Event.LEASED): State.ADMITTING,
    (State.QUEUED, Event.GIVEN_UP): State.GONE,
    (State.ADMITTING, Event.ADMITTED): State.RUNNING,
    (State.ADMITTING, Event.ENDED): State.ENDING,
    (State.RUNNING, Event.ENDED): State.ENDING,
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


class Wants(enum.Enum):
    """What a job in the queue waits for."""

    ROOM = "slots, or a job number, at all switches of a tree that covers its hosts"
    TURN = "a job that has waited longer"
    WORKER = "one of its workers, whose connection broke, to ask again"
    SWITCH = "switches that take jobs"
    QUOTA = "other jobs of its tenant to end"


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
    token: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)
    presence: Presence = Presence.WAITING
    no_queue: bool = False
    """It can do without the job, and would rather than wait for slots."""
    call: int = 0
    """Which of its Join calls counts: the newest."""
    away_since: float | None = None
    """Its Join call broke off, and it may ask again."""
    heard_waiting: str = ""
    """What it was last told that it waits for."""
    stream: int = 0
    """Which of its Attend streams counts: the newest."""
    heard_at: float = 0.0
    round_newest: int = 0
    """As it says itself: of use as a sign of life alone."""
    switch_name: str = ""
    """Where it hangs, once the job has slots."""
    number: int = 0
    """That this switch knows it by; its rank where the job has one switch."""
    broken_at: float | None = None
    """Its stream broke, and it has not attended again."""
    broken_in_silence: bool = False
    """It did so when nothing had been heard of it for a while anyway."""
    contributions: int | None = None
    """As its switch counted them when it was last asked, since its last heartbeat."""
    counted_at: float = 0.0
    """When these were last seen to grow."""
    said_first_at: float = 0.0
    """When the switch first said this number ..."""
    said_last_at: float = 0.0
    """... and when it last did: between the two no packet came."""
    told: bool = False
    certificate: str = ""
    """The serial of the one that it last showed; empty without."""
    holder: str = ""
    """The name in that certificate."""
    called_from: str = ""
    """The address that its first Join came from; empty: from this host, or not known."""

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

    def is_attempt(self, attempt: str) -> bool:
        """Is it this very worker that asks again?"""
        return bool(self.attempt) and same_secret(self.attempt, attempt)


@dataclass(frozen=True)
class Asker:
    """Who asks for a place, as far as the service knows."""

    name: str = ""
    """For operators: the certificate's name, and the address."""
    address: str = ""
    """That it asks from; empty: from this host."""
    certificate: str = ""
    """Its serial."""
    holder: str = ""
    """The name in it."""
    own_account: bool = False
    """The tenant is the certificate's own name, for want of another."""


NOBODY = Asker()


@dataclass(eq=False)
class Job:
    name: str
    key_agreed: int = field(repr=False)
    """What all its workers must say alike (WIRESUM_KEY), and nobody else knows; 0: they say nothing. It never goes over
    the wire: a user may say the same for every job, and a switch must not see a key twice."""
    world_size: int
    created_at: float
    tenant: str = ""
    priority: int = 0
    reserved: bool = False
    """An operator created it, and so said what is its own."""
    slots_reserved: int = 0
    """0: the operator did not say."""
    job_token: str = field(default="", repr=False)
    """Who joins must show it; empty: nobody need."""
    asker: Asker = NOBODY
    """Its first worker."""
    candidates: frozenset[str] = frozenset()
    """The switches that all its workers hang on, or below, by name."""
    trees: tuple[Tree, ...] = ()
    """Those that it may get slots in, once all its workers have asked: one of each tree of the configuration."""
    state: State = State.FORMING
    workers: dict[int, Worker] = field(default_factory=dict)
    ticket: int = 0
    """Its place in the queue, among jobs of the same priority."""
    overtaken: int = 0
    """How many jobs behind it in the queue got slots that it might have used."""
    wants: Wants = Wants.ROOM
    """Why it has no slots yet."""
    waiting_said_at: float | None = None
    nodes: dict[str, Node] = field(default_factory=dict)
    """Its switches by name, the root first, once it has slots."""
    number: int = 0
    """At all of them, for as long as one knows it."""
    key: int = field(default=0, repr=False)
    """Its packets', drawn when it gets its slots."""
    keys_reserved: int = 0
    """So many keys of the sequence were reserved then; 0: that was before the service was started again."""
    slots: int = 0
    """At each of its switches; 0: it has none yet."""
    threads: int = 0
    port_offset: int = 0
    """At all of its switches: thread t talks to their port `port_offset + t`."""
    lanes: int = 0
    progress_at: float = 0.0
    """When a worker's rounds were last seen to move: they cannot, without a packet of every worker."""
    active_at: float | None = None
    """When its root was last seen to have summed for it, as far as anybody looked."""
    results: int | None = None
    """As the root counted them when it was last asked."""
    count_asked_at: float = 0.0
    restored: bool = False
    """It ran before the service was started."""
    attend_s_max: float = 0.0
    """How long a granted worker may take to its first heartbeat."""
    unsaved: bool = False
    """A worker has left, or showed another certificate, which is not written down yet: that can wait for a moment."""
    ended: join.JobEnded | None = None
    drained_at: float = 0.0
    left_first: Worker | None = None
    left_at: float = 0.0

    def __str__(self) -> str:
        return f"job {self.name!r}"

    @property
    def root(self) -> Node:
        """Of a job that has slots."""
        return next(iter(self.nodes.values()))

    @property
    def switch_name(self) -> str:
        """The root's; empty: it has no slots."""
        return next(iter(self.nodes), "")

    def where(self) -> str:
        """At which switches it has slots, in words."""
        return in_words(self.nodes)

    def switches_wanted(self) -> set[str]:
        """All those at which it may get slots."""
        return {branch.switch_name for tree in self.trees for branch in tree}

    def missing(self, *, without: Worker | None = None) -> str:
        """Which ranks have not asked, one that did not counted."""
        there = {rank for rank, worker in self.workers.items() if worker is not without}
        ranks = [rank for rank in range(self.world_size) if rank not in there]
        return f"rank{'s' if len(ranks) > 1 else ''} {_runs(ranks)} of {self.world_size}"

    def is_complete(self) -> bool:
        """All have asked."""
        return len(self.workers) == self.world_size

    def is_whole(self) -> bool:
        """All have asked, and wait."""
        return self.is_complete() and all(worker.away_since is None for worker in self.workers.values())

    def all_left(self) -> bool:
        return all(worker.presence is Presence.LEFT for worker in self.workers.values())

    def move(self, event: Event, why: str = "") -> None:
        assert (self.state, event) in TRANSITIONS, f"{self} is {self.state.value}: {event.value}"
        self.state = TRANSITIONS[self.state, event]
        log.info("%s is %s: %s", self, self.state.value, why or event.value)


def _runs(numbers: Sequence[int]) -> str:
    """Rising numbers, for people: "0, 2-31"; a job of 1,024 workers has more than anybody reads one by one."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    said = [f"{run[0]}{'-' if run[-1] > run[0] + 1 else ', '}{run[-1]}" if run[1:] else f"{run[0]}" for run in runs]
    return ", ".join(said[:RUNS_MAX]) + (", and others" if len(said) > RUNS_MAX else "")


def same_secret(a: str, b: str) -> bool:
    """In a time that does not tell how much of it is right."""
    return hmac.compare_digest(a.encode(), b.encode())
