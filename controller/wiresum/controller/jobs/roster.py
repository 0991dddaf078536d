"""The jobs that there are, and their names and workers. Pure."""

from __future__ import annotations

from wiresum.controller.jobs.job import Job
from wiresum.controller.jobs.members import Members


class Roster:
    def __init__(self) -> None:
        self._jobs: dict[Job, None] = {}
        """The oldest first, with leases that are over."""
        self.named: dict[str, Job] = {}
        """Those that still hold their name."""
        self.members = Members()

    def __len__(self) -> int:
        return len(self._jobs)

    def all(self) -> list[Job]:
        return list(self._jobs)

    def add(self, job: Job) -> None:
        """Without its name and its workers. No error if it is there."""
        self._jobs[job] = None

    def release_name(self, job: Job) -> None:
        """No error if another job has it."""
        if self.named.get(job.name) is job:
            del self.named[job.name]

    def forget(self, job: Job) -> None:
        self.release_name(job)
        self.members.forget(job)
        del self._jobs[job]
