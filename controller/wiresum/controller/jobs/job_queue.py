"""Which of the jobs that wait gets slots next. Pure.

The larger priority first, and then whoever has waited longer. A job that finds no room does not stop those behind it:
they may need less, or another switch. But each job that gets slots which an earlier one might have used overtakes it,
and a job that was overtaken `overtaken_max` times is overtaken no more: its switches are kept for it, and give no slots
to anybody behind it until it has its own. So a job that is large, in slots or in switches, waits for a bounded number
of smaller ones, and for those that ran before it. A job of a larger priority does not overtake: it stands before.

Only a job that waits for room is overtaken. One that waits for its tenant's quota, or for a switch that cannot be used,
stops nobody, and nothing is kept for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set

from wiresum.controller.jobs.job import Job, Wants

Allocate = Callable[[Job, Set[str]], bool]
"""Gives a job its slots, at switches of which none is kept for others, or sets what it `wants`."""


class JobQueue:
    def __init__(self, overtaken_max: int) -> None:
        self._overtaken_max = overtaken_max
        self._jobs: list[Job] = []
        self._tickets = 0

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        """The next one first."""
        return iter(list(self._jobs))

    def add(self, job: Job) -> None:
        self._tickets += 1
        job.ticket = self._tickets
        self._jobs.append(job)
        self._jobs.sort(key=lambda waiting: (-waiting.priority, waiting.ticket))

    def remove(self, job: Job) -> None:
        self._jobs.remove(job)

    def position(self, job: Job) -> int:
        """1: the next; 0: it does not wait here."""
        return self._jobs.index(job) + 1 if job in self._jobs else 0

    def serve(self, place: Allocate) -> None:
        """Places whom it can, in order; they leave the queue."""
        kept: set[str] = set()
        passed: list[Job] = []
        for job in self:
            if place(job, kept):
                self._jobs.remove(job)
                for earlier in passed:
                    earlier.overtaken += not earlier.switches_wanted().isdisjoint(job.nodes)
            elif job.wants in (Wants.ROOM, Wants.TURN):
                passed.append(job)
            for earlier in passed:
                if earlier.overtaken >= self._overtaken_max:
                    kept |= earlier.switches_wanted()
