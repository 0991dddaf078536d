"""Checks whether a worker may join the job that it names. Pure. The checks raise a `Refusal`."""

from __future__ import annotations

import hmac
import itertools

from wiresum import join
from wiresum.controller.driver import Endpoint
from wiresum.controller.jobs.job import Asker, Job, Members, Presence, Shape, State, Terms, Worker, same_secret
from wiresum.controller.jobs.positions import roles_of
from wiresum.controller.jobs.records import Reservation
from wiresum.controller.jobs.refusal import Refusal

VALUES_SAID_MAX = 3
"""How many values of a setting that differs an error names."""


def new_job(request: join.JoinRequest, asker: Asker, reservation: Reservation | None, now: float) -> Job:
    """Returns a job for its first worker, on the terms of its reservation if there is one."""
    said = reservation or request
    terms = Terms(
        priority=reservation.priority if reservation else 0,
        reserved=reservation is not None,
        slots_reserved=reservation.slots if reservation else 0,
        job_token=said.job_token,
        within=reservation.switch_name if reservation else "",
        asker=asker,
        shape=_shape(request),
        resumed_id=request.resumed.job_id,
    )
    job = Job(request.job_name, now, terms, Members(said.world_size), said.tenant)
    if reservation is None:
        return job
    check_tenant(job, request, asker)
    check_token(job, request)
    if request.world_size != job.members.world_size:
        raise Refusal(
            "FAILED_PRECONDITION",
            f"{job} was created for {job.members.world_size} workers, but this worker says {request.world_size}: start "
            f"as many as it was created for, or choose another name (WIRESUM_JOB)",
        )
    return job


def new_worker(job: Job, request: join.JoinRequest, asker: Asker, now: float, deadline: float) -> Worker:
    return Worker(
        job=job,
        rank=request.rank,
        endpoint=_endpoint(request),
        threads_max=request.threads_max,
        lanes_max=request.lanes_max,
        slots_wanted=request.slots,
        agreed=dict(request.agreed),
        positions=request.resumed.positions,
        admission=request.admission,
        host_name=request.host_name,
        process_id=request.process_id,
        attempt=request.attempt,
        asked_at=now,
        deadline=deadline,
        certificate=asker.certificate,
        holder=asker.holder,
        called_from=asker.address,
        host_id=request.host_id,
        global_rank=request.global_rank if request.HasField("global_rank") else None,
    )


def holder_asking_again(job: Job, request: join.JoinRequest) -> Worker | None:  # R7.7
    """The worker that has this rank already, if the request is its own, sent again; otherwise None. Raises a `Refusal`
    if the job token is wrong."""
    check_token(job, request)
    holder = job.members.workers.get(request.rank)
    if holder is None or not holder.is_attempt(request.attempt) or holder.endpoint != _endpoint(request):
        return None
    return holder


def check_not_ending(job: Job) -> None:
    left = [worker for worker in job.members.workers.values() if worker.presence is Presence.LEFT]
    if job.state is State.ENDING or left:
        why = job.ended.reason if job.ended else f"{left[0]} has left already"
        raise Refusal("UNAVAILABLE", f"the job before, also named {job.name!r}, is just ending ({why}): wait a moment")


def check_fits(job: Job, request: join.JoinRequest, asker: Asker) -> None:
    """Raises a `Refusal` if the worker cannot be the next one of an existing job."""
    if job.state is State.ADMITTING or job.has_begun:
        raise Refusal(
            "ALREADY_EXISTS",
            f"{job} is complete, all {job.members.world_size} workers have joined: choose another name (WIRESUM_JOB), "
            f"or wait until it ends",
        )
    first = next(iter(job.members.workers.values()))
    if request.world_size != job.members.world_size:
        raise Refusal(
            "FAILED_PRECONDITION",
            f"{job} is one of {job.members.world_size} workers, says {first}, but this worker says "
            f"{request.world_size}: start all with the same world size, or choose another name (WIRESUM_JOB)",
        )
    _check_goes_on_alike(job, request, first)
    holder = job.members.workers.get(request.rank)
    if holder is not None and holder.away_since is None:
        raise Refusal(
            "ALREADY_EXISTS",
            f"{holder} has that place in {job} already: give each worker a rank of its own, or choose another name "
            f"(WIRESUM_JOB)",
        )
    _check_ports_apart(job, request)


def check_whole(job: Job) -> None:  # R7.6
    """Raises a `Refusal` if the workers' settings differ. Called when all workers are there, so that each of them gets
    the text."""
    workers = [job.members.workers[rank] for rank in sorted(job.members.workers)]
    said = []
    for name in sorted({name for worker in workers for name in worker.agreed}):
        by_value: dict[str, Worker] = {}
        for worker in workers:
            if name in worker.agreed:  # another version may not have it
                by_value.setdefault(worker.agreed[name], worker)
        if len(by_value) > 1:
            values = list(itertools.islice(by_value.items(), VALUES_SAID_MAX))
            said.append(f"{name} is " + " and ".join(f"{value} at {worker}" for value, worker in values))
    if said:
        raise Refusal(
            "FAILED_PRECONDITION",
            f"the workers of {job} have different settings: {'; '.join(said)}. Start all with the same",
        )


