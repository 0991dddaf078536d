"""What the switches and the workers of a job are told once the job has its slots. Pure."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence

from wiresum import join
from wiresum.controller.driver import Endpoint, JobEntry, Uplink
from wiresum.controller.jobs.cluster import Cluster, Grounds, Switch
from wiresum.controller.jobs.job import Job, Lease, LeaseState, Worker
from wiresum.controller.jobs.keys import Keys
from wiresum.controller.jobs.limits import Limits
from wiresum.controller.jobs.tree import Branch, Node

EndpointOf = Callable[[str], Endpoint]
"""Maps a switch's name to its endpoint with the base port."""


def settle(lease: Lease, cluster: Cluster, grounds: Grounds, keys: Keys) -> None:
    """Places the lease at the switches of `grounds`, with as many lanes as they and all workers can handle."""
    switches, workers = cluster.of(grounds.tree), lease.job.members.workers.values()
    lease.number, lease.slots = grounds.number, grounds.slots[0].count
    lease.key, lease.keys_reserved = keys.draw(), keys.reserved  # R7.11
    lease.threads = grounds.threads  # R2.1, R7.3
    lease.port_offset = _free_ports(lease, switches)
    lease.lanes = min(switch.sizes.lanes_max for switch in switches)
    lease.lanes = min(lease.lanes, *(worker.lanes_max for worker in workers))  # R2.17, R7.3
    lease.nodes = {
        branch.switch_name: Node(branch, slots) for branch, slots in zip(grounds.tree, grounds.slots, strict=True)
    }
    lease.step(LeaseState.ADMITTING)
    cluster.hold(lease)
    settle_entries(lease, lambda name: cluster.switches[name].endpoint)


def _free_ports(lease: Lease, switches: Sequence[Switch]) -> int:  # R2.4
    """The first of a run of ports, one for each thread, that the fewest threads of other jobs at these switches use. A
    software switch assigns its ports to its threads in turn: jobs with one thread would otherwise all be on its first
    thread."""
    ports = min(switch.sizes.threads_max for switch in switches)
    others = {other for switch in switches for other in switch.numbered.values()}
    taken: Counter[int] = Counter()
    for (first, threads), leases in Counter((other.port_offset, other.threads) for other in others).items():
        taken.update(dict.fromkeys(range(first, first + threads), leases))
    runs = range(0, ports - lease.threads + 1, lease.threads)
    return min(runs, key=lambda first: sum(taken[port] for port in range(first, first + lease.threads)))


def settle_entries(lease: Lease, endpoint_of: EndpointOf) -> None:
    """Sets, for each switch of the lease, the entry that it is told."""
    for node in lease.nodes.values():
        if node.slots is not None:
            node.entry = _entry_of(lease, node.branch, node.slots.base, endpoint_of)


def number_workers(job: Job) -> None:
    """Sets the switch of each worker, and the worker's number there."""
    for node in job.lease.nodes.values():
        for number, host in enumerate(node.branch.hosts):
            for rank in host:
                worker = job.members.workers[rank]
                worker.switch_name, worker.number = node.branch.switch_name, number  # R7.4


def _entry_of(lease: Lease, branch: Branch, slot_base: int, endpoint_of: EndpointOf) -> JobEntry:
    def port_of(name: str) -> Endpoint:
        return _for_job(endpoint_of(name), lease)

    workers = lease.job.members.workers
    endpoints = [*(workers[host[0]].endpoint for host in branch.hosts), *map(port_of, branch.below)]
    uplink = None
    if branch.parent:
        number = lease.nodes[branch.parent].branch.number_of(branch.switch_name)
        uplink = Uplink(port_of(branch.parent), number)  # R8.1
    return JobEntry(
        job=lease.number,
        key=lease.key,
        workers=branch.contributors,
        threads=lease.threads,
        lanes=lease.lanes,
        slot_base=slot_base,  # R8.2
        slots=lease.slots,
        endpoints=tuple(endpoints),
        uplink=uplink,
        port_offset=lease.port_offset,
        below=branch.below,
        keys_reserved=lease.keys_reserved,
    )


def _for_job(switch: Endpoint, lease: Lease) -> Endpoint:
    """The endpoint of the job's thread 0 at a switch with this base port."""
    return Endpoint(switch.address, switch.port + lease.port_offset)


def reply_to(worker: Worker, cluster: Cluster, limits: Limits) -> join.JoinReply:
    """The reply to a worker of a job that is installed in its switches."""
    job, lease, switch = worker.job, worker.job.lease, cluster.switches[worker.switch_name]
    endpoint, group = _for_job(switch.endpoint, lease), switch.results_group(lease.number)
    sharing, ranks = None, lease.sharing_of(worker)
    if ranks:
        sharing = join.Sharing(
            ranks=ranks, number=worker.number, secret=_secret(job.members.workers[ranks[0]], b"sharing")
        )
    return join.JoinReply(  # R7.1
        job=lease.number,
        key=lease.key,
        worker=ranks.index(worker.rank) if sharing else worker.number,  # R7.5
        rank=worker.rank,
        workers=job.members.world_size,
        lanes=lease.lanes,
        threads=lease.threads,
        slots=lease.slots,
        switch_endpoint=join.Endpoint(address=endpoint.address, port=endpoint.port),
        token=worker.token,
        heartbeat_interval_ms=limits.heartbeat_interval_ms,
        heartbeat_lost_ms=limits.heartbeat_lost_ms,
        reattach_ms=limits.reattach_ms,
        switch_name=switch.name,
        results_group=join.Endpoint(address=group.address, port=group.port) if group else None,
        members_secret=_secret(job.members.workers[0], b"members"),  # R7.1
        roles=worker.roles,
        sharing=sharing,
        check_word=cluster.needs_check_words,  # R5.28
    )


def _secret(worker: Worker, purpose: bytes) -> bytes:
    """Derives a secret from a worker's token, which is random, secret and stored with the job. The secret does not
    reveal the token."""
    return hashlib.blake2s(worker.token.encode(), person=purpose).digest()
