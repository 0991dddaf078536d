"""What is written down of jobs while they change. Pure."""

from __future__ import annotations

from collections.abc import Callable

from wiresum.controller.jobs.job import Job
from wiresum.controller.jobs.outputs import Forget, Save
from wiresum.controller.jobs.records import JobRecord, record_of


class Saving:
    def __init__(self, emit: Callable[[Save | Forget], None], unix_offset: float) -> None:
        self._emit, self._unix_offset = emit, unix_offset

    def save(self, job: Job) -> None:
        """Of a job that has slots."""
        self._emit(Save(record_of(job, self._unix_offset)))
        job.unsaved = False

    def forget(self, job: Job) -> None:
        self._emit(Forget(JobRecord(job.switch_name, job.number, job.name, job.state.value, "")))
