"""What the service answers to a request that it does not grant, and the checks that need nothing but the request."""

from __future__ import annotations

import ipaddress

from wiresum import join
from wiresum.join.constants import (
    JOB_TOKEN_BYTES_MAX,
    JOB_WORKERS_MAX,
    LANES_MAX,
    LEASE_SLOTS_MAX,
    PRIORITY_MAX,
    TENANT_BYTES_MAX,
    THREADS_MAX,
)

HOST_NAME_BYTES_MAX = 255
SOFTWARE_VERSION_BYTES_MAX = 64
ATTEMPT_BYTES_MAX = 64


class Refusal(Exception):  # noqa: N818 - it is an answer, not a fault
    """`code` is the name of a `grpc.StatusCode`; join.proto says which means what."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


def check_join(request: join.JoinRequest) -> None:
    """Raises a `Refusal` that names the field, if the request makes no sense whatever the jobs there are."""
    if request.protocol_version != join.PROTOCOL_VERSION:
        theirs = request.software_version if _is_text(request.software_version, SOFTWARE_VERSION_BYTES_MAX) else "?"
        raise Refusal(
            "FAILED_PRECONDITION",
            f"the worker (wiresum {theirs or '?'}) speaks version {request.protocol_version} of the join protocol, and "
            f"this switch version {join.PROTOCOL_VERSION}: install the same release of wiresum at both",
        )
    _check_names(request.job_name, request.tenant)
    _check_texts(
        host_name=(request.host_name, HOST_NAME_BYTES_MAX),
        software_version=(request.software_version, SOFTWARE_VERSION_BYTES_MAX),
        attempt=(request.attempt, ATTEMPT_BYTES_MAX),
        job_token=(request.job_token, JOB_TOKEN_BYTES_MAX),
    )
    _check_job(request.world_size, request.priority)
    if request.rank >= request.world_size:
        raise _invalid("rank", f"is {request.rank}: a job of {request.world_size} has 0 to {request.world_size - 1}")
    if not 1 <= request.threads_max <= THREADS_MAX:
        raise _invalid("threads_max", f"is {request.threads_max}: it must be 1 to {THREADS_MAX}")
    if not 1 <= request.lanes_max <= LANES_MAX:
        raise _invalid("lanes_max", f"is {request.lanes_max}: it must be 1 to {LANES_MAX}")
    _check_slots(request.slots)
    _check_endpoint(request.endpoint, request.threads_max)


def check_create(request: join.CreateJobRequest) -> None:
    """Raises a `Refusal` that names the field, if the request makes no sense whatever the jobs there are."""
    _check_names(request.job_name, request.tenant)
    _check_job(request.world_size, request.priority)
    _check_slots(request.slots)


def _check_texts(**texts: tuple[str, int]) -> None:
    """By field: what it holds, and how many bytes it may have."""
    for name, (text, bytes_max) in texts.items():
        if not _is_text(text, bytes_max):
            raise _invalid(name, f"must be printable, and at most {bytes_max} bytes long")


def _check_names(job_name: str, tenant: str) -> None:
    if not job_name:
        raise _invalid("job_name", "is empty: give the job a name (WIRESUM_JOB)")
    if problem := join.name_problem(job_name):
        raise _invalid("job_name", f"{problem} (WIRESUM_JOB)")
    if tenant and (problem := join.name_problem(tenant, TENANT_BYTES_MAX)):
        raise _invalid("tenant", f"{problem} (WIRESUM_TENANT)")


def _check_job(world_size: int, priority: int) -> None:
    if not 1 <= world_size <= JOB_WORKERS_MAX:
        raise _invalid("world_size", f"is {world_size}: a job has 1 to {JOB_WORKERS_MAX} workers")
    if abs(priority) > PRIORITY_MAX:
        raise _invalid("priority", f"is {priority}: it must be {-PRIORITY_MAX} to {PRIORITY_MAX}")


def _check_slots(slots: int) -> None:
    if slots > LEASE_SLOTS_MAX:
        raise _invalid("slots", f"is {slots}: a packet can name {LEASE_SLOTS_MAX} at most; 0 asks for the usual")


def _check_endpoint(endpoint: join.Endpoint, threads: int) -> None:
    try:
        address = ipaddress.IPv4Address(endpoint.address)
    except ValueError:
        raise _invalid("endpoint.address", f"is {endpoint.address[:64]!r}: it must be an IPv4 address") from None
    if address.is_unspecified or address.is_multicast or address.is_reserved:
        raise _invalid("endpoint.address", f"is {address}: it must be one that this worker sends its packets from")
    if not 1 <= endpoint.port <= 65536 - threads:
        raise _invalid("endpoint.port", f"is {endpoint.port}: ports port .. port + {threads - 1} must be 1 to 65535")


def _is_text(text: str, bytes_max: int) -> bool:
    return text.isprintable() and len(text.encode()) <= bytes_max


def _invalid(field: str, problem: str) -> Refusal:
    return Refusal("INVALID_ARGUMENT", f"{field} {problem}")
