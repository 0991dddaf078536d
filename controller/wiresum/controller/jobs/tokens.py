"""Identifies callers: workers by their tokens. Pure.

A token is random, secret, and valid for one membership. Job numbers, switches and numbers at switches are used again,
and a job that moves gets others; a worker that was cut off meanwhile still says the old ones.
"""

from __future__ import annotations

import hashlib
from collections import deque

from wiresum import join
from wiresum.controller.jobs.job import Job, Worker

GONE_MAX = 256
"""How many jobs that are over are remembered, with their workers, for workers that come back after they were cut off.
They are not kept across a restart."""


class Tokens:
    def __init__(self) -> None:
        self._there: dict[bytes, Worker] = {}
        self._gone: dict[bytes, Worker] = {}
        self._gone_jobs: deque[Job] = deque()

    def add(self, job: Job) -> None:
        """Adds all workers of the job."""
        self._there.update((_digest(worker.token), worker) for worker in job.members.workers.values())

    def forget(self, job: Job) -> None:
        """Removes the job's workers. No error if they were not added."""
        for worker in job.members.workers.values():
            self._there.pop(_digest(worker.token), None)

    def note_gone(self, job: Job) -> None:
        """Remembers a job that is over, since its workers may come back to hear why."""
        self._gone_jobs.append(job)
        self._gone.update((_digest(worker.token), worker) for worker in job.members.workers.values())
        while len(self._gone_jobs) > GONE_MAX:
            for worker in self._gone_jobs.popleft().members.workers.values():
                del self._gone[_digest(worker.token)]

    def find(self, member: join.Member, *, gone: bool = False) -> Worker | None:
        """The worker that has this member's token; None: no worker has. `gone`: look among jobs that are over, too."""
        digest = _digest(member.token)
        return self._there.get(digest) or (self._gone.get(digest) if gone else None)


def _digest(token: str) -> bytes:
    """Digest of a token. Since the table has digests, the time of a look-up reveals nothing about a token."""
    return hashlib.blake2s(token.encode()).digest()
