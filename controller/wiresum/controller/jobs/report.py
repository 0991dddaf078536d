"""What the service tells people about jobs and switches. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from importlib import metadata

from wiresum import join
from wiresum.controller.driver import JobCounters
from wiresum.controller.jobs.cluster import Switch
from wiresum.controller.jobs.job import Job, Presence, State, Worker
from wiresum.controller.jobs.jobs import Jobs
from wiresum.controller.jobs.records import EndedRecord, Reservation

Counted = Mapping[str, tuple[JobCounters, Mapping[int, JobCounters]]]
"""By switch: of packets of no job, and by job number. A job that the switch does not have yet has none; a switch that
does not say is not among them."""


def diagnosis(job: Job, counters: JobCounters | None, now: float) -> join.Diagnosis:
    """Who is there, who is behind."""
    counters = counters or JobCounters()
    answer = join.Diagnosis()
    for rank, worker in sorted(job.workers.items()):
        answer.workers.add(
            peer=worker.peer(),
            tensor_last=_tensor_last(counters, rank),
            contributions=_contributions(counters, rank),
            heartbeat_age_ms=_heartbeat_age_ms(worker, now),
            left=worker.presence is Presence.LEFT,
        )
    return answer


def report(jobs: Jobs, counted: Counted, now: float) -> join.Report:
    """All but the service's age, and what it refused."""
    answer = join.Report(service=join.ServiceReport(role="active", software_version=software_version()))
    all_jobs = jobs.all()
    for job in all_jobs:
        _, by_number = counted.get(job.switch_name, (None, {}))
        counters = by_number.get(job.number) if job.entry else JobCounters()
        answer.jobs.append(_job(jobs, job, counters, now))
    named = {job.name for job in all_jobs}
    answer.jobs.extend(
        _created(reservation, jobs.reservations.age_s(reservation, now))
        for reservation in jobs.reservations.all()
        if reservation.job_name not in named
    )
    for switch in jobs.cluster.switches.values():
        stray, _ = counted.get(switch.name, (JobCounters(), {}))
        answer.switches.append(_switch(switch, stray, silent=switch.name not in counted))
    return answer


def ended(record: EndedRecord) -> join.EndedJob:
    fields = dataclasses.asdict(record)
    del fields["sequence"]
    return join.EndedJob(**fields)


def _job(jobs: Jobs, job: Job, counted: JobCounters | None, now: float) -> join.JobReport:
    """`counted` None: nobody knows."""
    counters = counted or JobCounters()
    waits = job.state in (State.FORMING, State.QUEUED, State.ADMITTING)
    return join.JobReport(
        job=job.number,
        name=job.name,
        world_size=job.world_size,
        joined=len(job.workers),
        slot_base=job.lease.base if job.lease else 0,
        slots=job.lease.count if job.lease else 0,
        state=job.state.value,
        packets=dict(counters.packets),
        results=counters.results,
        age_seconds=max(0.0, now - job.created_at),
        switch_name=job.switch_name,
        tenant=job.tenant,
        priority=job.priority,
        caller=job.asker.name,
        queue_position=jobs.waiting.position(job),
        waiting=jobs.waiting.what(job).reason if waits else "",
        lanes=job.entry.lanes if job.entry else 0,
        threads=job.entry.threads if job.entry else 0,
        workers=[_worker(job.workers[rank], counters, now) for rank in sorted(job.workers)],
        uncounted=counted is None,
    )


def _worker(worker: Worker, counters: JobCounters, now: float) -> join.WorkerReport:
    return join.WorkerReport(
        peer=worker.peer(),
        endpoint=join.Endpoint(address=worker.endpoint.address, port=worker.endpoint.port),
        state=worker.presence.value,
        heartbeat_age_ms=_heartbeat_age_ms(worker, now),
        contributions=_contributions(counters, worker.rank),
        tensor_last=_tensor_last(counters, worker.rank),
    )


def _created(reservation: Reservation, age_s: float) -> join.JobReport:
    return join.JobReport(
        name=reservation.job_name,
        world_size=reservation.world_size,
        state="created",
        tenant=reservation.tenant,
        priority=reservation.priority,
        switch_name=reservation.switch_name,
        age_seconds=age_s,
        waiting="nobody has joined yet",
    )


def _switch(switch: Switch, stray: JobCounters, *, silent: bool) -> join.SwitchReport:
    silence = "it does not answer when it is asked what it counted" if silent else ""
    return join.SwitchReport(
        name=switch.name,
        kind=switch.kind,
        state="unreachable" if silent else switch.state(),
        trouble=switch.trouble or silence,
        slots_total=switch.leases.slots_total,
        slots_free=switch.leases.slots_free,
        jobs=len(switch.numbered),
        jobs_max=switch.sizes.jobs_max,
        lanes_max=switch.sizes.lanes_max,
        endpoint=join.Endpoint(address=switch.endpoint.address, port=switch.endpoint.port),
        stray_packets=dict(stray.packets),
    )


def _heartbeat_age_ms(worker: Worker, now: float) -> int:
    """Since it asked, for one that sends no heartbeats yet."""
    return max(0, round(1000 * (now - (worker.heard_at or worker.asked_at))))


def _tensor_last(counters: JobCounters, rank: int) -> int | None:
    return counters.tensor_last[rank] if rank < len(counters.tensor_last) else None


def _contributions(counters: JobCounters, rank: int) -> int:
    return counters.contributions[rank] if rank < len(counters.contributions) else 0


def software_version() -> str:
    try:
        return metadata.version("wiresum")
    except metadata.PackageNotFoundError:
        return ""
