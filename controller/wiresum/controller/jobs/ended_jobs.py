"""Jobs that are over, for workers that come back after they were cut off. Pure. Not kept across a restart."""

from __future__ import annotations

from collections import deque

from wiresum import join
from wiresum.controller.jobs.job import Job, Worker, same_secret

GONE_MAX = 256
"""How many are remembered, with their workers."""


class Gone:
    def __init__(self) -> None:
        self._jobs: deque[Job] = deque(maxlen=GONE_MAX)

    def add(self, job: Job) -> None:
        self._jobs.append(job)

    def find(self, member: join.Member) -> Worker | None:
        """Numbers are used again, and tokens are not."""
        jobs = (job for job in self._jobs if job.number == member.job and member.switch_name in job.nodes)
        return next((worker for job in jobs if (worker := worker_of(job, member)) is not None), None)


def worker_of(job: Job, member: join.Member) -> Worker | None:
    """None: no worker of the job has this token. `job` is at the member's switch."""
    ranks = job.nodes[member.switch_name].branch.ranks
    if member.worker >= len(ranks):
        return None
    worker = job.workers[ranks[member.worker]]
    return worker if same_secret(worker.token, member.token) else None
