"""Stage `admit`: who may contribute, and to which cells. p4src/common/admit.p4."""

from __future__ import annotations

from collections.abc import Sequence

import finsy as fy

from wiresum.controller.driver import JobEntry

CELL_MASK = 0xFFFF
"""A cell's number has 16 bits, on the wire and in the switch."""


def entries(job: JobEntry, row: int, ports: Sequence[int]) -> list[fy.P4TableEntry]:
    """One for each worker and thread of a job whose counters are in `row`; `ports` are the workers' at the switch. A
    thread sends from the UDP port that it listens at, the worker's base port plus its number: another process of that
    host does not have that port.

    A thread owns a run of 2 * slots / threads cells, a power of two: the bits above say whether a cell is in it.
    """
    full = (1 << job.workers) - 1
    cells_of_thread = 2 * job.slots // job.threads
    return [
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
                cell_base=2 * job.slot_base,
                lease_mask=CELL_MASK & ~(cells_of_thread - 1),
                lease_prefix=thread * cells_of_thread,
            ),
        )
        for worker in range(job.workers)
        for thread in range(job.threads)
    ]
