"""Stage `admit`: which packets may contribute, and to which cells. p4src/common/admit.p4."""

from __future__ import annotations

from collections.abc import Sequence

import finsy as fy

from wiresum.controller.driver import Endpoint, JobEntry
from wiresum.join.constants import PARENT_BIT

CELL_MASK = 0xFFFF
"""A cell's number has 16 bits, on the wire and in the switch."""


def entries(job: JobEntry, row: int, ports: Sequence[int], uplink_port: int = 0) -> list[fy.P4TableEntry]:
    """Entries for each thread of each worker, and of the parent switch. `row`: row of the job's counters. `ports`: the
    workers' ports at the switch; `uplink_port`: the port towards the parent. A thread sends from the UDP port that it
    listens at, the worker's base port plus the thread's number, which no other process of that host has.

    The table's "thread" is the switch's port, and the job's first thread is `port_offset`. A thread owns a run of 2 *
    slots / threads cells, a power of two: the higher bits of a cell's number say whether the cell is in the run.
    """
    threads = range(job.threads)
    entries = [_worker(job, row, ports[worker], worker, thread) for worker in range(job.workers) for thread in threads]
    if job.uplink is not None:
        entries += [_parent(job, job.uplink.parent, row, uplink_port, thread) for thread in threads]
    return entries


def _worker(job: JobEntry, row: int, port: int, worker: int, thread: int) -> fy.P4TableEntry:
    others = _full(job) & ~(1 << worker)
    return fy.P4TableEntry(
        "admit",
        match=fy.Match(**_key(job, job.endpoints[worker], port, thread), worker=worker),
        action=fy.Action(
            "admit_worker",
            row=row,
            group=row,
            bit_own=1 << worker,
            bit_others=others if job.uplink is None else others | PARENT_BIT,
            has_parent=int(job.uplink is not None),
            **_lease(job, thread),
        ),
    )


def _parent(job: JobEntry, parent: Endpoint, row: int, port: int, thread: int) -> fy.P4TableEntry:
    return fy.P4TableEntry(
        "admit_parent_entry",
        match=fy.Match(**_key(job, parent, port, thread)),
        action=fy.Action("admit_parent", row=row, group=row, bit_workers=_full(job), **_lease(job, thread)),
    )


def _full(job: JobEntry) -> int:
    return (1 << job.workers) - 1


def _key(job: JobEntry, source: Endpoint, port: int, thread: int) -> dict[str, int | str]:
    return {
        "ingress_port": port,
        "source": source.address,
        "source_port": source.port + thread,
        "thread": job.port_offset + thread,
        "job": job.job,
        "key": job.key,
    }


def _lease(job: JobEntry, thread: int) -> dict[str, int]:
    cells_of_thread = 2 * job.slots // job.threads
    return {
        "cell_base": 2 * job.slot_base,
        "lease_mask": CELL_MASK & ~(cells_of_thread - 1),
        "lease_prefix": thread * cells_of_thread,
    }
