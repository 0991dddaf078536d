"""What a switch should hold: a pure function of its configuration and the jobs, and nothing else.

A job's counters are in the row of its number + 1 (row 0 is for packets of no job), and its multicast group has the same
number, that towards the switch above one that follows from it: so two controllers that know the same jobs want the same
entries, and nobody keeps books of rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import finsy as fy

from wiresum.controller.config import Host
from wiresum.controller.driver import JobEntry
from wiresum.controller.p4runtime import admit, deliver, forward, own
from wiresum.controller.p4runtime.target import Target

Entity: TypeAlias = fy.P4TableEntry | fy.P4MulticastGroupEntry

_ELSEWHERE = Host(name="", address="", mac="00:00:00:00:00:00", port=0)
"""Whoever a switch without ports sends to: it finds them by their IP addresses alone."""


def row(job: int) -> int:
    return job + 1


def of_configuration(target: Target) -> list[Entity]:
    """What is there with and without jobs."""
    entities: list[Entity] = [own.entry(target.address, target.mac)]
    if target.has_ports:
        there = target.neighbours
        entities += [forward.flood_group(there), *forward.entries([*there, *target.elsewhere])]
    return entities


def of_job(target: Target, job: JobEntry) -> list[Entity]:
    """`ValueError` names an address that is no host's."""
    on, above = hosts(target, job), parent(target, job)
    ports = [host.port for host in on]
    number = row(job.job)
    entities: list[Entity] = [*deliver.entries(job, on, above), deliver.group(number, ports)]
    if above is None:
        return [*entities, *admit.entries(job, number, ports)]
    return [*entities, deliver.uplink_group(number, above.port), *admit.entries(job, number, ports, above.port)]


def everything(target: Target, jobs: Iterable[JobEntry]) -> list[Entity]:
    return [*of_configuration(target), *(entity for job in jobs for entity in of_job(target, job))]


def hosts(target: Target, job: JobEntry) -> list[Host]:
    """Of the job's workers at this switch, hosts and switches below, in the order of their numbers. `ValueError` names
    the addresses that are no host's."""
    return _find(target, [endpoint.address for endpoint in job.endpoints])


def parent(target: Target, job: JobEntry) -> Host | None:
    """The switch above, if there is one in the job's tree. `ValueError` as above."""
    return None if job.uplink is None else _find(target, [job.uplink.parent.address])[0]


def _find(target: Target, addresses: Sequence[str]) -> list[Host]:
    if not target.has_ports:
        return [_ELSEWHERE] * len(addresses)
    known = {host.address: host for host in target.neighbours}
    unknown = sorted(set(addresses) - known.keys())
    if unknown:
        raise ValueError(
            f"{target.name} knows no host with the address {', '.join(unknown)}: add it to the controller's "
            f"configuration, or set WIRESUM_ADDRESS at the worker to one that is there"
        )
    return [known[address] for address in addresses]
