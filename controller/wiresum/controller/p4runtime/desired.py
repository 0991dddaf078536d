"""What a switch should hold: a pure function of its configuration and the jobs.

A job's counters are in row number + 1 (row 0 is for packets of no job), and its multicast groups follow from its number
too. So two controllers that know the same jobs want the same entries, and no rows need to be recorded.

Pipes of a Tofino that are nodes (nodes.py) share its tables: each entry is in all pipes. So rows and groups are
assigned to the pipes in turn, receivers begin with their pipe, and admissions name a port, which belongs to one pipe.
`pipe_of` says which pipe an entry is for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import finsy as fy

from wiresum.controller import nodes
from wiresum.controller.driver import Endpoint, JobEntry, Uplink
from wiresum.controller.p4runtime import admit, deliver, forward, own
from wiresum.controller.p4runtime.target import Target
from wiresum.controller.resources import GROUPS, Amounts, JobShape
from wiresum.controller.switches import Host
from wiresum.join.constants import UPLINK_GROUPS

Entity: TypeAlias = fy.P4TableEntry | fy.P4MulticastGroupEntry

_ELSEWHERE = Host(name="", address="", mac="00:00:00:00:00:00", port=0)
"""The receiver for a switch without ports, which needs the IP address only."""
_NOWHERE = Endpoint("", 0)


def of_configuration(target: Target) -> list[Entity]:
    """Entries that a switch holds without jobs."""
    entities: list[Entity] = [*own.entries(target.address, target.mac)]
    if target.has_ports:
        there = target.around
        entities += [forward.flood_group(there), *forward.entries([*there, *target.elsewhere])]
    return entities


def of_job(target: Target, job: JobEntry) -> list[Entity]:
    """Entries of a job. Raises `ValueError` for an address that is no host's."""
    return _of_job(target, job, hosts(target, job), parent(target, job))


def _of_job(target: Target, job: JobEntry, on: Sequence[Host], above: Host | None) -> list[Entity]:
    """Entries of a job. `on`: the machines of its contributors, by number; `above`: the parent switch."""
    ports = [host.port for host in on]
    row, pipe = target.row(job.job), target.pipe
    entities: list[Entity] = [*deliver.entries(job, on, above, pipe)]
    everyone = target.results_group(job.job)
    if everyone is None or job.below:  # switches below hear no group
        entities.append(deliver.group(row, ports, pipe))
    else:
        entities += [deliver.to_everyone(job, everyone), deliver.group_of_everyone(row)]
    if above is None:
        return [*entities, *admit.entries(job, row, ports)]
    uplink = deliver.uplink_group(row, above.port, pipe)
    return [*entities, uplink, *admit.entries(job, row, ports, above.port)]


def everything(target: Target, jobs: Iterable[JobEntry]) -> list[Entity]:
    return [*of_configuration(target), *(entity for job in jobs for entity in of_job(target, job))]


def amounts(entities: Iterable[Entity]) -> Amounts:
    """How many entries there are in each table, and how many groups."""
    return Amounts(Counter(GROUPS if isinstance(e, fy.P4MulticastGroupEntry) else e.table_id for e in entities))


def needs(target: Target, shape: JobShape) -> Amounts:
    """How many entries and groups a job of this shape has, whatever its addresses and numbers are."""
    job = JobEntry(
        job=0,
        key=1,
        workers=shape.contributors,
        threads=shape.threads,
        lanes=target.pipeline.lanes,
        slot_base=0,
        slots=shape.threads,
        endpoints=(_NOWHERE,) * shape.contributors,
        uplink=Uplink(_NOWHERE, 0) if shape.has_parent else None,
        below=("",) * shape.below,
    )
    return amounts(_of_job(target, job, [_ELSEWHERE] * shape.contributors, _ELSEWHERE if shape.has_parent else None))


def room(target: Target) -> Amounts:
    """How many entries and groups the switch has for jobs, in the tables that a job of every kind uses."""
    sizes = {table.preamble.name: table.size for table in target.pipeline.p4info.tables}
    sizes[GROUPS] = 2 * (target.pipeline.job_rows - 1)  # each job's, and towards its parent
    return Amounts({name: sizes[name] for name in needs(target, JobShape(1, 0, 1, has_parent=True))})


def pipe_of(target: Target, entity: Entity) -> int | None:
    """The pipe that the entry is for; None: all pipes, or the switch is one node."""
    if not target.siblings:
        return None
    if isinstance(entity, fy.P4MulticastGroupEntry):
        pipe = target.pipe_of_row(entity.multicast_group_id % UPLINK_GROUPS)
    else:
        match: Mapping[str, Any] = entity.match or {}
        pipe = nodes.pipe_of(int(match["ingress_port"])) if "ingress_port" in match else None
        pipe = int(match["receiver"]) >> deliver.PIPE_SHIFT if "receiver" in match else pipe
    return pipe if pipe in (target.pipe, *target.siblings) else None


def hosts(target: Target, job: JobEntry) -> list[Host]:
    """The machines of the job's contributors at this switch, by number. Raises `ValueError` for addresses that are no
    host's."""
    if not target.has_ports:
        return [_ELSEWHERE] * len(job.endpoints)
    known = {host.address: host for host in (*target.hosts, *target.children)}
    named = {child.name: child for child in target.children}
    names = ("",) * (len(job.endpoints) - len(job.below)) + job.below
    found = [
        named.get(name) if name else known.get(endpoint.address)
        for name, endpoint in zip(names, job.endpoints, strict=True)
    ]
    _check_known(target, {endpoint.address: host for endpoint, host in zip(job.endpoints, found, strict=True)})
    return [host for host in found if host is not None]


def parent(target: Target, job: JobEntry) -> Host | None:
    """The parent switch in the job's tree; None: there is none. Raises `ValueError` if its address is unknown."""
    if job.uplink is None:
        return None
    if not target.has_ports:
        return _ELSEWHERE
    address = job.uplink.parent.address
    known = {
        host.address: host for host in target.neighbours
    }  # the last is the parent, also where pipes share an address
    _check_known(target, {address: known.get(address)})
    return known.get(address)


def _check_known(target: Target, found: Mapping[str, Host | None]) -> None:
    """Raises `ValueError` if an address has no host. `found`: hosts by address."""
    unknown = sorted(address for address, host in found.items() if host is None)
    if unknown:
        raise ValueError(
            f"{target.name} knows no host with the address {', '.join(unknown)}: add it to the controller's "
            f"configuration, or set WIRESUM_ADDRESS at the worker to one that is there"
        )
