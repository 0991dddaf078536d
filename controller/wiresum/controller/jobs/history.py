"""How jobs ended. Pure.

`ENDED_MAX` are kept. When there are more, the oldest of the tenant that has the most goes, so that a flood displaces
only its own tenant's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable

from wiresum import join
from wiresum.controller.jobs.job import Job
from wiresum.controller.jobs.outputs import Forget, Save
from wiresum.controller.jobs.records import EndedRecord
from wiresum.join.constants import REASON_CHARACTERS_MAX

ENDED_MAX = 2000

COMPLETED = "completed"
"""All workers have left."""
DID_NOT_BEGIN = "did_not_begin"


class History:
    def __init__(
        self, emit: Callable[[Save | Forget], None], unix_offset: float, *, ended_max: int = ENDED_MAX
    ) -> None:
        """`emit`: takes what is to be written down."""
        self._emit = emit
        self._unix_offset = unix_offset
        self._ended_max = ended_max
        self._by_tenant: dict[str, deque[EndedRecord]] = {}
        self._count = 0
        self._sequence = 0

    def __len__(self) -> int:
        return self._count

    def note_ended(self, job: Job, ended: join.JobEnded, now: float) -> None:
        """Of a job that ran."""
        unspecified = ended.cause == join.JobEnded.CAUSE_UNSPECIFIED
        outcome = COMPLETED if unspecified else join.JobEnded.Cause.Name(ended.cause).lower()
        self._note(job, outcome, ended.reason, now)

    def note_given_up(self, job: Job, reason: str, now: float) -> None:
        self._note(job, DID_NOT_BEGIN, reason, now)

    def restore(self, records: Iterable[EndedRecord]) -> None:
        """`records`: in the order of their sequence."""
        for record in records:
            self._add(record)

    def find(self, tenants: Collection[str] | None, job_name: str, count_max: int) -> list[join.EndedJob]:
        """The newest first. `tenants` None: of all; `job_name` empty: any; `count_max` 0: all."""
        found = [
            record
            for tenant, records in self._by_tenant.items()
            if tenants is None or tenant in tenants
            for record in records
            if job_name in ("", record.job.name)
        ]
        found.sort(key=lambda record: record.sequence, reverse=True)
        return [record.job for record in found[: count_max or None]]

    def _note(self, job: Job, outcome: str, reason: str, now: float) -> None:
        ended = join.EndedJob(
            name=job.name,
            outcome=outcome,
            reason=reason[:REASON_CHARACTERS_MAX],
            world_size=job.world_size,
            tenant=job.tenant,
            caller=job.asker.name,
            switch_name=job.switch_name,
            slots=job.slots,
            created_at=job.created_at + self._unix_offset,
            ended_at=now + self._unix_offset,
            switches=max(1, len(job.nodes)),
            moves=job.move_number,
        )
        record = EndedRecord(self._sequence + 1, ended)
        self._add(record)
        self._emit(Save(record))
        while self._count > self._ended_max:
            self._emit(Forget(self._forget_one()))

    def _add(self, record: EndedRecord) -> None:
        self._by_tenant.setdefault(record.job.tenant, deque()).append(record)
        self._count += 1
        self._sequence = record.sequence

    def _forget_one(self) -> EndedRecord:
        largest = max(self._by_tenant, key=lambda tenant: len(self._by_tenant[tenant]))
        record = self._by_tenant[largest].popleft()
        if not self._by_tenant[largest]:
            del self._by_tenant[largest]
        self._count -= 1
        return record
