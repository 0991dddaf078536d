"""Stage `deliver`: where the copies of a RESULT go. p4src/common/deliver.p4."""

from __future__ import annotations

from collections.abc import Sequence

import finsy as fy

from wiresum.controller.config import Host
from wiresum.controller.driver import JobEntry


def entries(job: JobEntry, hosts: Sequence[Host]) -> list[fy.P4TableEntry]:
    """One for each worker; `hosts` are the machines that they are on, in order of rank."""
    return [
        fy.P4TableEntry(
            "deliver",
            match=fy.Match(job=job.job, receiver=worker),
            action=fy.Action("deliver_to", mac=hosts[worker].mac, address=endpoint.address, port=endpoint.port),
        )
        for worker, endpoint in enumerate(job.endpoints)
    ]


def group(row: int, ports: Sequence[int]) -> fy.P4MulticastGroupEntry:
    """The copies of a job's RESULTs: the switch knows each by its instance, the index of its receiver."""
    return fy.P4MulticastGroupEntry(row, replicas=[(port, worker) for worker, port in enumerate(ports)])
