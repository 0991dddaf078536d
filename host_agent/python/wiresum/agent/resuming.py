"""A worker that has lost its lease looks for another one: docs/protocol.md, section 7.

That is so when its service does not know the job any more, has ended it for the loss of a switch, or is gone. The
worker has halted, and stays so, with the same positions, until a service gives it a lease; and a service gives one only
when it has the positions of all workers. So whatever each of them does meanwhile, no sum can be wrong.

It asks its services one after the other, in their order, and the fallback last. One that knows the job moves it: the
worker attends there, and says that it has halted (membership.py). One that does not is asked for a place, if it has a
switch that takes jobs. After `TURN_S` the worker begins at the first one again, so that all meet at the first that can
take the job, whatever each of them found before. But a service may take jobs, and yet have no place for this one. So
after some turns the worker asks only the fallback for a place, and the others whether they know the job. Without a
fallback it leaves out those that have had their turns, until all have; then each has one turn more, so that workers
that are at different services meet after all.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from wiresum import join as messages
from wiresum.agent.clock import Clock
from wiresum.agent.config import AgentConfig
from wiresum.agent.control import Control
from wiresum.agent.errors import JoinError, WiresumError
from wiresum.agent.joining import Interruption, ask_until_granted
from wiresum.join import Admission
from wiresum.join.constants import REASON_CHARACTERS_MAX
from wiresum.join.served import job_id

log = logging.getLogger(__name__)

RESUME_S = 30.0
"""How long it looks, at most, unless WIRESUM_LOST_AFTER is shorter: as long as a service keeps a job that no switch
takes. For a service that may come back with the job, as long as its grant says, if that is longer."""
TURN_S = 2.0
"""How long it waits for a place at one service, if there are others to ask."""
TURNS_OF_ONE = 2
"""Of a service, before the next one is asked. Where there is a fallback, of all others together; there it waits for
twice as long."""
READY_S_MAX = 1.0
TURN_S_MIN = 0.1
FALLBACK_AFTER_S = 1.0
"""After so long without a lease the fallback is started."""
ATTEMPT_BYTES = 16
_AGAIN = ("DEADLINE_EXCEEDED", "ABORTED", "ALREADY_EXISTS", "UNAVAILABLE")
"""Refusals that asking again may help against, as join.proto lists them."""


class Fallback(Protocol):
    """A switch that the job's workers start for themselves: fallback.py."""

    @property
    def target(self) -> str:
        """Where its service is, host:port; empty: there is none."""
        ...

    @property
    def trouble(self) -> str:
        """Why what listens there was not believed to be the fallback, a sentence; empty if that is not so."""
        ...

    def open(self, grant: messages.JoinReply) -> None:
        """Starts it, if that is this process's part, for a job with such a lease. Idempotent, and quick; also to be
        called again after `close`."""
        ...

    def serves(self) -> bool:
        """Does it take this job? Bounded in time: a second or two."""
        ...

    def close(self) -> None:
        """Ends what this process has started: the job goes on elsewhere, or is over. Idempotent."""
        ...


