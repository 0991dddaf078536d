"""Records of jobs that a service cannot continue with, after a restart. Pure.

A record may be damaged, or written by another release, or name switches and hosts that the configuration does not have
any more. Then the other jobs continue without it. The record is kept on disk, apart from those of jobs that run; named
in reports, in the log and by `wiresum controller check`; and tried again when a service starts, until an operator
removes it.

Nothing is withheld for its sake: a switch takes no job before it holds exactly the jobs that the service continues with
(telling.py). So when the record's slots and number are given to others, the switches have forgotten its job. Its key is
no other job's. If the record is tried again, and a switch has forgotten the job meanwhile, the job ends as any such job
does.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator

from wiresum import join
from wiresum.controller.jobs.job import Job
from wiresum.controller.jobs.outputs import Forget, Save
from wiresum.controller.jobs.records import JobRecord, SetAside
from wiresum.controller.jobs.refusal import Refusal
from wiresum.join.constants import JOB_NAME_BYTES_MAX, REASON_CHARACTERS_MAX

log = logging.getLogger(__name__)

SET_ASIDE_MAX = 4096
"""How many records are kept; beyond, the oldest goes."""


class RecordsSetAside:
    def __init__(self, emit: Callable[[Save | Forget], None]) -> None:
        self._emit = emit
        self._kept: list[SetAside] = []
        """Records, the oldest first."""
        self._sequence = 0

    def restore(
        self, jobs: Iterable[JobRecord], before: Iterable[SetAside], take: Callable[[JobRecord], Job]
    ) -> Iterator[Job]:
        """Yields the jobs that continue, of `jobs` and of those set aside `before`. `take` makes a job of a record; it
        raises, and changes nothing, if the service cannot continue with the record."""
        before = list(before)
        self._sequence = max((each.sequence for each in before), default=0)
        for each in [*(SetAside(0, record, "") for record in jobs), *before]:
            found = each.why if each.damaged else _try(take, each.record)
            if isinstance(found, str):
                self._keep(each, found)
                continue
            if each.sequence:
                log.warning("%s goes on again: its record had been set aside", _described(each.record))
                self._emit(Forget(each))
                self._emit(Save(each.record))
            yield found
        self._kept.sort(key=lambda each: each.sequence)
        while len(self._kept) > SET_ASIDE_MAX:
            self._forget(self._kept.pop(0))

    def forget_all(self) -> None:
        for each in self._kept:
            self._forget(each)
        self._kept.clear()

    def remove(self, job_name: str) -> int:
        """Removes the records of this name. Returns how many there were; raises a `Refusal` if there is none."""
        found = [each for each in self._kept if shown(each.record.name) == job_name]
        if not found:
            there = ", ".join(sorted({shown(each.record.name) for each in self._kept})) or "none"
            text = f"no record of a job {job_name!r} is set aside; there are: {there}"
            raise Refusal("NOT_FOUND", text[:REASON_CHARACTERS_MAX])
        for each in found:
            self._forget(each)
        self._kept = [each for each in self._kept if each not in found]
        return len(found)

    def report(self) -> list[join.SetAsideRecord]:
        return [about(each) for each in self._kept]

    def _keep(self, each: SetAside, why: str) -> None:
        if not each.sequence:
            log.error("%s cannot go on, and its record is set aside: %s", _described(each.record), why)
            self._sequence += 1
            each = dataclasses.replace(each, sequence=self._sequence, why=why)
            self._emit(Save(each))
        self._kept.append(dataclasses.replace(each, why=why))

    def _forget(self, each: SetAside) -> None:
        log.warning("the record of %s, which was set aside, is removed", _described(each.record))
        self._emit(Forget(each))


def about(each: SetAside) -> join.SetAsideRecord:
    record = each.record
    return join.SetAsideRecord(
        name=shown(record.name),
        switch_name=shown(record.switch_name),
        state=shown(record.state),
        why=shown(each.why, REASON_CHARACTERS_MAX),
    )


def shown(text: object, characters_max: int = JOB_NAME_BYTES_MAX) -> str:
    """Makes a text from a record printable and short: a damaged record may contain anything."""
    return "".join(each if each.isprintable() else "?" for each in str(text)[:characters_max]) or "?"


def _described(record: JobRecord) -> str:
    return f"job {shown(record.name)!r} at {shown(record.switch_name)}"


def _try(take: Callable[[JobRecord], Job], record: JobRecord) -> Job | str:
    """The job, or a clause that says why the service cannot continue with it."""
    try:
        return take(record)
    except ValueError as error:
        return shown(error, REASON_CHARACTERS_MAX)
    except Exception as error:  # whatever is wrong with one, the others go on
        log.exception("the record of %s could not be read", _described(record))
        return shown(repr(error), REASON_CHARACTERS_MAX)
