"""Stage `admit`: who may contribute, and to which cells. p4src/common/admit.p4."""

from __future__ import annotations

from collections.abc import Sequence

import finsy as fy

from wiresum.controller.driver import JobEntry

CELL_MASK = 0xFFFF
"""A cell's number has 16 bits, on the wire and in the switch."""
PARENT_BIT = 1 << 31
"""In bitmaps of workers: the switch above."""


def entries(job: JobEntry, row: int, ports: Sequence[int], uplink_port: int = 0) -> list[fy.P4TableEntry]:
    """One for each worker and thread of a job whose counters are in `row`, and one for each thread of the switch above;
    `ports` are the workers' at the switch, `uplink_port` is its. A thread sends from the UDP port that it listens at,
    the worker's base port plus its number: another process of that host does not have that port.

    A thread owns a run of 2 * slots / threads cells, a power of two: the bits above say whether a cell is in it.
    """
    full = (1 << job.workers) - 1
    cells_of_thread = 2 * job.slots // job.threads
    uplink = {"uplink_port": uplink_port, "uplink_worker": 0 if job.uplink is None else job.uplink.worker}
    workers = [
        fy.P4TableEntry(
            "admit",
            match=fy.Match(
                ingress_port=ports[worker],
                source=job.endpoints[worker].address,
                source_port=job.endpoints[worker].port + thread,
                thread=thread,
                job=job.job,
                key=job.key,
                worker=worker,
            ),
            action=fy.Action(
                "admit_worker",
                row=row,
                group=row,
                bit_own=1 << worker,
                bit_others=full & ~(1 << worker),
                bit_parent=0 if job.uplink is None else PARENT_BIT,
                cell_base=2 * job.slot_base,
                lease_mask=CELL_MASK & ~(cells_of_thread - 1),
                lease_prefix=thread * cells_of_thread,
                **uplink,
            ),
        )
        for worker in range(job.workers)
        for thread in range(job.threads)
    ]
    if job.uplink is None:
        return workers
    return workers + [
        fy.P4TableEntry(
            "admit_parent_entry",
            match=fy.Match(
                ingress_port=uplink_port,
                source=job.uplink.parent.address,
                source_port=job.uplink.parent.port + thread,
                thread=thread,
                job=job.job,
                key=job.key,
            ),
            action=fy.Action(
                "admit_parent",
                row=row,
                group=row,
                bit_own=PARENT_BIT,
                bit_others=full,
                cell_base=2 * job.slot_base,
                lease_mask=CELL_MASK & ~(cells_of_thread - 1),
                lease_prefix=thread * cells_of_thread,
                **uplink,
            ),
        )
        for thread in range(job.threads)
    ]
