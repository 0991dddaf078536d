"""Refusals, and the checks that need nothing but the request."""

from __future__ import annotations

import ipaddress

from wiresum import join
from wiresum.controller.jobs.positions import POSITION_BYTES, POSITIONS_MAX
from wiresum.controller.jobs.slot_pool import is_power_of_two
from wiresum.join import addresses
from wiresum.join.constants import (
    JOB_TOKEN_BYTES_MAX,
    JOB_WORKERS_MAX,
    LANES_MAX,
    LEASE_SLOTS_MAX,
    PRIORITY_MAX,
    REASON_CHARACTERS_MAX,
    TENANT_BYTES_MAX,
    THREADS_MAX,
)
from wiresum.join.served import JOB_ID_BYTES

HOST_NAME_BYTES_MAX = 255
SOFTWARE_VERSION_BYTES_MAX = 64
ATTEMPT_BYTES_MAX = 64
HOST_ID_BYTES_MAX = 64
AGREED_MAX = 16
AGREED_BYTES_MAX = 64
"""The most bytes of a setting's name, and of its value."""


class Refusal(Exception):  # noqa: N818 - a Refusal is an answer, not a fault
    """The answer to a request that is not granted. `code` is the name of a `grpc.StatusCode`; join.proto says what each
    means. `retry_s`: after how long workers ask again, whatever the code; None: as the code says."""

    def __init__(self, code: str, text: str, *, retry_s: float | None = None) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.retry_s = retry_s


def check_join(request: join.JoinRequest) -> None:
    """Raises a `Refusal` that names the field which is invalid."""
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
    if len(request.host_id) > HOST_ID_BYTES_MAX:
        raise _invalid("host_id", f"has {len(request.host_id)} bytes: it can have {HOST_ID_BYTES_MAX} at most")
    if len(request.agreed) > AGREED_MAX:
        raise _invalid("agreed", f"has {len(request.agreed)} settings: it can have {AGREED_MAX} at most")
    for name, value in request.agreed.items():
        _check_texts(agreed=(name, AGREED_BYTES_MAX))
        _check_texts(agreed=(value, AGREED_BYTES_MAX))
    _check_job(request.world_size, request.slots)
    _check_range("rank", request.rank, 0, request.world_size - 1)
    _check_range("threads_max", request.threads_max, 1, THREADS_MAX)
    _check_range("lanes_max", request.lanes_max, 1, LANES_MAX)
    _check_endpoint(request.endpoint, request.threads_max)
    if request.HasField("resumed"):
        _check_resumed(request)


def _check_resumed(request: join.JoinRequest) -> None:
    resumed = request.resumed
    _check_range("resumed.slots", resumed.slots, 1, min(LEASE_SLOTS_MAX, POSITIONS_MAX // request.world_size))
    _check_range("resumed.threads", resumed.threads, 1, request.threads_max)
    for name, count in (("resumed.slots", resumed.slots), ("resumed.threads", resumed.threads)):
        if not is_power_of_two(count):
            raise _invalid(name, f"is {count}: every lease has a power of two of them")
    _check_range("resumed.lanes", resumed.lanes, 1, request.lanes_max)
    if resumed.HasField("ended"):
        if resumed.ended.cause not in (join.JobEnded.ABORTED_BY_WORKER, join.JobEnded.WORKER_LEFT):
            raise _invalid("resumed.ended.cause", "is none that a worker can give")
    elif len(resumed.positions) != POSITION_BYTES * resumed.slots:
        raise _invalid("resumed.positions", f"has {len(resumed.positions)} bytes for {resumed.slots} slots")
    if len(resumed.job_id) != JOB_ID_BYTES:
        raise _invalid("resumed.job_id", f"has {len(resumed.job_id)} bytes: it must have {JOB_ID_BYTES}")
    if not resumed.reason.isprintable() or len(resumed.reason) > REASON_CHARACTERS_MAX:
        raise _invalid("resumed.reason", f"must be printable, and at most {REASON_CHARACTERS_MAX} characters long")


def check_create(request: join.CreateJobRequest) -> None:
    """Raises a `Refusal` that names the field which is invalid."""
    _check_names(request.job_name, request.tenant)
    _check_job(request.world_size, request.slots)
    _check_range("priority", request.priority, -PRIORITY_MAX, PRIORITY_MAX)


def _check_texts(**texts: tuple[str, int]) -> None:
    """Checks texts, each given as field=(text, most bytes). Raises a `Refusal` that names the field."""
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


def _check_job(world_size: int, slots: int) -> None:
    _check_range("world_size", world_size, 1, JOB_WORKERS_MAX, " workers")
    _check_range("slots", slots, 0, LEASE_SLOTS_MAX, "; 0 asks for the usual")


def _check_range(name: str, value: int, least: int, most: int, more: str = "") -> None:
    if not least <= value <= most:
        raise _invalid(name, f"is {value}: it must be {least} to {most}{more}")


def data_address(endpoint: join.Endpoint) -> ipaddress.IPv4Address:
    """The address of a worker's data sockets. A name is never looked up: the caller would choose how long the service
    waits. Raises a `Refusal`."""
    try:
        address = ipaddress.IPv4Address(endpoint.address)
    except ValueError:
        problem = f"is {endpoint.address[:64]!r}: an IP address is needed, IPv4 in dotted form; names are not looked up"
        raise _invalid("endpoint.address", problem) from None
    if not addresses.can_send(address):
        raise _invalid("endpoint.address", f"is {address}: it must be one that this worker sends its packets from")
    return address


def _check_endpoint(endpoint: join.Endpoint, threads: int) -> None:
    data_address(endpoint)
    _check_range("endpoint.port", endpoint.port, 1, 65536 - threads, f", as the worker has {threads} ports from there")


def _is_text(text: str, bytes_max: int) -> bool:
    return text.isprintable() and len(text.encode()) <= bytes_max


def _invalid(field: str, problem: str) -> Refusal:
    return Refusal("INVALID_ARGUMENT", f"{field} {problem}")
