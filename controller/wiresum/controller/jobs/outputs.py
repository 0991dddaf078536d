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
    """Answer this worker's Join with a grant."""

    worker: Worker
    reply: join.JoinReply


@dataclass(frozen=True)
class Refuse:
    """Answer this worker's Join with a refusal."""

    worker: Worker
    refusal: Refusal


@dataclass(frozen=True)
class RefuseForGood:
    """Answer a Join by which the worker would continue a job that is over."""

    worker: Worker
    ended: join.JobEnded


@dataclass(frozen=True)
class Tell:
    """Send the end of the job on the worker's Attend stream, then call `told`, and close the stream."""

    worker: Worker
    ended: join.JobEnded


@dataclass(frozen=True)
class Halt:
    """Tell the worker to halt, on its Attend stream, if there is one."""

    worker: Worker
    event: join.JobEvent


@dataclass(frozen=True)
class GoOn:
    """Tell the worker to continue, on its Attend stream, if there is one."""

    worker: Worker
    event: join.JobEvent


@dataclass(frozen=True)
class Close:
    """Close the worker's Attend stream."""

    worker: Worker


# For switches.


@dataclass(frozen=True)
class Admit:
    """Install the job in the switch, then call `admitted` or `refused`."""

    switch_name: str
    entry: JobEntry


@dataclass(frozen=True)
class Evict:
    """Make the switch forget the job, then call `evicted` or `evict_failed`."""

    switch_name: str
    number: int


@dataclass(frozen=True)
class Count:
    """Ask the switch what it has counted for this job, then call `counted`."""

    switch_name: str
    number: int


@dataclass(frozen=True)
class Reconcile:
    """Make the switch hold exactly these entries, then call `reconciled` or `reconcile_failed`."""

    switch_name: str
    entries: tuple[JobEntry, ...]


# For the state on disk.


Record = JobRecord | SetAside | Reservation | EndedRecord
"""What is saved or forgotten. Saving a `SetAside` removes the record from those of jobs."""


@dataclass(frozen=True)
class Save:
    record: Record


@dataclass(frozen=True)
class Forget:
    record: Record


@dataclass(frozen=True)
class SaveKeys:
    """Write how many keys, from the first, may be used."""

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
