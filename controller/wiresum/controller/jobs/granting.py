"""What a job gets, once it has its slots: what its switch is told, and what its workers are. Pure."""

from __future__ import annotations

from wiresum import join
from wiresum.controller.driver import JobEntry
from wiresum.controller.jobs.cluster import Switch, power_of_two_within
from wiresum.controller.jobs.job import Job, Worker
from wiresum.controller.jobs.leases import Lease
from wiresum.controller.jobs.limits import Limits
from wiresum.controller.jobs.records import entry_of


def settle(job: Job, switch: Switch, lease: Lease, key: int) -> JobEntry:
    """The job is at this switch from now on, with what all its workers, and the switch, can do."""
    workers = job.workers.values()
    job.switch_name, job.lease, job.number, job.key = switch.name, lease, switch.take_number(job), key
    threads = min(switch.sizes.threads_max, lease.count, *(worker.threads_max for worker in workers))
    lanes = min(switch.sizes.lanes_max, *(worker.lanes_max for worker in workers))
    job.entry = entry_of(job, lease, threads=power_of_two_within(threads), lanes=lanes)
    return job.entry


def reply_of(worker: Worker, switch: Switch, limits: Limits) -> join.JoinReply:
    """To a worker of a job that the switch has."""
    job, entry = worker.job, worker.job.entry
    assert entry is not None
    endpoint, group = switch.endpoint, switch.results_group(entry.job)
    return join.JoinReply(
        job=entry.job,
        key=entry.key,
        worker=worker.rank,
        workers=entry.workers,
        lanes=entry.lanes,
        threads=entry.threads,
        slots=entry.slots,
        switch_endpoint=join.Endpoint(address=endpoint.address, port=endpoint.port),
        peers=[job.workers[rank].peer() for rank in range(entry.workers)],
        token=worker.token,
        heartbeat_interval_ms=limits.heartbeat_interval_ms,
        heartbeat_lost_ms=limits.heartbeat_lost_ms,
        reattach_ms=limits.reattach_ms,
        switch_name=job.switch_name,
        results_group=join.Endpoint(address=group.address, port=group.port) if group else None,
    )
