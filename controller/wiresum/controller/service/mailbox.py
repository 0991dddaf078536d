"""What is to be sent to a worker on its two streams. Only the newest event of each kind is kept, so that a mailbox
cannot grow, however slowly the worker reads."""

from __future__ import annotations

import asyncio

from wiresum import join
from wiresum.controller.jobs.refusal import Refusal


class JoinMailbox:
    """Events of a Join: what the worker waits for, and then its grant, a refusal, or how its job has ended."""

    def __init__(self) -> None:
        self._waiting: join.Waiting | None = None
        self._answer: join.JoinReply | join.JobEnded | Refusal | None = None
        self._filled = asyncio.Event()

    def wait_for(self, waiting: join.Waiting) -> None:
        self._waiting = waiting
        self._filled.set()

    def answer(self, answer: join.JoinReply | join.JobEnded | Refusal) -> None:
        """Sets the answer; only the first answer counts."""
        self._answer = self._answer or answer
        self._filled.set()

    async def next_event(self) -> join.JoinEvent:
        """Waits for the next event. Nothing follows a grant, or the end. Raises the answer if it is a `Refusal`."""
        await self._filled.wait()
        self._filled.clear()
        if isinstance(self._answer, Refusal):
            raise self._answer
        if isinstance(self._answer, join.JobEnded):
            return join.JoinEvent(ended=self._answer)
        if self._answer is not None:
            return join.JoinEvent(granted=self._answer)
        return join.JoinEvent(waiting=self._waiting)


class AttendMailbox:
    """Events of an Attend stream: the end, or an order to the worker, or else a pulse. Pulses that pile up count as
    one."""

    def __init__(self) -> None:
        self._ended: join.JobEnded | None = None
        self._order: join.JobEvent | None = None
        self._lost = ""
        self.closed = False
        self._filled = asyncio.Event()

    def pulse(self, lost: str) -> None:
        """Sets a pulse; only the newest counts. `lost`: see `Moving.lost`."""
        self._lost = lost
        self._filled.set()

    def order(self, event: join.JobEvent) -> None:
        """Sets an order; only the newest counts: a worker that is to halt for another move need not hear of the former
        one."""
        self._order = event
        self._filled.set()

    def end(self, ended: join.JobEnded) -> None:
        """Sets how the job has ended; only the first end counts."""
        self._ended = self._ended or ended
        self._filled.set()

    def close(self) -> None:
        self.closed = True
        self._filled.set()

    async def next_event(self) -> join.JobEvent | None:
        """Waits for the next event; None: the stream is to be closed."""
        await self._filled.wait()
        self._filled.clear()
        if self._ended is not None:
            return join.JobEvent(ended=self._ended)
        if self.closed:
            return None
        order, self._order = self._order, None
        return order or join.JobEvent(pulse=join.Pulse(lost=self._lost))
