"""A worker's life in its job, at one aggregator, as a state machine, complete in life_table.py.

The machine has no thread, no clock and no connection. `handle` takes events and their times, and returns the actions as
values: membership.py does them, in production as in virtual time. What the machine asks its worker to do (to halt, and
to go on) is done at once.

A worker attends at a service: it sends heartbeats over a stream, and hears what the service says. The service is not
needed while the job runs, so a stream that breaks is opened again, at the next service, for as long as absence.py says.
The service may move the job to another lease (docs/protocol.md, section 9): it tells the worker to halt, and each
heartbeat says where the data path stands still, until the move of the same number says where to go on. Orders of the
service are idempotent. A worker that has lost its lease halts by itself, *unasked*, and looks for another one
(search.py): it attends at each service, and one that knows it moves the job; one that does not is asked for a place.
The worker stays halted, at the same positions, until then; and a service gives a lease only when it has the positions
of all workers. So whatever each of them does meanwhile, no sum can be wrong.

An order is the worker's word on its job's end: the job is over for all (abort), or the worker leaves. An order holds
for the job, not for a lease or a service. If no service hears the order at once, the next one may not know the job: it
was started anew, or is a standby, or the fallback. So the worker tells whichever of the job's services is next: as a
member where the job is known, and otherwise in place of asking for a lease. From its order on the worker does nothing
else for the job: it neither halts, nor moves, nor goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from wiresum import join as messages
from wiresum.agent.absence import Absence, Silence
from wiresum.agent.control import RETRY_PAUSE_S
from wiresum.agent.diagnosis import error_of
from wiresum.agent.errors import SessionClosedError, SwitchUnreachableError, WiresumError
from wiresum.agent.life_table import (
    ABORT_S_MAX,
    FALLBACK_AFTER_S,
    FOLLOWS,
    IMPOSSIBLE,
    LEAVE_S_MAX,
    NOTHING,
    RESUME_S,
    SILENCE_S_MAX,
    TABLE,
    TIMERS,
    Do,
    Event,
    Phase,
)
from wiresum.agent.search import Search, Services, resumed
from wiresum.agent.statistics import NO_TRAFFIC, TrafficStats
from wiresum.join.constants import REASON_CHARACTERS_MAX

log = logging.getLogger(__name__)

Output = tuple[Any, ...]
"""A `Do`, followed by its arguments."""
Halt = Callable[[], bytes]
"""Stops the data path where it is, and returns its positions, as in join.proto. Idempotent, and bounded in time."""
Move = Callable[[messages.JoinReply, bytes], None]
"""Moves the data path to another lease, with the roles of join.proto. Raises a ValueError for an impossible move."""


@dataclass(frozen=True)
class Worker:
    """The worker's part of a life. The defaults are for a worker that does not attend."""

    traffic: Callable[[], TrafficStats] = lambda: NO_TRAFFIC
    """Returns the traffic with the switch."""
    halt: Halt = bytes
    move: Move = lambda grant, roles: None
    why_cut_off: Callable[[messages.JoinReply], str] = lambda _: ""
    """Returns what is wrong with this host's own way to the switch of a lease, in words; empty if nothing is known."""
    with_address: Callable[[messages.JoinReply], messages.JoinReply] = lambda grant: grant
    """Returns the lease with an address of its switch. Raises a `JoinError`."""


_KEPT = ("slots", "threads", "lanes", "workers", "rank")
"""Fields that must not change when a job moves to another lease."""
_OTHERS = "this worker had {}, and would have {}"
_LEFT = messages.JobEnded(cause=messages.JobEnded.WORKER_LEFT)


