"""Reports about jobs and switches. Pure."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from wiresum import compiled, join
from wiresum.controller.driver import JobCounters, SwitchDriver
from wiresum.controller.jobs.cluster import Switch
from wiresum.controller.jobs.job import Job, Lease, Presence, State, Worker
from wiresum.controller.jobs.jobs import Jobs
from wiresum.controller.jobs.moving import Moving
from wiresum.controller.jobs.quota import used
from wiresum.controller.jobs.records import Reservation
from wiresum.controller.jobs.tree import Phase
from wiresum.join.constants import STATE_SCHEMA
from wiresum.join.release import software_version

log = logging.getLogger(__name__)

Counted = Mapping[str, tuple[JobCounters, Mapping[int, JobCounters]]]
"""For each switch that answers: counters of packets that belong to no job, and counters by job number."""


def diagnosis(job: Job, counted: Mapping[str, JobCounters], now: float, moving: Moving) -> join.Diagnosis:
    """Says where the workers of a job stand. `counted`: the job's counters by switch; a switch that does not answer is
    absent."""
    answer = join.Diagnosis(switches=_nodes(job.lease, counted), moving=moving.describe(job, now))
    for _, worker in sorted(job.members.workers.items()):
        counters = counted.get(worker.switch_name)
        answer.workers.add(
            peer=worker.peer(),
            tensor_last=_tensor_last(counters, worker.number),
            contributions=_contributions(counters, worker.number),
            heartbeat_age_ms=_heartbeat_age_ms(worker, now),
            left=worker.presence is Presence.LEFT,
            uncounted=counters is None,
            switch_name=worker.switch_name,
            sharing=job.lease.sharing_of(worker),
            tensor_said=worker.tensor_newest,
        )
    return answer


def report(jobs: Jobs, counted: Counted, now: float) -> join.Report:
    """Returns a report of all jobs, switches and tenants. The caller adds the service's age and its refusals."""
    answer = join.Report(service=about_service("active"))
    all_jobs = jobs.all()
    leases = [*(job.lease for job in all_jobs), *jobs.roster.released]
    answer.jobs.extend(_job_or_why_not(jobs, lease, _of_lease(lease, counted), now) for lease in leases)
    named = {job.name for job in all_jobs}
    answer.jobs.extend(
        _created(reservation, jobs.reservations.age_s(reservation, now))
        for reservation in jobs.reservations.all()
        if reservation.job_name not in named
    )
    for switch in jobs.cluster.switches.values():
        answer.switches.append(_switch_or_silent(switch, counted))
    answer.tenants.extend(
        _tenant(jobs, tenant) for tenant in sorted({*(j.tenant for j in all_jobs), *jobs.quotas.named()})
    )
    answer.set_aside.extend(jobs.set_aside.report())
    return answer


def _tenant(jobs: Jobs, tenant: str) -> join.TenantReport:
    quota = jobs.quotas.of(tenant)
    its_jobs = [job for job in jobs.all() if job.tenant == tenant]
    has = used(jobs.cluster.slots_of(tenant))
    return join.TenantReport(
        name=tenant,
        jobs=has.jobs,
        jobs_max=quota.jobs,
        slots=has.slots,
        slots_max=quota.slots,
        waiting_jobs=sum(job.waits for job in its_jobs),
        waiting_jobs_max=quota.waiting_jobs,
        switch_percent=quota.switch_percent,
        switches=[
            join.TenantAtSwitch(
                switch_name=switch.name, room=switch.sizes.room.part(quota.switch_percent), room_taken=taken
            )
            for switch in jobs.cluster.switches.values()
            if any((taken := switch.taken_by(tenant)).values())
        ],
    )


def _of_lease(lease: Lease, counted: Counted) -> dict[str, JobCounters]:
    """The lease's counters by switch, for switches that answer and have the lease."""
    answers = {name: counted[name][1].get(lease.number) for name in _told(lease) if name in counted}
    return {name: counters for name, counters in answers.items() if counters is not None}


def _told(lease: Lease) -> list[str]:
    """Names of the switches that have been told of the lease."""
    return [name for name, node in lease.nodes.items() if node.phase is not Phase.LEASED]


def _job_or_why_not(jobs: Jobs, lease: Lease, counted: Mapping[str, JobCounters], now: float) -> join.JobReport:
    """Reports a lease with its job. If no message can carry it, for instance because its switch has counted nonsense,
    the report says so, and the other jobs are still reported. A lease that no job has any more is reported as long as
    it takes slots."""
    job, state = lease.job, lease.job.state if lease.is_current else State.ENDING
    try:
        answer = _lease(lease, state, counted, now)
        if lease.is_current:
            _add_job(answer, jobs, job, counted, now)
    except (ValueError, TypeError, OverflowError) as error:
        log.error("%s cannot be reported: %s", lease, error)
        why = f"it cannot be reported: {error}"
        return join.JobReport(name=job.name, tenant=job.tenant, state=state.value, waiting=why, uncounted=True)
    return answer


def _switch_or_silent(switch: Switch, counted: Counted) -> join.SwitchReport:
    """Reports a switch. If no message can carry its counters, it is reported as a switch that did not answer."""
    stray, _ = counted.get(switch.name, (JobCounters(), {}))
    try:
        return _switch(switch, stray, silent=switch.name not in counted)
    except (ValueError, TypeError, OverflowError) as error:
        log.error("%s has counted what cannot be reported: %s", switch.name, error)
        return _switch(switch, JobCounters(), silent=True)


