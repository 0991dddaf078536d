"""How jobs ended. Pure.

At most `ENDED_MAX` ends are kept, of `ENDED_BYTES_MAX` together. Beyond either limit, the oldest end of the tenant that
has the most goes, so that a flood displaces only its own tenant's ends. Callers get them in pages.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from itertools import chain

from wiresum import join
from wiresum.controller.jobs.job import Job
from wiresum.controller.jobs.outputs import Forget, Save
from wiresum.controller.jobs.records import EndedRecord
from wiresum.join.constants import REASON_CHARACTERS_MAX

ENDED_MAX = 2000
ENDED_BYTES_MAX = 2 << 20
CALLER_BYTES_MAX = 256

COMPLETED = "completed"
"""The outcome of a job that all workers have left."""
DID_NOT_BEGIN = "did_not_begin"


class History:
    def __init__(
        self,
        emit: Callable[[Save | Forget], None],
        unix_offset: float,
        *,
        ended_max: int = ENDED_MAX,
        bytes_max: int = ENDED_BYTES_MAX,
    ) -> None:
        """`emit`: takes records to be stored or forgotten."""
        self._emit = emit
        self._unix_offset = unix_offset
        self._ended_max, self._bytes_max = ended_max, bytes_max
        self._by_tenant: dict[str, list[EndedRecord]] = {}
        self._by_name: dict[str, list[EndedRecord]] = {}
        """The same records as in `_by_tenant`, by job name. All lists are in the order of their sequence."""
        self._bytes: Counter[str] = Counter()
        """Bytes of the records, by tenant."""
        self._count = 0
        self._sequence = 0

    def __len__(self) -> int:
        return self._count

    def note_ended(self, job: Job, ended: join.JobEnded, now: float) -> None:
        """Records the end of a job that ran."""
        unspecified = ended.cause == join.JobEnded.CAUSE_UNSPECIFIED
        outcome = COMPLETED if unspecified else join.JobEnded.Cause.Name(ended.cause).lower()
        self._note(job, outcome, ended.reason, now)

    def note_given_up(self, job: Job, reason: str, now: float) -> None:
        self._note(job, DID_NOT_BEGIN, reason, now)

    def restore(self, records: Iterable[EndedRecord]) -> None:
        """Adds stored records, which are in the order of their sequence."""
        for record in records:
            self._add(record)
        self._keep_bounds()

    def page(
        self,
        tenants: Collection[str] | None,
        job_name: str = "",
        *,
        count_max: int = 0,
        page: int = 0,
        bytes_max: int = join.PAGE_BYTES_MAX,
    ) -> join.EndedJobs:
        """Returns a page of ended jobs, the newest first. `tenants` None: those of all tenants; `job_name` empty: any
        name; `count_max` 0: as many as a page holds; `page` 0: the first page."""
        found, size, last = join.EndedJobs(), 0, 0
        if job_name:
            kept = [self._by_name.get(job_name, [])]
        else:
            kept = [records for tenant, records in self._by_tenant.items() if tenants is None or tenant in tenants]
        # Repeated questions for a job that does not exist, or for the last page, must be cheap.
        older = [reversed(records[: _place(records, page)] if page else records) for records in kept]
        for record in heapq.merge(*older, key=lambda record: -record.sequence) if len(older) > 1 else chain(*older):
            if tenants is not None and record.job.tenant not in tenants:
                continue
            size += record.job.ByteSize()
            if found.jobs and (size > bytes_max or len(found.jobs) == count_max):
                found.next_page = last
                break
            found.jobs.append(record.job)
            last = record.sequence
        return found

    def _note(self, job: Job, outcome: str, reason: str, now: float) -> None:
        ended = join.EndedJob(
            name=job.name,
            outcome=outcome,
            reason=_short(reason, REASON_CHARACTERS_MAX),
            world_size=job.members.world_size,
            tenant=job.tenant,
            caller=_short(job.terms.asker.name, CALLER_BYTES_MAX),
            switch_name=job.lease.switch_name,
            slots=job.lease.slots,
            created_at=job.created_at + self._unix_offset,
            ended_at=now + self._unix_offset,
            switches=max(1, len(job.lease.nodes)),
            moves=job.move_number,
        )
        record = EndedRecord(self._sequence + 1, ended)
        self._add(record)
        self._emit(Save(record))
        self._keep_bounds()

    def _keep_bounds(self) -> None:
        while self._count > self._ended_max:
            self._forget_one_of(max(self._by_tenant, key=lambda tenant: len(self._by_tenant[tenant])))
        while self._bytes.total() > self._bytes_max:
            self._forget_one_of(max(self._bytes, key=lambda tenant: self._bytes[tenant]))

    def _add(self, record: EndedRecord) -> None:
        self._by_tenant.setdefault(record.job.tenant, []).append(record)
        self._by_name.setdefault(record.job.name, []).append(record)
        self._bytes[record.job.tenant] += record.job.ByteSize()
        self._count += 1
        self._sequence = record.sequence

    def _forget_one_of(self, tenant: str) -> None:
        record = self._by_tenant[tenant].pop(0)
        named = self._by_name[record.job.name]
        del named[_place(named, record.sequence)]
        if not named:
            del self._by_name[record.job.name]
        self._bytes[tenant] -= record.job.ByteSize()
        if not self._by_tenant[tenant]:
            del self._by_tenant[tenant], self._bytes[tenant]
        self._count -= 1
        self._emit(Forget(record))


def _place(records: list[EndedRecord], sequence: int) -> int:
    """Index of the first record whose sequence is not less than `sequence`."""
    return bisect_left(records, sequence, key=lambda record: record.sequence)


def _short(text: str, bytes_max: int) -> str:
    return text.encode()[:bytes_max].decode(errors="ignore")
