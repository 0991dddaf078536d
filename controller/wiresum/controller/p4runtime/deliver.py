"""Stage `deliver`: where the copies of a RESULT go, and what goes to the switch above. p4src/common/deliver.p4."""

from __future__ import annotations

from collections.abc import Sequence

import finsy as fy

from wiresum.controller.config import Host
from wiresum.controller.driver import Endpoint, JobEntry

PARENT = 0xFF
"""In place of a worker: the switch above."""
UPLINK_GROUPS = 512
"""A job's row plus this is the multicast group of what goes to the switch above. `UPLINK_GROUPS` in
p4src/common/sizes.p4."""


def entries(job: JobEntry, hosts: Sequence[Host], parent: Host | None = None) -> list[fy.P4TableEntry]:
    """One for each worker, and one for the switch above, `parent`; `hosts` are the machines that the workers are on, in
    the order of their numbers. The switch adds the number of its own port that the packet came in at, of which the job
    has those from `port_offset` on."""
    entries = [
        fy.P4TableEntry(
            "deliver",
            match=fy.Match(job=job.job, receiver=worker),
            action=fy.Action("deliver_to", mac=hosts[worker].mac, address=endpoint.address, port=_port(job, endpoint)),
        )
        for worker, endpoint in enumerate(job.endpoints)
    ]
    if job.uplink is not None:
        assert parent is not None, "a job with an uplink has a parent"
        above, number = job.uplink.parent, job.uplink.worker
        action = fy.Action("deliver_up", mac=parent.mac, address=above.address, port=_port(job, above), worker=number)
        entries.append(fy.P4TableEntry("deliver", match=fy.Match(job=job.job, receiver=PARENT), action=action))
    return entries


def _port(job: JobEntry, receiver: Endpoint) -> int:
    return (receiver.port - job.port_offset) % (1 << 16)


def group(row: int, ports: Sequence[int]) -> fy.P4MulticastGroupEntry:
    """The copies of a job's RESULTs: the switch knows each by its instance, the index of its receiver."""
    return fy.P4MulticastGroupEntry(row, replicas=[(port, worker) for worker, port in enumerate(ports)])


def uplink_group(row: int, port: int) -> fy.P4MulticastGroupEntry:
    """The one copy of what goes to the switch above, behind `port`."""
    return fy.P4MulticastGroupEntry(UPLINK_GROUPS + row, replicas=[(port, PARENT)])
