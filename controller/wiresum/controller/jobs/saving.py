"""What is written down of jobs while they change. Pure."""

from __future__ import annotations

from collections.abc import Callable

from wiresum.controller.jobs.job import Job, Lease
from wiresum.controller.jobs.outputs import Forget, Save
from wiresum.controller.jobs.records import JobRecord, record_of


class Saving:
    def __init__(self, emit: Callable[[Save | Forget], None], unix_offset: float) -> None:
        self._emit, self._unix_offset = emit, unix_offset

    def save(self, lease: Lease) -> None:
        """Of a job that has slots, with the job; or one that is released, and that no job has."""
        self._emit(Save(record_of(lease, self._unix_offset)))
        lease.job.unsaved &= not lease.is_current

    def save_soon(self, job: Job) -> None:
        """At the next tick."""
        job.unsaved = True

    def forget(self, lease: Lease) -> None:
        self._emit(Forget(JobRecord(lease.switch_name, lease.number, lease.job.name, lease.job.state.value, "")))
