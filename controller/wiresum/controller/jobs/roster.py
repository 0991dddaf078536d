"""All jobs, their names and workers, and the leases that no job has any more. Pure."""

from __future__ import annotations

from wiresum.controller.jobs.job import Job, Lease
from wiresum.controller.jobs.tokens import Tokens


class Roster:
    def __init__(self) -> None:
        self._jobs: dict[Job, None] = {}
        """All jobs, the oldest first."""
        self.named: dict[str, Job] = {}
        """Jobs that still hold their name, by name."""
        self.tokens = Tokens()
        self.released: dict[Lease, None] = {}
        """Leases that no job has any more, but that their switches have yet to forget."""

    def __len__(self) -> int:
        return len(self._jobs) + len(self.released)

    def all(self) -> list[Job]:
        return list(self._jobs)

    def add(self, job: Job) -> None:
        """Adds a job, without its name and its workers."""
        self._jobs[job] = None

    def release_name(self, job: Job) -> None:
        """Frees the job's name. No error if another job has this name."""
        if self.named.get(job.name) is job:
            del self.named[job.name]

    def forget(self, job: Job) -> None:
        self.release_name(job)
        self.tokens.forget(job)
        del self._jobs[job]