class Life:
    """The state machine. `now` is in seconds in which this process ran, of any clock. Used by one thread; others may
    read."""

    def __init__(
        self, request: messages.JoinRequest, grant: messages.JoinReply, services: Services, where: str,
        now: float,
    ) -> None:  # fmt: skip
        """`request` is the granted request. `where`: the services, for people."""
        self.phase = Phase.JOINED
        self.grant = grant
        """The newest lease."""
        self.member = member_of(grant)
        self.services = services
        self.halted: messages.Halted | None = None
        """The report of a halt in heartbeats; None: the data path goes on."""
        self.worker = Worker()
        self._request, self._where = request, where
        self._number = 0
        """The number of the newest completed move."""
        self._why = ""
        """The reason of the newest halt."""
        self._search: Search | None = None
        """Set while the lease is lost."""
        self._order: messages.JobEnded | None = None
        self._ordered_at = 0.0
        self._others: list[str] = []
        """Services where others of the job may be that have not heard the order, the next one first."""
        self._leaves = self._heard_elsewhere = self._warned = False
        self._now = now
        self._opened_at = 0.0
        """The time at which the newest stream was opened."""
        self._heard = False
        """True once something came over the newest stream."""
        self._timers: dict[Event, float] = {}
        self._outputs: list[Output] = []
        self._watch()

    # For the player.

    def handle(self, event: Event, now: float, *what: Any) -> list[Output]:
        """Returns the actions, in order. `what`: as `Event` says."""
        self._now, self._outputs = now, []
        done = TABLE[self.phase][event]
        assert done != IMPOSSIBLE, f"{event.name} cannot come while {self.phase.value}"
        self._timers.pop(event, None)
        if done != NOTHING:
            after = getattr(self, f"_{done}")(*what)
            assert after is self.phase or after in FOLLOWS[done], f"{done} leads from {self.phase} to {after}"
            if after is not self.phase:
                self._enter(after)
            self._timers = {timer: at for timer, at in self._timers.items() if TABLE[after][timer] != IMPOSSIBLE}
        return self._outputs

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        if phase is Phase.LEFT:
            self.worker = Worker()  # the old one refers to our owner, and so does what watches its traffic
            self._watch()

    @property
    def has_lost_lease(self) -> bool:
        """True while the worker looks for another lease, or at least for a service that hears its order."""
        return self._search is not None

    def next_timer(self) -> tuple[float, Event] | None:
        """Returns the time and name of the next timer; None: none runs."""
        return min(((at, timer) for timer, at in self._timers.items()), key=lambda each: each[0], default=None)

    def _do(self, *output: Any) -> None:
        self._outputs.append(output)

    def _start(self, timer: Event, seconds: float | None = None) -> None:
        self._timers[timer] = self._now + (TIMERS[timer] if seconds is None else seconds)

    # Attending.

    def _attend(self, worker: Worker) -> Phase:
        self.worker = worker
        self._watch()
        return self._open(Phase.ATTENDING)

    def _watch(self) -> None:
        """Counts the absence of this lease's service from now on."""
        grant, worker = self.grant, self.worker
        self._absence = Absence(
            self._where, grant, worker.traffic, lambda: worker.why_cut_off(grant), self._now,
            has_fallback=bool(self.services.fallback),
        )  # fmt: skip
        self._silence = Silence(worker.traffic, self._now)

    def _open(self, phase: Phase) -> Phase:
        self._opened_at, self._heard = self._now, False
        self._silence = Silence(self.worker.traffic, self._now)
        self._do(Do.ATTEND)
        self._beat()
        self._start(Event.SILENCE, self._silence_s_max)
        if self.halted is not None and self.services.fallback and Event.LOOK not in self._timers:
            self._start(Event.LOOK)
        return phase

    @property
    def _silence_s_max(self) -> float:
        return min(SILENCE_S_MAX, self.grant.heartbeat_lost_ms / 1000)

    def _beat(self) -> Phase:
        done = self._order is not None
        self._do(Do.BEAT, self.member, None if done else self.halted, not done)
        self._start(Event.BEAT, self.grant.heartbeat_interval_ms / 1000)
        return self.phase

    def _alive(self, *_: object) -> Phase:
        self._absence.hear(self.services.at, self._now)
        self._heard = True
        self._start(Event.SILENCE, self._silence_s_max)
        return self.phase

    def _hear(self, pulse: messages.Pulse) -> Phase:
        """The service may say that the switch is lost. If that seems true, a job that has halted can go on at the
        fallback."""
        self._alive()
        if not pulse.lost or not self.services.fallback or self.halted is not None:
            return self.phase
        if self._silence.seconds(self._now) < FALLBACK_AFTER_S or not self._silence.unanswered:
            return self.phase
        return self._halt_unasked(pulse.lost) or self._say_halted()

    def _pause(self, cause: str) -> Phase:
        self._absence.cause = cause
        self._start(Event.RETRY)
        return Phase.AWAY

    def _silent(self) -> Phase:
        log.info("%s has been silent for %.1f s: a fresh connection is made", self._where, self._silence_s_max)
        self._do(Do.HANG_UP)
        cause = f"silence for {self._silence_s_max:.1f} s"
        return self._pause(cause) if self._search is None else self._rest(cause)

    def _again(self) -> Phase:
        if (error := self._absence.error(self._now, stands_still=self.halted is not None)) is not None:
            return self._lose(error, f"{self._where} does not answer", self._absence.left_s(self._now))  # R7.17, R7.24
        self._connect(self.services.after)
        return self._open(Phase.ATTENDING)

    def _connect(self, endpoint: str) -> None:
        self.services.at = endpoint
        self._do(Do.CONNECT, endpoint)

    # Moving.

    def _halt(self, halt: messages.Halt) -> Phase:
        self._alive()
        if halt.move_number <= (self._number if self.halted is None else self.halted.move_number):
            return self.phase
        if self.halted is None:
            log.warning("job '%s' moves to another lease, since %s", self._request.job_name, halt.reason)
            self._why = halt.reason
        return self._stand_still(halt.move_number) or self._say_halted()

    def _halt_unasked(self, why: str) -> Phase | None:
        """Halts; returns the phase if the caller cannot proceed."""
        if (after := self._stand_still(self._number, unasked=True)) is None and self.halted is not None:
            log.warning("job '%s' looks for another lease, since %s", self._request.job_name, why)
            self._why = why
        return after

    def _stand_still(self, number: int, *, unasked: bool = False) -> Phase | None:
        """Halts the data path, but not if the session is being closed."""
        try:
            positions = self.worker.halt()
        except SessionClosedError:
            log.debug("this worker leaves, and does not halt")
            return None
        except Exception as error:
            return self._fail(error)
        self.halted = messages.Halted(move_number=number, positions=positions, unasked=unasked)  # R7.20, R7.25
        return None

    def _say_halted(self) -> Phase:
        """Reports the halt at once. A repeated order calls for no heartbeat, or there would be no end of them."""
        if self.halted is not None and self.services.fallback:
            self._start(Event.LOOK)
        return self._beat() if self.halted is not None else self.phase

    def _move(self, move: messages.Move) -> Phase:
        self._alive()
        halted = self.halted
        if halted is None or halted.unasked or move.move_number != halted.move_number:
            return self.phase
        if (after := self._go_on(move.grant, move.roles, move.move_number)) is None:
            self._beat()
        return after or Phase.ATTENDING

    def _resume(self, reply: messages.JoinReply) -> Phase:
        """Resumes at a lease that the worker has asked for. A lease without roles was granted before: the service was
        started anew, and has forgotten what this worker repeats. The worker attends there halted, and is moved."""
        if not reply.roles and self.halted is not None:
            self.member = member_of(reply)
            self.halted = messages.Halted(positions=self.halted.positions, unasked=True)  # R7.29
            return self._open(Phase.SEEKING)
        after = self._go_on(reply, reply.roles, 0)
        return self._open(after or Phase.ATTENDING) if after in (None, Phase.SEEKING) else after

    def _go_on(self, reply: messages.JoinReply, roles: bytes, number: int) -> Phase | None:
        """`number` is the move's, 0 for a lease that was asked for. Returns the next phase if the worker does not go
        on."""
        before = self.grant
        try:
            grant = self.worker.with_address(reply)
            self.member = member_of(grant)
            grant.members_secret = before.members_secret  # the job has used this one
            grant.check_word = before.check_word  # R5.28
            for name in _KEPT:
                if getattr(grant, name) != getattr(before, name):
                    raise ValueError(f"{name} would be {getattr(grant, name)}, and must be {getattr(before, name)}")
            if grant.sharing.ranks != before.sharing.ranks:
                raise ValueError(_OTHERS.format(*map(_streams, (before, grant))))
            if len(roles) != grant.slots:
                raise ValueError(f"{len(roles)} roles were given for {grant.slots} slots")
            self.worker.move(grant, roles)
        except SessionClosedError:
            log.debug("this worker leaves, and does not move")
            return self.phase if self._search is None else Phase.SEEKING
        except Exception as error:
            return self._fail(error)
        self.grant, self._number, self.halted, self._search = grant, number, None, None
        self._timers.pop(Event.LOOK, None)
        self._watch()
        self._do(Do.GONE_ON, self._why)
        if self.services.fallback and self.services.at != self.services.fallback:
            self.services.further = ""
            self._do(Do.CLOSE_FALLBACK)
        endpoint, name = grant.switch_endpoint, self._request.job_name
        log.warning("job '%s' goes on at %s, %s:%d", name, grant.switch_name, endpoint.address, endpoint.port)
        return None

    def _fail(self, error: Exception) -> Phase:
        """A job that cannot move ends for all."""
        log.error("the job cannot move", exc_info=error)
        text = f"the job cannot move to another lease: {error}"
        self._do(Do.ABORT_ALL, text)
        self._do(Do.SAY, WiresumError(f"job '{self._request.job_name}' has ended: {text}"))
        self._order, self._ordered_at = aborted(text), self._now
        return self._tell()

    # Looking for another lease.

    def _lose(self, error: WiresumError, why: str, left_s: float = 0.0, go_to: str = "") -> Phase:
        """`left_s`: seconds in which the service may still come back with the job. `go_to`: endpoint of a better
        service."""
        if self.halted is None and (after := self._halt_unasked(why)) is not None:
            return after
        if self.halted is None:  # the session is being closed
            self._do(Do.HANG_UP)
            return self._pause(self._absence.cause)
        self._begin_search(error, why, left_s)
        self.services.further = go_to  # the fallback has just proved that it is the one, or has to again
        return self._seek(go_to or self.services.own[0])

    def _begin_search(self, error: WiresumError, why: str, left_s: float = 0.0) -> None:
        if self._search is None:
            positions = self.halted.positions if self.halted else b""
            lease = resumed(self.grant, positions, why)
            self._search = Search(self.services, error, lease, self._now, max(left_s, RESUME_S))
            if self.services.fallback:
                self._start(Event.LOOK)

    def _seek(self, endpoint: str = "") -> Phase:
        assert self._search is not None, "its lease is lost"
        self._do(Do.HANG_UP)
        self._connect(endpoint or self._search.next())
        return self._open(Phase.SEEKING)

    def _ask(self, *_: object) -> Phase:
        """Asks the service in use, which does not know this worker."""
        assert self._search is not None, "its lease is lost"
        self._do(Do.HANG_UP)
        question = self._search.question(self._request, self.grant, self._order, self._now)
        self._do(Do.ASK, *question, self.services.are_several)
        return Phase.ASKING if self._order is None else Phase.CONVEYING

    def _refused(self, code: str, why: str) -> Phase:
        assert self._search is not None, "its lease is lost"
        self._search.refused(code, why)
        return self._rest()

    def _rest(self, cause: str = "") -> Phase:
        assert self._search is not None, "its lease is lost"
        self._search.note(cause)
        if (error := self._search.over(self._now)) is not None:
            return self._finish(error)
        self._start(Event.RETRY)
        return Phase.RESTING if self._order is None else self._wait()

    def _look(self) -> Phase:
        self._do(Do.LOOK, self.grant)
        return self.phase

    def _look_again(self, trouble: str = "") -> Phase:
        if self._search is not None:
            self._search.doubt(trouble)
        if self._search is not None or self.halted is not None:
            self._start(Event.LOOK, RETRY_PAUSE_S)
        return self.phase

    def _further(self) -> Phase:
        """The fallback serves: it comes after the job's own services."""
        if self._search is not None:
            self.services.further = self.services.fallback
        return self._look_again()

    def _fall_back(self) -> Phase:
        """The fallback serves, and a stream is open. A service that keeps a halted job gets FALLBACK_AFTER_S."""
        keeps = self._heard and self._now - self._opened_at >= FALLBACK_AFTER_S
        if self.halted is None or not keeps or self.services.at == self.services.fallback:
            return self._further()
        error = f"job '{self._request.job_name}' has ended: {self._where} has no lease for it any more"
        why = f"{self._where} has no lease for it"
        return self._lose(SwitchUnreachableError(error), why, go_to=self.services.fallback)

    # Orders.

    def _give(self, order: messages.JobEnded | None = None) -> Phase:
        """Gives an order: an abort, or to leave (None)."""
        self._order, self._ordered_at = order or _LEFT, self._now
        if order is None:
            self._leaves = True
            self._start(Event.GIVE_UP)
        return self._tell() if self.phase is not Phase.ASKING else self._ask()

    def _tell(self) -> Phase:
        if self._search is None:
            self._timers.pop(Event.LOOK, None)
        assert self._order is not None
        self._do(Do.TELL, self.member, self._order)
        return Phase.TELLING

    def _tell_there(self, reply: messages.JoinReply) -> Phase:
        """The order came too late for the worker's question, and now a service has this worker as a member."""
        self.member, self._search = member_of(reply), None
        return self._tell()

    def _unknown(self, error: WiresumError, why: str) -> Phase:
        self._begin_search(error, why)
        return self._ask()

    def _conveyed(self, error: WiresumError) -> Phase:  # R7.33
        """A service that did not know this worker has heard the order: but others of the job may be where the worker
        was."""
        self._others = [each for each in self.services.all if each != self.services.at]
        self._end(error)
        return self._spread()

    def _reached(self, *_: object) -> Phase:
        """The service has heard the order, or does not know this worker, either."""
        del self._others[0]
        return self._spread()

    def _unreached(self, *_: object) -> Phase:
        """The service may come back with the job, and then others find it."""
        self._others.append(self._others.pop(0))
        self._start(Event.RETRY)
        return Phase.SPREADING if self._now < self._ordered_at + ABORT_S_MAX else self._over

    def _spread(self) -> Phase:
        if not self._others:
            return self._over
        self._connect(self._others[0])
        self._tell()
        return Phase.SPREADING

    def _untold(self, cause: str, after_s: float) -> Phase:
        self._do(Do.HANG_UP)
        self._absence.cause = cause
        if self._search is not None:
            return self._rest(cause)
        self._start(Event.RETRY, after_s)
        return self._wait()

    def _tell_next(self) -> Phase:
        if self._search is not None:
            self._connect(self._search.next())
        elif (error := self._absence.error(self._now)) is None:
            self._connect(self.services.after)
        else:
            self._begin_search(error, f"{self._where} does not answer", self._absence.left_s(self._now))
            self._connect(self.services.own[0])
        return self._tell()

    def _wait(self) -> Phase:
        """Waits for the next service; logs it if the worker leaves, and waits longer than for a good-bye."""
        assert self._order is not None
        if self._leaves and self._order is not _LEFT and not self._warned and self.grant.workers > 1:
            self._warned = True
            log.warning(
                "no service has heard yet that this worker has ended job '%s' (%s): it looks for one for up to %.0f s",
                self._request.job_name, self._order.reason, max(0.0, self._timers[Event.GIVE_UP] - self._now),
            )  # fmt: skip
        return Phase.UNTOLD

    def _leave_too(self) -> Phase:
        """Leaves with an order that no service has heard yet."""
        if not self._leaves:
            self._leaves = True
            self._start(Event.GIVE_UP)
            heard = self._heard_elsewhere or self.phase is Phase.SPREADING
            if not heard and self.grant.workers > 1:  # an abort: whoever gave a good-bye leaves already
                self._timers[Event.GIVE_UP] = self._ordered_at + ABORT_S_MAX
            if self.phase is Phase.UNTOLD:
                self._wait()
        return self.phase

    def _elsewhere(self) -> Phase:
        """A leaving worker gives this service as long as for a good-bye."""
        self._heard_elsewhere = True
        if self._leaves:
            self._timers[Event.GIVE_UP] = min(self._timers[Event.GIVE_UP], self._now + LEAVE_S_MAX)
        return self.phase

    def _told(self) -> Phase:
        if self._order is _LEFT:
            return self._go()
        self._do(Do.HEARD)
        if self._leaves:  # hanging up tells the service
            return self._go()
        self._start(Event.ENDING)
        return Phase.TOLD

    # The end.

    def _note(self, _: object) -> Phase:
        """The job is over here, which is as good as having told of an abort."""
        self._do(Do.HEARD)
        return self.phase

    def _end(self, error: WiresumError) -> Phase:
        """A service says that the job is over."""
        if self._order is not None and self._order is not _LEFT:
            self._do(Do.HEARD)
        return self._finish(error)

    def _end_told(self, *_: object) -> Phase:
        """The service does not confirm the end, but has heard the abort."""
        assert self._order is not None
        ended = messages.JobEnded(cause=self._order.cause, reason=f"this worker ended the job: {self._order.reason}")
        return self._finish(error_of(ended, self._request.job_name, self._where))

    def _finish(self, error: WiresumError) -> Phase:
        self._do(Do.HANG_UP)
        if not self._leaves:
            self._do(Do.SAY, error)
        return self._over

    @property
    def _over(self) -> Phase:
        return Phase.LEFT if self._leaves else Phase.OVER

    def _go(self, *_: object) -> Phase:
        self._do(Do.HANG_UP)
        return Phase.LEFT

    def _fork(self) -> Phase:
        return Phase.INERT


def _streams(grant: messages.JoinReply) -> str:
    ranks = ", ".join(map(str, grant.sharing.ranks))
    return f"a stream that ranks {ranks} share" if ranks else "a stream of its own"


def aborted(reason: str) -> messages.JobEnded:
    return messages.JobEnded(cause=messages.JobEnded.ABORTED_BY_WORKER, reason=reason[:REASON_CHARACTERS_MAX])


def member_of(grant: messages.JoinReply) -> messages.Member:
    return messages.Member(job=grant.job, worker=grant.worker, token=grant.token, switch_name=grant.switch_name)
