"""What the service tells people about jobs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from wiresum import join
from wiresum.controller.driver import JobCounters
from wiresum.controller.jobs import Job, Presence
from wiresum.controller.leases import LeasePool


def diagnosis(job: Job, counters: JobCounters, now: float) -> join.Diagnosis:
    """Who is there, who is behind."""
    answer = join.Diagnosis()
    for rank, worker in sorted(job.workers.items()):
        answer.workers.add(
            peer=worker.peer(),
            tensor_last=counters.tensor_last[rank] if rank < len(counters.tensor_last) else None,
            contributions=counters.contributions[rank] if rank < len(counters.contributions) else 0,
            heartbeat_age_ms=max(0, round(1000 * (now - worker.heard_at))),
            left=worker.presence is Presence.LEFT,
        )
    return answer


def listing(
    jobs: Iterable[Job], leases: LeasePool, counters: Mapping[int, JobCounters], now: float
) -> join.ListJobsReply:
    """`counters` by job number; a job that the switch does not have yet has none."""
    answer = join.ListJobsReply(slots_total=leases.slots_total, slots_free=leases.slots_free)
    for job in jobs:
        counted = counters.get(job.number, JobCounters()) if job.entry else JobCounters()
        answer.jobs.add(
            job=job.number,
            name=job.name,
            world_size=job.world_size,
            joined=len(job.workers),
            slot_base=job.lease.base if job.lease else 0,
            slots=job.lease.count if job.lease else 0,
            state=job.state.value,
            packets=dict(counted.packets),
            results=counted.results,
            age_seconds=max(0.0, now - job.created_at),
        )
    return answer