def _lease(lease: Lease, state: State, counted: Mapping[str, JobCounters], now: float) -> join.JobReport:
    job, root_slots = lease.job, lease.root.slots if lease.nodes else None
    return join.JobReport(
        job=lease.number,
        name=job.name,
        world_size=job.members.world_size,
        slot_base=root_slots.base if root_slots else 0,
        slots=lease.slots,
        state=state.value,
        packets=_packets(counted.values()),
        results=counted.get(lease.switch_name, JobCounters()).results,
        age_seconds=max(0.0, now - job.created_at),
        switch_name=lease.switch_name,
        tenant=job.tenant,
        priority=job.terms.priority,
        caller=job.terms.asker.name,
        lanes=lease.lanes,
        threads=lease.threads,
        uncounted=any(name not in counted for name in _told(lease)),
        switches=_nodes(lease, counted),
        streams=sum(len(node.branch.hosts) for node in lease.nodes.values()),
    )


def _add_job(answer: join.JobReport, jobs: Jobs, job: Job, counted: Mapping[str, JobCounters], now: float) -> None:
    """Adds what a report says of a job besides its lease."""
    waits = job.waits or job.state is State.ADMITTING
    answer.joined = len(job.members.workers)
    answer.queue_position = jobs.waiting.position(job.lease)
    answer.waiting = _waiting(jobs, job, now) if waits else jobs.moving.describe(job, now)
    answer.moves = job.move_number
    answer.workers.extend(_worker(worker, counted, now) for _, worker in sorted(job.members.workers.items()))


def _waiting(jobs: Jobs, job: Job, now: float) -> str:
    reason = jobs.waiting.what(job).reason
    return f"{reason}, for {max(0.0, job.complete_by - now):.0f} s at most" if job.state is State.FORMING else reason


def _packets(counted: Iterable[JobCounters]) -> dict[str, int]:
    """Packets by reason, summed over all switches of a job."""
    total: Counter[str] = Counter()
    for counters in counted:
        total.update(counters.packets)
    return total


def _worker(worker: Worker, counted: Mapping[str, JobCounters], now: float) -> join.WorkerReport:
    counters = counted.get(worker.switch_name)
    return join.WorkerReport(
        peer=worker.peer(),
        endpoint=join.Endpoint(address=worker.endpoint.address, port=worker.endpoint.port),
        state=worker.presence.value,
        heartbeat_age_ms=_heartbeat_age_ms(worker, now),
        contributions=_contributions(counters, worker.number),
        tensor_last=_tensor_last(counters, worker.number),
        switch_name=worker.switch_name,
        certificate_expires_at=worker.certificate_expires_at,
        tensor_said=worker.tensor_newest,
        sums_wrong=worker.sums_wrong,
    )


def _nodes(lease: Lease, counted: Mapping[str, JobCounters]) -> Iterator[join.NodeReport]:
    """Reports of the lease's switches, the root first."""
    for name, node in lease.nodes.items():
        counters, contributions = counted.get(name), 0
        if parent := node.branch.parent:
            contributions = _contributions(counted.get(parent), lease.nodes[parent].branch.number_of(name))
        yield join.NodeReport(
            switch_name=name,
            parent=parent,
            workers=len(node.branch.ranks),
            slot_base=node.slots.base if node.slots else 0,
            phase=node.phase.value,
            packets=dict(counters.packets) if counters else {},
            results=counters.results if counters else 0,
            contributions=contributions,
            uncounted=counters is None,
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
    state, trouble = switch.state(), switch.why_unusable()
    if silent and not trouble:
        trouble = "it did not say in time what it counted"
        state = "slow" if state == "ready" else state
    answer = about_switch(switch, state, trouble)
    answer.uncounted = silent
    answer.slots_free = switch.pool.slots_free
    answer.room_taken.update(switch.taken())
    answer.jobs = len(switch.leases_with_slots())
    answer.stray_packets.update(stray.packets)
    answer.sums_wrong = switch.sums_wrong
    return answer


def about_switch(switch: Switch | SwitchDriver, state: str, trouble: str) -> join.SwitchReport:
    """Reports a switch without what depends on its jobs."""
    versions = switch.versions()
    return join.SwitchReport(
        name=switch.name,
        kind=switch.kind,
        state=state,
        trouble=trouble,
        slots_total=switch.sizes.slots,
        jobs_max=switch.sizes.jobs_max,
        lanes_max=switch.sizes.lanes_max,
        endpoint=join.Endpoint(address=switch.endpoint.address, port=switch.endpoint.port),
        parent=switch.parent,
        part_of=switch.part_of,
        room=switch.sizes.room,
        software_version=versions.software,
        program_version=versions.program,
    )


def _heartbeat_age_ms(worker: Worker, now: float) -> int:
    """Milliseconds since the last heartbeat, or, before the first one, since the worker asked to join."""
    return max(0, round(1000 * (now - (worker.heard_at or worker.asked_at))))


def _tensor_last(counters: JobCounters | None, number: int) -> int | None:
    return counters.tensor_last[number] if counters and number < len(counters.tensor_last) else None


def _contributions(counters: JobCounters | None, number: int) -> int:
    return counters.contributions[number] if counters and number < len(counters.contributions) else 0


def about_service(role: str) -> join.ServiceReport:
    """Reports the service's role and its versions."""
    program = compiled.load("v1model")
    return join.ServiceReport(
        role=role,
        software_version=software_version(),
        join_protocol=join.PROTOCOL_VERSION,
        state_schema=STATE_SCHEMA,
        program_version=program.version,
        program_digest=program.digest,
    )
