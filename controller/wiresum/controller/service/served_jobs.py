"""The jobs that a service serves if it does not serve all: a fallback switch serves those of the worker that started
it.

A stranger's Join is refused before it takes anything: a name, slots, or a place in the queue.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable

from wiresum import join
from wiresum.controller.jobs.refusal import Refusal
from wiresum.join.served import NONCE_BYTES, ServedJob, job_id, proof


class ServedJobs:
    """Any thread may call any method."""

    def __init__(self, tenants: tuple[str, ...] = ()) -> None:
        """`tenants`: the tenants of the worker's certificate."""
        self._tenant = tenants[0] if len(tenants) == 1 else ""
        self._jobs: dict[str, ServedJob] = {}

    def replace(self, jobs: Iterable[ServedJob]) -> None:
        """Replaces the set of served jobs. Jobs that run continue."""
        self._jobs = {job.name: job for job in jobs}

    def check(self, request: join.JoinRequest) -> None:
        """Raises a `Refusal` if the request is for none of the served jobs. Its tenant must be the one that the service
        has found."""
        job = self._jobs.get(request.job_name)
        shown = request.resumed.job_id
        if job is None or not hmac.compare_digest(job_id(bytes.fromhex(job.secret)), shown):  # R7.28
            raise Refusal(
                "PERMISSION_DENIED",
                "this is the fallback switch of other jobs, which a worker of theirs has started for as long as their "
                "own switches are away, and it serves no other: set WIRESUM_SWITCH to a switch, or a controller, that "
                "serves all",
            )
        tenant = job.tenant or self._tenant
        if tenant and request.tenant != tenant:
            raise Refusal(
                "PERMISSION_DENIED",
                f"job {job.name!r} is another tenant's than {request.tenant!r}, as this worker says",
            )
        if (request.world_size, request.resumed.slots) != (job.workers, job.slots):
            raise Refusal(
                "PERMISSION_DENIED",
                f"job {job.name!r} has {job.workers} workers and {job.slots} slots, says its rank 0, and not "
                f"{request.world_size} and {request.resumed.slots}",
            )

    def prove(self, challenge: join.Challenge) -> bytes:
        """Returns the proof for a challenge. Raises a `Refusal`."""
        if len(challenge.nonce) < NONCE_BYTES:
            raise Refusal("INVALID_ARGUMENT", f"nonce: it must have {NONCE_BYTES} bytes")
        job = self._jobs.get(challenge.job_name)
        if job is None:
            raise _no_fallback(challenge)
        return proof(bytes.fromhex(job.secret), challenge.nonce)


def prove(served: ServedJobs | None, challenge: join.Challenge) -> bytes:
    """Returns the proof for a challenge. Raises a `Refusal`, always if the service serves all jobs, since it is then no
    fallback switch."""
    if served is None:
        raise _no_fallback(challenge)
    return served.prove(challenge)


def _no_fallback(challenge: join.Challenge) -> Refusal:
    return Refusal("NOT_FOUND", f"this is not the fallback switch of a job {challenge.job_name!r}")
