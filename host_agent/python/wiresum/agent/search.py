"""The search for another lease, once a worker has lost its own: docs/protocol.md, section 7.

A worker asks its services one after the other, in their order, and the fallback last. One that knows the job moves it.
One that does not is asked for a place, if it has a switch that takes jobs. After `TURN_S` the worker begins at the
first one again, so that all meet at the first that can take the job, whatever each of them found before. But a service
may take jobs, and yet have no place for this one. So after some turns the worker waits for a place at the fallback
alone, and asks the others for a moment: whether they know the job, or know that it is over. Without a fallback it
leaves out those that have had their turns, until all have; then each has one turn more, so that workers at different
services meet after all.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Sequence

from wiresum import join as messages
from wiresum.agent.errors import WiresumError
from wiresum.join import Admission
from wiresum.join.constants import REASON_CHARACTERS_MAX
from wiresum.join.served import job_id

TURN_S = 2.0  # R7.27
"""The longest wait for a place at one service, if there are others to ask."""
TURN_S_MIN = 0.1
TURNS_OF_ONE = 2
"""Turns of a service, before the next one is asked; if there is a fallback, of all others together. A turn at the
fallback takes twice as long."""
ATTEMPT_BYTES = 16
NOT_READY = "NOT_READY"
"""A refusal in place of a code: the service has no switch that takes jobs, and was not asked for a place."""
WITHOUT_FALLBACK = 'A job with a fallback goes on without any switch: "Without any switch" in docs/operations.md'
_AGAIN = ("DEADLINE_EXCEEDED", "ABORTED", "ALREADY_EXISTS", "UNAVAILABLE")
"""Refusals that asking again may help against, as join.proto lists them. Asking again may also help if a switch would
not take the job (INTERNAL); but then the next service is asked first."""


class Services:
    """The services of a worker's job: its own, in their order, and the fallback after them."""

    def __init__(self, own: Sequence[str], fallback: str, at: str) -> None:
        """All are endpoints, host:port. `fallback`: empty if the job can have none. `at`: where the job began."""
        self.own, self.fallback = tuple(own), fallback
        self.at = at
        """The endpoint in use."""
        self.further = ""
        """The fallback, from when it has proved that it serves until the job goes on elsewhere."""

    @property
    def all(self) -> tuple[str, ...]:
        return self.own + ((self.further,) if self.further else ())

    @property
    def after(self) -> str:
        """The endpoint after the one in use."""
        return self.all[(self.all.index(self.at) + 1) % len(self.all)] if self.at in self.all else self.own[0]

    @property
    def are_several(self) -> bool:
        return len(self.all) > 1 or bool(self.fallback)


class Search:
    """A search from the loss of a lease until there is another one. `now` is in seconds, of any clock."""

    def __init__(
        self, services: Services, lost: WiresumError, resumed: messages.Resumed, now: float, within_s: float
    ) -> None:
        """`lost`: the job's error if there is no other lease."""
        self._services, self._lost, self._resumed = services, lost, resumed
        self._began_at, self._within_s = now, within_s
        self._attempt = secrets.token_hex(ATTEMPT_BYTES)
        self._why = self._doubt = ""
        self._final = False
        self._turns: Counter[str] = Counter()
        """The refusals so far, by endpoint: a place was asked for, and there was none."""
        self._turns_of_one = TURNS_OF_ONE
        self._next = ""
        self._waits = True
        """True if the worker waits for a turn at the service that was asked last."""

    def question(
        self, request: messages.JoinRequest, grant: messages.JoinReply, order: messages.JobEnded | None, now: float
    ) -> tuple[messages.JoinRequest, float]:
        """Returns the question to a service that does not know the job: for a place, or to hear the order; and how many
        seconds to wait. `request`: the worker's first. `grant`: the lease that was lost."""
        services, turn_s = self._services, TURN_S
        of_fallback = bool(services.fallback) and self._turns.total() >= TURNS_OF_ONE
        self._waits = not of_fallback or services.at == services.fallback
        if of_fallback:
            turn_s = 2 * TURN_S if self._waits else TURN_S_MIN
        left_s = self._began_at + self._within_s - now
        asked = messages.JoinRequest()
        asked.CopyFrom(request)
        asked.attempt, asked.admission = self._attempt, Admission.QUEUE
        asked.threads_max, asked.lanes_max, asked.slots = grant.threads, grant.lanes, grant.slots
        asked.resumed.CopyFrom(self._resumed)  # R7.26
        if order is not None:
            asked.resumed.ended.CopyFrom(order)  # R7.31
        return asked, max(TURN_S_MIN, min(turn_s, left_s) if services.are_several else left_s)

    def refused(self, code: str, why: str) -> None:
        """Notes that the service asked has no place now. `code`: of the `JoinError`, or NOT_READY."""
        self._why = why
        if code != NOT_READY and self._waits:
            self._turns[self._services.at] += 1
            self._final = code not in (*_AGAIN, "INTERNAL") and not self._services.are_several
            self._next = self._first_to_ask() if code in _AGAIN else ""

    def _first_to_ask(self) -> str:
        endpoints = self._services.all
        if self._services.fallback:
            return endpoints[0]
        if min(self._turns[endpoint] for endpoint in endpoints) >= self._turns_of_one:
            self._turns.clear()
            self._turns_of_one += 1
        return next(each for each in endpoints if self._turns[each] < self._turns_of_one)

    def next(self) -> str:
        """Returns the endpoint to go to from this one."""
        after, self._next = self._next or self._services.after, ""
        return after

    def note(self, cause: str) -> None:
        """Keeps why a service could not be reached, for want of a better reason."""
        self._why = self._why or cause

    def doubt(self, why: str) -> None:
        """Keeps why the listener at the fallback's endpoint was not believed. The error says it beside a refusal."""
        self._doubt = why

    def over(self, now: float) -> WiresumError | None:
        """Returns the error, if the search has lasted long enough."""
        if not self._final and now < self._began_at + self._within_s:
            return None
        more = f"For {now - self._began_at:.0f} s this worker has looked for another lease, and got none"
        hint = "" if self._final or self._services.fallback else f". {WITHOUT_FALLBACK}"
        why = "; ".join(filter(None, (self._why, self._doubt)))
        self._lost.args = (f"{self._lost}. {more}: {why}{hint}",)
        return self._lost


def resumed(grant: messages.JoinReply, positions: bytes, reason: str) -> messages.Resumed:
    """Describes the lost lease to a service."""
    printable = "".join(character if character.isprintable() else " " for character in reason)
    return messages.Resumed(
        slots=grant.slots,
        threads=grant.threads,
        lanes=grant.lanes,
        positions=positions,
        reason=printable[:REASON_CHARACTERS_MAX],
        job_id=job_id(grant.members_secret),
    )
