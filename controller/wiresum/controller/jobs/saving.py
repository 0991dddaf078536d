"""Writes records of jobs while they change. Pure."""

from __future__ import annotations

from collections.abc import Callable

from wiresum.controller.jobs.job import Job, Lease
from wiresum.controller.jobs.outputs import Forget, Save
from wiresum.controller.jobs.records import JobRecord, record_of


class Saving:
    def __init__(self, emit: Callable[[Save | Forget], None], unix_offset: float) -> None:
        self._emit, self._unix_offset = emit, unix_offset

    def save(self, lease: Lease) -> None:
        """Writes the record of a lease that has slots, with its job; or of a released lease that no job has any
        more."""
        self._emit(Save(record_of(lease, self._unix_offset)))
        lease.job.unsaved &= not lease.is_current

    def save_soon(self, job: Job) -> None:
        """Marks the job to be written at the next tick."""
        job.unsaved = True

    def forget(self, lease: Lease) -> None:
        self._emit(Forget(JobRecord(lease.switch_name, lease.number, lease.job.name, lease.job.state.value, "")))
