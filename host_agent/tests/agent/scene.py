"""Lives for tests of them, without threads: each in some phase, and what it had to do at the last step."""

from __future__ import annotations

from typing import Any

from wiresum import join as messages
from wiresum.agent.errors import JobAbortedError, SwitchUnreachableError
from wiresum.agent.life import Life, Worker
from wiresum.agent.life_table import Do, Event, Phase
from wiresum.agent.search import Services
from wiresum.agent.statistics import TrafficStats

FIRST, SECOND, FALLBACK = "first:1", "second:1", "fallback:1"
SLOTS = 4
POSITIONS = bytes(range(4 * SLOTS))
REASON = "the loss is NaN"
ABORTED = messages.JobEnded(cause=messages.JobEnded.ABORTED_BY_WORKER, reason=REASON)
LEFT = messages.JobEnded(cause=messages.JobEnded.WORKER_LEFT)


def lease(key: int = 1, **changed: Any) -> messages.JoinReply:
    fields: dict[str, Any] = {
        "slots": SLOTS, "threads": 1, "lanes": 8, "workers": 2, "rank": 1, "job": key, "worker": 1,
        "heartbeat_interval_ms": 500, "heartbeat_lost_ms": 30_000, "reattach_ms": 600_000,
        "members_secret": b"of lease %d" % key,
    }  # fmt: skip
    return messages.JoinReply(key=key, token="t", **{"roles": bytes(SLOTS)} | fields | changed)


class Scene:
    """A life, its worker, and what it had to do at each step."""

    def __init__(self, fallback: str = FALLBACK, own: tuple[str, ...] = (FIRST, SECOND), **grant: Any) -> None:
        self.now = 100.0
        self.sent = self.received = self.halts = 0
        self.keys: list[int] = []
        self.halt_fails: Exception | None = None
        self.move_fails: Exception | None = None
        request = messages.JoinRequest(job_name="a-job", rank=1)
        services = Services(own, fallback, own[0])
        self.life = Life(request, lease(**grant), services, "the switch at x", self.now)
        self.done: list[tuple[Any, ...]] = []

    def worker(self) -> Worker:
        return Worker(lambda: TrafficStats(packets_sent=self.sent, bytes_received=self.received), self.halt, self.move)

    def halt(self) -> bytes:
        if self.halt_fails is not None:
            raise self.halt_fails
        self.halts += 1
        return POSITIONS

    def move(self, grant: messages.JoinReply, roles: bytes) -> None:
        if self.move_fails is not None:
            raise self.move_fails
        assert roles == bytes(SLOTS)
        self.keys.append(grant.key)

    def let(self, event: Event, *what: Any) -> Scene:
        """It happens; without `what` as `said` gives it."""
        self.done = self.life.handle(event, self.now, *(what or self.said(event)))
        return self

    def said(self, event: Event) -> tuple[Any, ...]:
        anew = SwitchUnreachableError("it was started anew"), "it does not know it any more"
        over = (JobAbortedError("somebody else"),)
        return {
            Event.BEGIN: (self.worker(),),
            Event.PULSE: (messages.Pulse(),),
            Event.HALT: (messages.Halt(move_number=1, reason="a switch is drained"),),
            Event.MOVE: (messages.Move(move_number=1, grant=lease(5), roles=bytes(SLOTS)),),
            Event.ENDED: over,
            Event.BARRED: over,
            Event.LOST: anew,
            Event.UNKNOWN: anew,
            Event.BROKE: ("connection refused",),
            Event.GRANTED: (lease(6),),
            Event.REFUSED: ("DEADLINE_EXCEEDED", "rank 0 is missing"),
            Event.UNTOLD: ("connection refused", 0.2),
            Event.SERVES_NOT: ("",),
            Event.ABORT: (ABORTED,),
        }.get(event, ())

    @property
    def names(self) -> list[str]:
        return [output[0].name for output in self.done]

    def what(self, do: Do) -> tuple[Any, ...]:
        (found,) = [output[1:] for output in self.done if output[0] is do]
        return tuple(found)

    @property
    def timers(self) -> set[Event]:
        return set(self.life._timers)


ROUTES = {
    Phase.JOINED: "",
    Phase.ATTENDING: "BEGIN",
    Phase.AWAY: "BEGIN BROKE",
    Phase.SEEKING: "BEGIN LOST",
    Phase.ASKING: "BEGIN LOST LOST",
    Phase.RESTING: "BEGIN LOST BROKE",
    Phase.OVER: "BEGIN ENDED",
    Phase.TELLING: "BEGIN ABORT",
    Phase.CONVEYING: "BEGIN ABORT UNKNOWN",
    Phase.SPREADING: "BEGIN ABORT UNKNOWN ENDED",
    Phase.UNTOLD: "BEGIN ABORT UNTOLD",
    Phase.TOLD: "BEGIN ABORT TOLD",
    Phase.LEFT: "BEGIN LEAVE TOLD",
    Phase.INERT: "FORKED",
}


def at(phase: Phase, **scene: Any) -> Scene:
    made = Scene(**scene)
    for name in ROUTES[phase].split():
        made.let(Event[name])
    assert made.life.phase is phase
    return made