def settle_roles(job: Job) -> None:  # R7.29
    """For a job that continues after losing its lease, sets what each worker resends first. Called once, when the job
    has its slots: comparing the positions takes long, and would be wasted on a job that gets none. Raises a
    `Refusal`."""
    if job.terms.shape is None:
        return
    workers = [job.members.workers[rank] for rank in range(job.members.world_size)]
    try:
        found = roles_of([worker.positions for worker in workers])
    except ValueError as error:
        raise Refusal("FAILED_PRECONDITION", f"{job} cannot go on: {error}. Start it again") from None
    for worker, roles in zip(workers, found, strict=True):
        worker.roles = roles


def _shape(request: join.JoinRequest) -> Shape | None:
    resumed = request.resumed
    return Shape(resumed.slots, resumed.threads, resumed.lanes) if request.HasField("resumed") else None


def _check_goes_on_alike(job: Job, request: join.JoinRequest, first: Worker) -> None:  # R7.30
    shape = _shape(request)
    if shape == job.terms.shape and is_same(job, request):
        return
    if shape is None or job.terms.shape is None or not is_same(job, request):
        apart = f"goes on with another job than {first}"
        if shape is None:
            apart = f"begins a job that {first} goes on with"
        elif job.terms.shape is None:
            apart = f"goes on with a job that {first} begins"
        raise Refusal(
            "FAILED_PRECONDITION",
            f"rank {request.rank} {apart}: these are two jobs named {job.name!r}. Wait until one of them has ended, or "
            f"give each a name of its own (WIRESUM_JOB)",
        )
    raise Refusal(
        "FAILED_PRECONDITION",
        f"rank {request.rank} had another lease ({shape}) than {first} ({job.terms.shape}), and cannot go "
        f"on with the same job: start it again",
    )


def is_same(job: Job, request: join.JoinRequest) -> bool:
    """True if the worker continues this very job, or if both the worker and the job are new."""
    return hmac.compare_digest(job.terms.resumed_id, request.resumed.job_id)


def check_token(job: Job, request: join.JoinRequest) -> None:
    if not same_secret(job.terms.job_token, request.job_token):
        raise Refusal(
            "PERMISSION_DENIED",
            f"{job} can be joined with its token alone: set WIRESUM_JOB_TOKEN to what the operator was given who "
            f"created it, at all workers"
            if job.terms.job_token
            else f"{job} has no token, but this worker shows one: set WIRESUM_JOB_TOKEN at all workers, or at none",
        )


def check_tenant(job: Job, request: join.JoinRequest, asker: Asker) -> None:
    """Raises a `Refusal` unless the worker has the job's tenant. In a job that an operator created a worker may leave
    the tenant out; if the operator named none, whoever has the token may join, unless its certificate names a tenant.
    The text says nothing about the job, which belongs to another tenant."""
    if request.tenant == job.tenant:
        return
    if job.terms.reserved and (not request.tenant or (asker.own_account and not job.tenant)):
        return
    if asker.own_account:
        raise Refusal(
            "PERMISSION_DENIED",
            f"{job} is another tenant's than {request.tenant!r}, as whom this worker's certificate counts, since it "
            f"names none: issue it again with the --tenant of the job's other workers, have an operator create the job "
            f"(`wiresum jobs create`), or choose another name (WIRESUM_JOB)",
        )
    mend = (
        "whose certificate this worker has: give all its workers certificates of one tenant (`wiresum ca issue worker "
        "--tenant`), or the same WIRESUM_TENANT where these name several"
        if asker.certificate
        else "as this worker says: start all its workers with the same WIRESUM_TENANT"
    )
    raise Refusal(
        "FAILED_PRECONDITION",
        f"{job} is another tenant's than {request.tenant!r}, {mend}. A job of its own needs another name (WIRESUM_JOB)",
    )


def _check_ports_apart(job: Job, request: join.JoinRequest) -> None:
    first, last = request.endpoint.port, request.endpoint.port + request.threads_max - 1
    for other in job.members.workers.values():
        other_last = other.endpoint.port + other.threads_max - 1
        overlap = request.endpoint.address == other.endpoint.address and first <= other_last
        if overlap and other.endpoint.port <= last and other.rank != request.rank:
            raise Refusal(
                "INVALID_ARGUMENT",
                f"endpoint: ports {first}..{last} at {request.endpoint.address} overlap those of {other}, "
                f"{other.endpoint.port}..{other_last}: each worker needs ports of its own",
            )


def _endpoint(request: join.JoinRequest) -> Endpoint:
    return Endpoint(request.endpoint.address, request.endpoint.port)
