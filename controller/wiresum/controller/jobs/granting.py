"""What the switches and the workers of a job are told once it has its slots. Pure."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence

from wiresum import join
from wiresum.controller.driver import Endpoint, JobEntry, Uplink
from wiresum.controller.jobs.cluster import Cluster, Grounds, Switch
from wiresum.controller.jobs.job import Job, Worker
from wiresum.controller.jobs.keys import Keys
from wiresum.controller.jobs.limits import Limits
from wiresum.controller.jobs.tree import Branch, Node

EndpointOf = Callable[[str], Endpoint]
"""Where a switch is sent packets, by its name: its base port."""


def settle(job: Job, cluster: Cluster, grounds: Grounds, keys: Keys) -> None:
    """Places the job at these switches, with the lanes that they and all workers can do."""
    switches = cluster.of(grounds.tree)
    job.number, job.slots = grounds.number, grounds.leases[0].count
    job.key, job.keys_reserved = keys.draw(), keys.reserved
    job.threads = grounds.threads
    job.port_offset = _free_ports(job, switches)
    job.lanes = min(switch.sizes.lanes_max for switch in switches)
    job.lanes = min(job.lanes, *(worker.lanes_max for worker in job.workers.values()))
    job.nodes = {
        branch.switch_name: Node(branch, lease) for branch, lease in zip(grounds.tree, grounds.leases, strict=True)
    }
    cluster.hold(job)
    settle_entries(job, lambda name: cluster.switches[name].endpoint)


def _free_ports(job: Job, switches: Sequence[Switch]) -> int:
    """The first of a run of ports, one for each thread, that the fewest threads of other jobs at these switches use. A
    software switch deals its ports to its threads in turn: jobs with one thread would all fall on its first."""
    ports = min(switch.sizes.threads_max for switch in switches)
    others = {other for switch in switches for other in switch.numbered.values()} - {job}
    taken: Counter[int] = Counter()
    for (first, threads), jobs in Counter((other.port_offset, other.threads) for other in others).items():
        taken.update(dict.fromkeys(range(first, first + threads), jobs))
    runs = range(0, ports - job.threads + 1, job.threads)
    return min(runs, key=lambda first: sum(taken[port] for port in range(first, first + job.threads)))


def settle_entries(job: Job, endpoint_of: EndpointOf) -> None:
    """Sets what each switch of the job is told, and the switch and number of each worker."""
    for node in job.nodes.values():
        for number, rank in enumerate(node.branch.ranks):
            job.workers[rank].switch_name, job.workers[rank].number = node.branch.switch_name, number
        if node.lease is not None:
            node.entry = _entry_of(job, node.branch, node.lease.base, endpoint_of)


def _entry_of(job: Job, branch: Branch, slot_base: int, endpoint_of: EndpointOf) -> JobEntry:
    def port_of(name: str) -> Endpoint:
        return _for_job(endpoint_of(name), job)

    endpoints = [*(job.workers[rank].endpoint for rank in branch.ranks), *map(port_of, branch.below)]
    uplink = None
    if branch.parent:
        number = job.nodes[branch.parent].branch.number_of(branch.switch_name)
        uplink = Uplink(port_of(branch.parent), number)
    return JobEntry(
        job=job.number,
        key=job.key,
        workers=branch.contributors,
        threads=job.threads,
        lanes=job.lanes,
        slot_base=slot_base,
        slots=job.slots,
        endpoints=tuple(endpoints),
        uplink=uplink,
        port_offset=job.port_offset,
        below=branch.below,
        keys_reserved=job.keys_reserved,
    )


def _for_job(switch: Endpoint, job: Job) -> Endpoint:
    """Where thread 0 of the job talks to, of a switch with this base port."""
    return Endpoint(switch.address, switch.port + job.port_offset)


def reply_to(worker: Worker, switch: Switch, limits: Limits) -> join.JoinReply:
    """To a worker of a job that its switches have; `switch` is the one that it hangs on."""
    job = worker.job
    endpoint, group = _for_job(switch.endpoint, job), switch.results_group(job.number)
    return join.JoinReply(
        job=job.number,
        key=job.key,
        worker=worker.number,
        rank=worker.rank,
        workers=job.world_size,
        lanes=job.lanes,
        threads=job.threads,
        slots=job.slots,
        switch_endpoint=join.Endpoint(address=endpoint.address, port=endpoint.port),
        token=worker.token,
        heartbeat_interval_ms=limits.heartbeat_interval_ms,
        heartbeat_lost_ms=limits.heartbeat_lost_ms,
        reattach_ms=limits.reattach_ms,
        switch_name=switch.name,
        results_group=join.Endpoint(address=group.address, port=group.port) if group else None,
        members_secret=_members_secret(job),
        roles=worker.roles,
    )


def _members_secret(job: Job) -> bytes:
    """From a worker's token, which is random, secret and stored with the job. It does not tell the token."""
    return hashlib.blake2s(job.workers[0].token.encode(), person=b"members").digest()