class Resuming:
    """From when a worker has lost its lease until it has another one. Used by one thread, but for `stop`."""

    def __init__(
        self,
        control: Control,
        config: AgentConfig,
        lost: WiresumError,
        within_s: float,
        fallback: Fallback | None,
        order: Callable[[], messages.JobEnded | None],
        awake: Callable[[], float],
        clock: Clock,
    ) -> None:
        """`lost`: what the job ends with if there is no other lease. `order`: what this worker has said of its job's
        end, if a service is to hear it; then it asks for no lease. `awake`: seconds in which this process ran."""
        self._control = control
        self._config = config
        self.lost = lost
        self._fallback = fallback
        self._order = order
        self._awake, self._clock = awake, clock
        self._began_at = awake()
        self._within_s = within_s
        self._attempt = secrets.token_hex(ATTEMPT_BYTES)
        self._asking, self._telling = Interruption(), Interruption()
        """Of asking for a lease, and of telling that the job is over."""
        self._why = ""
        self._final = False
        self.over: WiresumError | None = None
        """Why the job is over, as a service says."""
        self._turns: Counter[str] = Counter()
        """By endpoint: how often it was asked for a place, and had none."""
        self._turns_of_one = TURNS_OF_ONE
        self.next = ""
        """The endpoint to ask next, if this one has answered; empty: the one after this."""

    def heed_order(self) -> None:
        """From any thread: there is an order, and it shall not wait for a lease any longer."""
        self._asking.interrupt(WiresumError("this worker does not go on with the job"))

    def stop(self, why: WiresumError) -> None:
        """From any thread: it shall not do anything any longer."""
        self._asking.interrupt(why)
        self._telling.interrupt(why)

    def ask(self, request: messages.JoinRequest, grant: messages.JoinReply) -> messages.JoinReply | None:
        """Asks the service that is talked to for a place, as `request` says, or tells it the order. None: it gives none
        now. `grant`: the old one."""
        others = len(self._control.endpoints) > 1 or self._fallback is not None
        self.next = ""
        turn_s = TURN_S
        if self._fallback is not None and self._turns.total() >= TURNS_OF_ONE:
            if self._control.endpoint != self._fallback.target:
                return None
            turn_s = 2 * TURN_S
        if others and not self._control.is_ready(READY_S_MAX):
            self._why = f"the service at {self._control.endpoint} has no switch that takes jobs"
            return None
        patience_s = max(TURN_S_MIN, min(turn_s, self._left_s()) if others else self._left_s())
        request.attempt = self._attempt
        request.admission = Admission.QUEUE
        request.threads_max, request.lanes_max, request.slots = grant.threads, grant.lanes, grant.slots
        if (order := self._order()) is not None:
            request.resumed.ended.CopyFrom(order)
        here = replace(self._config, switch=self._control.endpoint, join_timeout_s=patience_s)
        try:
            interruption = self._telling if order else self._asking
            return ask_until_granted(self._control, here, request, interruption, self._clock)
        except JoinError as error:
            self._why, again = str(error), error.code in _AGAIN
            self._final = not again and not others
            self._turns[self._control.endpoint] += 1
            self.next = self._first_to_ask() if again else ""
        except WiresumError as error:
            if order is None and self._order() is not None:  # it was given meanwhile
                self.next = self._control.endpoint
            else:
                self.over = error
        return None

    def _first_to_ask(self) -> str:
        if self._fallback is not None:
            return self._control.endpoints[0]
        if min(self._turns[endpoint] for endpoint in self._control.endpoints) >= self._turns_of_one:
            self._turns.clear()
            self._turns_of_one += 1
        return next(each for each in self._control.endpoints if self._turns[each] < self._turns_of_one)

    def look(self, grant: messages.JoinReply, cause: str) -> WiresumError | None:
        """Between two services. `cause`: why the last one could not be talked to, if so. Returns the error if it is
        over; has the fallback started when it is time."""
        if self.over is not None:
            return self.over
        if self._fallback is not None and self._fallback.trouble:
            self._why = self._fallback.trouble
        self._why = self._why or cause
        if self._final or self._left_s() <= 0:
            looked_s = self._awake() - self._began_at
            more = f"For {looked_s:.0f} s this worker has looked for another lease, and got none"
            self.lost.args = (f"{self.lost}. {more}: {self._why}",)
            return self.lost
        if self._fallback is not None and self._awake() - self._began_at >= FALLBACK_AFTER_S:
            self._fallback.open(grant)
            if self._control.endpoint != self._fallback.target and self._fallback.serves():
                self._control.further = self._fallback.target
        return None

    def _left_s(self) -> float:
        return self._began_at + self._within_s - self._awake()


def resumed(grant: messages.JoinReply, positions: bytes, reason: str) -> messages.Resumed:
    """What a service is told of the lease that was lost."""
    printable = "".join(character if character.isprintable() else " " for character in reason)
    return messages.Resumed(
        slots=grant.slots,
        threads=grant.threads,
        lanes=grant.lanes,
        positions=positions,
        reason=printable[:REASON_CHARACTERS_MAX],
        job_id=job_id(grant.members_secret),
    )
