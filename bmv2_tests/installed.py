"""The entries of the vectors' jobs as a controller installs them. Only the row of counters is a parameter: the
driver derives it from the job's number, and vectors use any job number."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bmv2_tests.vectors import Job, Member
from wiresum.controller import Endpoint, JobEntry
from wiresum.controller.driver import Uplink
from wiresum.controller.p4runtime import Host, admit, deliver, desired
from wiresum.join.constants import PARENT


def entry_of(job: Job, endpoint: Callable[[Member], Endpoint], first_slot: int = 0) -> JobEntry:
    """The entry of a job; its slots are counted from `first_slot`."""
    return JobEntry(
        job=job.number,
        key=job.key,
        workers=job.workers,
        threads=job.threads,
        lanes=job.lanes,
        slot_base=first_slot + job.slot_base,
        slots=job.slots,
        endpoints=tuple(endpoint(member) for member in job.members),
        uplink=None if job.parent is None else Uplink(endpoint(Member(job.number, PARENT)), job.parent),
    )


def entities_of(entry: JobEntry, row: int, hosts: Sequence[Host], parent: Host | None = None) -> list[desired.Entity]:
    """All entities of a job; `hosts` are those of its workers."""
    ports = [host.port for host in hosts]
    entities: list[desired.Entity] = [*deliver.entries(entry, hosts, parent), deliver.group(row, ports)]
    if parent is None:
        return [*entities, *admit.entries(entry, row, ports)]
    return [*entities, deliver.uplink_group(row, parent.port), *admit.entries(entry, row, ports, parent.port)]
