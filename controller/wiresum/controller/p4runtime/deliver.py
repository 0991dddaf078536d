"""Stage `deliver`: where the copies of a RESULT go, and what goes to the parent switch. p4src/common/deliver.p4."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address

import finsy as fy

from wiresum.controller.driver import Endpoint, JobEntry
from wiresum.controller.switches import Host
from wiresum.join.constants import EVERYONE, PARENT, UPLINK_GROUPS

PIPE_SHIFT = 6
"""On a Tofino, whose pipes share a table, a receiver's bits from this one on are its pipe. A parent's lower bits are
all ones."""


def entries(
    job: JobEntry, hosts: Sequence[Host], parent: Host | None = None, pipe: int | None = None
) -> list[fy.P4TableEntry]:
    """Entries for each worker, and one for the parent switch, `parent`. `hosts`: the workers' machines, by number.
    `pipe`: on a Tofino, the job's pipe. The switch adds the offset of the port that the packet came in at, counted from
    `port_offset`."""
    entries = [
        fy.P4TableEntry(
            "deliver",
            match=fy.Match(job=job.job, receiver=receiver(worker, pipe)),
            action=fy.Action("deliver_to", mac=hosts[worker].mac, address=endpoint.address, port=_port(job, endpoint)),
        )
        for worker, endpoint in enumerate(job.endpoints)
    ]
    if job.uplink is not None:
        assert parent is not None, "a job with an uplink has a parent"
        above, number = job.uplink.parent, job.uplink.worker
        action = fy.Action("deliver_up", mac=parent.mac, address=above.address, port=_port(job, above), worker=number)
        entries.append(
            fy.P4TableEntry("deliver", match=fy.Match(job=job.job, receiver=receiver(PARENT, pipe)), action=action)
        )
    return entries


def to_everyone(job: JobEntry, group: Endpoint) -> fy.P4TableEntry:
    """The entry for the one copy to a multicast group, which the network copies further."""
    address = IPv4Address(group.address)
    mac = 0x01_00_5E << 24 | int(address) & 0x7F_FF_FF  # RFC 1112, section 6.4
    action = fy.Action("deliver_to", mac=mac, address=group.address, port=_port(job, group))
    return fy.P4TableEntry("deliver", match=fy.Match(job=job.job, receiver=EVERYONE), action=action)


def group(row: int, ports: Sequence[int], pipe: int | None = None) -> fy.P4MulticastGroupEntry:
    """The copies of a job's RESULTs; the instance of each is its receiver."""
    return fy.P4MulticastGroupEntry(row, replicas=[(port, receiver(worker, pipe)) for worker, port in enumerate(ports)])


def group_of_everyone(row: int) -> fy.P4MulticastGroupEntry:
    """A group with one copy for all workers at once. The switch has no ports."""
    return fy.P4MulticastGroupEntry(row, replicas=[(0, EVERYONE)])


def uplink_group(row: int, port: int, pipe: int | None = None) -> fy.P4MulticastGroupEntry:
    """The one copy to the parent switch, behind `port`."""
    return fy.P4MulticastGroupEntry(UPLINK_GROUPS + row, replicas=[(port, receiver(PARENT, pipe))])


def receiver(worker: int, pipe: int | None) -> int:
    """The receiver for a worker's number, or for `PARENT`."""
    return worker if pipe is None else pipe << PIPE_SHIFT | worker & (1 << PIPE_SHIFT) - 1


def _port(job: JobEntry, endpoint: Endpoint) -> int:
    return (endpoint.port - job.port_offset) % (1 << 16)
