"""Stage `deliver`: where the copies of a RESULT go. p4src/common/deliver.p4."""

from __future__ import annotations

from collections.abc import Sequence

import finsy as fy

from wiresum.controller.config import Host
from wiresum.controller.driver import JobEntry


PARENT = 0xFF
"""In place of a worker: the switch above."""


def entries(job: JobEntry, hosts: Sequence[Host], parent: Host | None = None) -> list[fy.P4TableEntry]:
    """One for each worker, and one for the switch above; `hosts` are the machines that they are on, in the order of the
    workers' numbers."""
    endpoints = dict(enumerate(zip(hosts, job.endpoints, strict=True)))
    if job.uplink is not None and parent is not None:
        endpoints[PARENT] = (parent, job.uplink.parent)
    return [
        fy.P4TableEntry(
            "deliver",
            match=fy.Match(job=job.job, receiver=receiver),
            action=fy.Action("deliver_to", mac=host.mac, address=endpoint.address, port=endpoint.port),
        )
        for receiver, (host, endpoint) in endpoints.items()
    ]


def group(row: int, ports: Sequence[int]) -> fy.P4MulticastGroupEntry:
    """The copies of a job's RESULTs: the switch knows each by its instance, the index of its receiver."""
    return fy.P4MulticastGroupEntry(row, replicas=[(port, worker) for worker, port in enumerate(ports)])
