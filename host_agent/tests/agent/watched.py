"""A life under watch, for whole jobs in virtual time: all that it does is held against what it has been told.

Nothing here looks at how a life comes to what it does, only at the table's promises: what heartbeats say of a worker
that stands still, that each lease that is lost has one other lease after it or an end, when each timer runs out, and
for how long an order is told.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, ClassVar, Protocol

from wiresum import join as messages
from wiresum.agent.control import RETRY_PAUSE_S
from wiresum.agent.life import Life, Output
from wiresum.agent.life_table import (
    ABORT_S_MAX,
    FALLBACK_AFTER_S,
    LEAVE_S_MAX,
    RESUME_S,
    SILENCE_S_MAX,
    Do,
    Event,
    Phase,
)

MOMENT_S = 0.01
"""What is due then is on time."""
STREAM = {Event.BEAT, Event.SILENCE}
RUN: dict[Phase, set[Event]] = {
    **{phase: set() for phase in Phase},
    Phase.ATTENDING: STREAM,
    Phase.SEEKING: STREAM,
    Phase.AWAY: {Event.RETRY},
    Phase.RESTING: {Event.RETRY},
    Phase.UNTOLD: {Event.RETRY},
    Phase.TOLD: {Event.ENDING},
}
"""The timers that must, by phase."""
HAS_LEASE = (Phase.ATTENDING, Phase.AWAY)
TELLS = (Phase.TELLING, Phase.CONVEYING, Phase.SPREADING, Phase.UNTOLD)
LOOKS = (Phase.SEEKING, Phase.ASKING, Phase.RESTING)
NOT_FOR_GOOD = ("DEADLINE_EXCEEDED", "ABORTED", "ALREADY_EXISTS", "UNAVAILABLE", "INTERNAL", "NOT_READY")


class Path(Protocol):
    """What a life halts and moves."""

    key: int
    stands_still: bool
    moves: list[tuple[messages.JoinReply, bytes]]
    fails: dict[str, Exception]

    @property
    def summed_at(self) -> float:
        """When a result came last."""
        ...

    @property
    def positions(self) -> bytes: ...


class Watched:
    """One life, from when it attends."""

    visited: ClassVar[Counter[tuple[Phase, Event]]] = Counter()
    """Of all that were watched."""

    def __init__(self, life: Life, path: Path, where: str) -> None:
        self.life, self.path = life, path
        self.problems: list[AssertionError] = []
        """What went against a promise; the worker's thread has seen it alone."""
        self.order: Event | None = None
        self.ordered_at = self.leaves_at = math.inf
        self.elsewhere_at = math.inf
        """When a leaving worker hears that another aggregator has heard its abort."""
        self.is_heard = False
        """Its order is, or it was told that its job is over."""
        self._others: set[str] = set()
        """Services that have not answered, of those that are told when one has heard its order that did not know it."""
        self.is_patient = False
        """It leaves, and looks for a service that hears its abort."""
        self._where = where
        self._since = self._lost_at = 0.0
        self._beat_at = life._timers[Event.BEAT] - life.grant.heartbeat_interval_ms / 1000
        self._opened_at = self._heard_at = life._timers[Event.SILENCE] - self._silence_s
        self._pause_s = RETRY_PAUSE_S
        self._number = 0
        """Of the newest move at the service of its lease."""
        self._asked: int | None = None
        """It stands still for the move of this number. None: by itself."""
        self._why = ""
        self._looks = self._proved = False
        """The fallback is being looked at; it has proved that it serves, since the job went on or lost its lease."""
        self._promised = {
            Event.BEAT: lambda: self._beat_at + life.grant.heartbeat_interval_ms / 1000,
            Event.SILENCE: lambda: self._heard_at + self._silence_s,
            Event.RETRY: lambda: self._since + self._pause_s,
            Event.ENDING: lambda: self._since + LEAVE_S_MAX,
            Event.GIVE_UP: lambda: min(
                self.ordered_at + ABORT_S_MAX if self.is_patient else self.leaves_at + LEAVE_S_MAX,
                self.elsewhere_at + LEAVE_S_MAX,
            ),
        }
        """When each timer runs out."""
        self._handle, life.handle = life.handle, self.handle  # type: ignore[method-assign]

    @property
    def _silence_s(self) -> float:
        return min(SILENCE_S_MAX, self.life.grant.heartbeat_lost_ms / 1000)

    def handle(self, event: Event, now: float, *what: Any) -> list[Output]:
        self.visited[self.life.phase, event] += 1
        try:
            return self._watch(event, now, *what)
        except AssertionError as problem:
            self.problems.append(problem)
            raise

    def _watch(self, event: Event, now: float, *what: Any) -> list[Output]:
        life, path, before = self.life, self.path, self.life.phase
        stood, moves, had_order = path.stands_still, len(path.moves), self.order is not None
        had_lost, at = life.has_lost_lease, life.services.at
        outputs = self._handle(event, now, *what)
        did = {output[0]: output[1:] for output in outputs}
        if len(did) != len(outputs):
            twice = [do for do, times in Counter(output[0] for output in outputs).items() if times > 1]
            assert twice == [Do.HANG_UP], f"it does one thing twice: {outputs}"
        assert Do.ABORT_ALL not in did or path.fails, f"it ends the job by itself: {did[Do.ABORT_ALL]}"
        self._note_order(event, before, now, did)
        moved = len(path.moves) > moves
        if had_order:
            assert (path.stands_still, moved) == (stood, False), "one with an order neither halts nor goes on"
        elif Do.ABORT_ALL not in did:
            self._check_halts(event, now, stood, did, *what)
            self._check_moves(event, stood, moved, did, *what)
        self._check_said(did)
        self._check_spread(event, before, at, now)
        self._check_fallback(event, had_lost, did)
        if event is Event.SERVES and before in (Phase.ATTENDING, Phase.SEEKING) and not had_order:
            keeps = self._opened_at < self._heard_at and now - self._opened_at >= FALLBACK_AFTER_S
            leaves = stood and keeps and at != life.services.fallback
            assert (Do.CONNECT in did) == leaves, "a service that has had its time keeps it from the fallback no longer"
        if life.has_lost_lease and not had_lost:
            self._lost_at = now
        if before is not life.phase:
            self._note_phase(event, before, now, *what)
        self._note_times(event, now, did)
        self._check_timers(now)
        if self.order is None and life.phase in (*HAS_LEASE, *LOOKS):
            self._check_phase()
        return outputs

    # Times.

    def _check_timers(self, now: float) -> None:
        """Those that are promised run, and run out when they should."""
        life = self.life
        for timer, at in life._timers.items():
            late_s = 0.0 if timer is Event.LOOK else at - self._promised[timer]()
            assert abs(late_s) < MOMENT_S, f"while {life.phase.name} {timer.name} comes {late_s:.2f} s late"
        assert life._timers.keys() >= RUN[life.phase], f"while {life.phase.name}: {life._timers}"
        if self.leaves_at < math.inf and life.phase in TELLS:
            assert Event.GIVE_UP in life._timers, f"while {life.phase.name}: {life._timers}"
        assert life._timers.get(Event.LOOK, now) <= now + FALLBACK_AFTER_S + MOMENT_S

    def _note_times(self, event: Event, now: float, did: dict[Any, Any]) -> None:
        if Do.BEAT in did:
            self._beat_at = now
        if event is Event.UNTOLD:
            self._since = now
        if Do.ATTEND in did:
            self._opened_at = self._heard_at = now
        elif event in (Event.PULSE, Event.HALT, Event.MOVE):
            self._heard_at = now
        self._looks = Do.LOOK in did or (self._looks and event not in (Event.SERVES, Event.SERVES_NOT))

    def _note_phase(self, event: Event, before: Phase, now: float, *what: Any) -> None:
        phase, looked_s = self.life.phase, now - self._lost_at + MOMENT_S
        self._since, self._pause_s = now, RETRY_PAUSE_S
        if event is Event.UNTOLD and not self.life.has_lost_lease:
            self._pause_s = what[1]
        if event is Event.REFUSED and what[0] not in NOT_FOR_GOOD:
            return
        if before in LOOKS and phase is Phase.OVER and event not in (Event.ENDED, Event.BARRED):
            assert looked_s >= RESUME_S, "it has not looked for long enough"
        if phase is Phase.LEFT and self.is_patient and not self.is_heard:
            told_s = now - self.ordered_at + MOMENT_S
            assert told_s >= ABORT_S_MAX or looked_s >= RESUME_S, "it leaves, and others do not know of its abort"

    # Orders.

    def _note_order(self, event: Event, before: Phase, now: float, did: dict[Any, Any]) -> None:
        if event is Event.LEAVE and self.leaves_at == math.inf:
            self.leaves_at = now
        if self.order is None and before in (*HAS_LEASE, *LOOKS):
            if Do.ABORT_ALL in did:
                self.order, self.ordered_at = Event.ABORT, now
            elif event in (Event.ABORT, Event.LEAVE):
                self.order, self.ordered_at = event, now
                assert (Do.ASK if before is Phase.ASKING else Do.TELL) in did, "an order is told at once"
        if event is Event.ELSEWHERE or Do.HEARD in did or (Do.SAY in did and Do.ABORT_ALL not in did):
            self.is_heard = True
        if event is Event.ELSEWHERE and self.leaves_at < math.inf and before is not Phase.SPREADING:
            self.elsewhere_at = min(now, self.elsewhere_at)
        if event is Event.LEAVE:
            has_others = self.life.grant.workers > 1
            self.is_patient |= self.order is Event.ABORT and not self.is_heard and has_others

    def _check_said(self, did: dict[Any, Any]) -> None:
        life, path, has_order = self.life, self.path, self.order is not None
        cause = messages.JobEnded.WORKER_LEFT if self.order is Event.LEAVE else messages.JobEnded.ABORTED_BY_WORKER
        if Do.BEAT in did:
            number = self._number if self._asked is None else self._asked
            still = messages.Halted(move_number=number, positions=path.positions, unasked=self._asked is None)
            halted = still if path.stands_still and not has_order else None
            assert did[Do.BEAT] == (life.member, halted, not has_order), "heartbeats say where the worker stands"
        if Do.ASK in did:
            resumed = did[Do.ASK][0].resumed
            assert resumed.HasField("ended") == has_order and (not has_order or resumed.ended.cause == cause)
            assert has_order or resumed.positions == path.positions, "it goes on where it stands"
        if Do.TELL in did:
            assert (did[Do.TELL][0], did[Do.TELL][1].cause) == (life.member, cause), "its own order is told"

    def _check_spread(self, event: Event, before: Phase, at: str, now: float) -> None:
        if before is Phase.CONVEYING and event is Event.ENDED:
            self._others = {*self.life.services.all} - {at}
        elif before is Phase.SPREADING and event in (Event.TOLD, Event.UNKNOWN):
            self._others.remove(at)
        elif before is not Phase.SPREADING or event is Event.GIVE_UP:
            return
        told_s = now - self.ordered_at + MOMENT_S
        assert self.life.phase is Phase.SPREADING or not self._others or told_s >= ABORT_S_MAX, self._others

    def _check_fallback(self, event: Event, had_lost: bool, did: dict[Any, Any]) -> None:
        """Before it has proved that it is one, a worker says nothing there."""
        services = self.life.services
        loses_lease = self.order is None and self.life.has_lost_lease and not had_lost
        if event is Event.SERVES:
            self._proved = True
        elif loses_lease or Do.CLOSE_FALLBACK in did:
            self._proved = False
        if Do.CONNECT in did and did[Do.CONNECT] == (services.fallback,):
            assert self._proved, "it goes to a fallback that has not proved that it serves"

    # Halts and moves.

    def _check_halts(self, event: Event, now: float, stood: bool, did: dict[Any, Any], *what: Any) -> None:
        if event is Event.HALT:
            known = self._number if not stood or self._asked is None else self._asked
            is_new = what[0].move_number > known
            assert self.path.stands_still == (stood or is_new), "it does what it is told, and once"
            assert (Do.BEAT in did) == is_new, "it says so at once"
            self._asked = what[0].move_number if is_new else self._asked
        if event is Event.PULSE and self.path.stands_still and not stood:
            silent_s = now - max(self._opened_at, self.path.summed_at)
            assert silent_s >= FALLBACK_AFTER_S, "it halts though results come"
        if event is Event.LOST and not stood:
            assert self.path.stands_still, "one that has lost its lease halts"
        if self.path.stands_still and not stood:
            self._why = {
                Event.HALT: lambda: what[0].reason,
                Event.LOST: lambda: what[1],
                Event.PULSE: lambda: what[0].lost,
                Event.RETRY: lambda: f"{self._where} does not answer",
            }[event]()
            self._asked = self._asked if event is Event.HALT else None

    def _check_moves(self, event: Event, stood: bool, moved: bool, did: dict[Any, Any], *what: Any) -> None:
        services = self.life.services
        if event is Event.MOVE:
            assert moved == (stood and self._asked == what[0].move_number), "it moves after its halt, and once"
        elif event is Event.GRANTED:
            assert moved == bool(what[0].roles), "a lease with roles is one to go on at"
            self._number, self._asked = 0, None
        else:
            assert not moved, "it goes on where it was given a lease"
        assert did.get(Do.GONE_ON) == ((self._why,) if moved else None), "it says so, and why the last one was lost"
        closes = moved and bool(services.fallback) and services.at != services.fallback
        assert (Do.CLOSE_FALLBACK in did) == closes, "a fallback is closed when the job goes on elsewhere"
        if moved:
            assert Do.BEAT in did, "the service hears at once that it goes on"
            self._number = what[0].move_number if event is Event.MOVE else 0
            self._asked = None

    def _check_phase(self) -> None:
        """Of one without an order."""
        life, path = self.life, self.path
        assert life.has_lost_lease == (life.phase in LOOKS), "it looks until it has another lease"
        assert path.stands_still or life.phase not in LOOKS, "without a lease it stands still"
        assert (life.halted is not None) == path.stands_still
        assert life.grant.key == path.key, "its lease is the one that it goes on at"
        if path.stands_still and life.phase is not Phase.AWAY and life.services.fallback:
            assert self._looks or Event.LOOK in life._timers, "it looks at the fallback, too"
