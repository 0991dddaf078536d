"""What `Jobs` wants done, to be carried out in order.

A `Write` must be on disk before any later output takes effect. If the disk fails, two kinds of outputs still wait for
it: a `Grant`, `Halt` or `GoOn`, which must not be forgotten, and what switches are told after a `SaveKeys`, since a key
must be recorded before it is used. The others do not wait, above all not the end of a job.
"""

from __future__ import annotations

from dataclasses import dataclass

from wiresum import join
from wiresum.controller.driver import JobEntry
from wiresum.controller.jobs.job import Worker
from wiresum.controller.jobs.records import EndedRecord, JobRecord, Reservation, SetAside
from wiresum.controller.jobs.refusal import Refusal

# For workers.


@dataclass(frozen=True)
class Wait:
    """Tell this worker's Join what it waits for."""

    worker: Worker
    waiting: join.Waiting


@dataclass(frozen=True)
class Grant:
    """Answer this worker's Join."""

    worker: Worker
    reply: join.JoinReply


@dataclass(frozen=True)
class Refuse:
    """Answer this worker's Join."""

    worker: Worker
    refusal: Refusal


@dataclass(frozen=True)
class RefuseForGood:
    """Answer this worker's Join, by which it would go on with a job that is over."""

    worker: Worker
    ended: join.JobEnded


@dataclass(frozen=True)
class Tell:
    """Send this on the worker's Attend stream, then call `told`, and close the stream."""

    worker: Worker
    ended: join.JobEnded


@dataclass(frozen=True)
class Halt:
    """Send this on the worker's Attend stream, if there is one."""

    worker: Worker
    event: join.JobEvent


@dataclass(frozen=True)
class GoOn:
    """Send this on the worker's Attend stream, if there is one."""

    worker: Worker
    event: join.JobEvent


@dataclass(frozen=True)
class Close:
    """Close the worker's Attend stream."""

    worker: Worker


# For switches.


@dataclass(frozen=True)
class Admit:
    """Tell the switch, then call `admitted` or `refused`."""

    switch_name: str
    entry: JobEntry


@dataclass(frozen=True)
class Evict:
    """Tell the switch, then call `evicted` or `evict_failed`."""

    switch_name: str
    number: int


@dataclass(frozen=True)
class Count:
    """Ask the switch what it has counted for this job, then call `counted`."""

    switch_name: str
    number: int


@dataclass(frozen=True)
class Reconcile:
    """Make the switch hold exactly these, then call `reconciled` or `reconcile_failed`."""

    switch_name: str
    entries: tuple[JobEntry, ...]


# For the state on disk.


Record = JobRecord | SetAside | Reservation | EndedRecord
"""A `SetAside` that is saved is a job's record no more."""


@dataclass(frozen=True)
class Save:
    record: Record


@dataclass(frozen=True)
class Forget:
    record: Record


@dataclass(frozen=True)
class SaveKeys:
    """How many keys, from the first, may be used."""

    reserved: int


@dataclass(frozen=True)
class CheckServing:
    """Write nothing, but fail if another controller serves from the state."""


@dataclass(frozen=True)
class SaveDraining:
    switch_name: str
    draining: bool


Write = Save | Forget | SaveKeys | CheckServing | SaveDraining
Output = Wait | Grant | Refuse | RefuseForGood | Tell | Halt | GoOn | Close | Admit | Evict | Count | Reconcile | Write
