"""Stored records of jobs, written while they run and read at the start. Pure. Times in a record are Unix time: that of
the state machine plus `unix_offset`."""

from __future__ import annotations

import base64
import dataclasses
import ipaddress
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import DecodeError

from wiresum import join
from wiresum.controller.driver import Endpoint
from wiresum.controller.jobs.job import (
    Job,
    Lease,
    LeaseState,
    Members,
    Presence,
    State,
    Terms,
    Watch,
    Worker,
    draw_token,
)
from wiresum.controller.jobs.slot_pool import SlotRange
from wiresum.controller.jobs.tree import Branch, Node, Phase
from wiresum.join.constants import (
    BELOW_ROOT_WORKERS_MAX,
    JOB_WORKERS_MAX,
    LANES_MAX,
    LEASE_SLOTS_MAX,
    PRIORITY_MAX,
    THREADS_MAX,
)


@dataclass(frozen=True)
class JobRecord:
    """A job that runs, moves, or is ending."""

    switch_name: str
    """Name of the root switch."""
    number: int
    name: str
    state: str
    body: str
    """JSON; contains secrets, tokens and keys."""


@dataclass(frozen=True)
class SetAside:
    """The record of a job that the service cannot continue with: set_aside.py."""

    sequence: int
    """Number of this record among those set aside; 0: it is still among the records of jobs on disk."""
    record: JobRecord
    why: str
    """Why the job cannot continue, a clause for people."""
    damaged: bool = False
    """True if the record is not what was written."""


@dataclass(frozen=True)
class Reservation:
    """A job that an operator created, until it runs or the time is up."""

    job_name: str
    world_size: int
    slots: int
    """Slots that the operator asked for; 0: the usual number."""
    tenant: str
    priority: int
    switch_name: str
    """The switch, with those below it, where the job may run; empty: any."""
    job_token: str = field(repr=False)
    created_at: float
    """Seconds of Unix time."""
    keep_until: float

    def check(self) -> None:
        """Raises a `ValueError` or `TypeError` if a field has a value that is never written."""
        numbers = {name: _JOB_NUMBERS[name] for name in ("world_size", "priority")} | {"slots": (0, LEASE_SLOTS_MAX)}
        texts = ("job_name", "tenant", "switch_name", "job_token")
        if problem := next(_out_of_bounds("", vars(self), numbers, texts), ""):
            raise ValueError(problem)
        if not (math.isfinite(self.created_at) and math.isfinite(self.keep_until)):
            raise ValueError(f"it is kept from {self.created_at} to {self.keep_until}")


@dataclass(frozen=True)
class EndedRecord:
    """How a job ended."""

    sequence: int
    """Number of this end, in the order of ends."""
    job: join.EndedJob


@dataclass(frozen=True)
class StoredState:
    """All that is stored."""

    jobs: list[JobRecord] = field(default_factory=list)
    set_aside: list[SetAside] = field(default_factory=list)
    """Records that were set aside before, in the order of their sequence, and damaged records."""
    reservations: list[Reservation] = field(default_factory=list)
    draining: frozenset[str] = frozenset()
    ended: list[EndedRecord] = field(default_factory=list)
    """Ended jobs in the order of their sequence."""
    past: str = ""
    """A sentence that says why this state is not what was written last; empty: it is, as far as the disk tells."""
    keys_lost: bool = False
    """True if the sequence of the jobs' keys is lost."""


NOT_USED = "the job has another lease, or ended with one"
"""The reason why a released lease has ended, in its record."""
_TERMS_FIELDS = ("priority", "reserved", "job_token", "within")
_LEASE_FIELDS = ("key", "threads", "port_offset", "lanes", "slots")
"""Fields of a job's terms, and of its lease, that a record has unchanged."""
_WORKER_FIELDS = (
    "threads_max",
    "lanes_max",
    "slots_wanted",
    "host_name",
    "process_id",
    "attempt",
    "token",
    "certificate",
    "holder",
    "called_from",
)
_U32_MAX = (1 << 32) - 1
_JOB_NUMBERS: Mapping[str, tuple[int, int]] = {
    "number": (0, _U32_MAX),
    "key": (1, _U32_MAX),
    "world_size": (1, JOB_WORKERS_MAX),
    "priority": (-PRIORITY_MAX, PRIORITY_MAX),
    "threads": (1, THREADS_MAX),
    "port_offset": (0, THREADS_MAX - 1),
    "lanes": (1, LANES_MAX),
    "slots": (1, LEASE_SLOTS_MAX),
    "move_number": (0, _U32_MAX),
}
"""The least and the most value of each field. Messages to workers and operators, and entries of switches, can carry all
values between."""
_WORKER_NUMBERS: Mapping[str, tuple[int, int]] = {
    "threads_max": (1, THREADS_MAX),
    "lanes_max": (1, LANES_MAX),
    "slots_wanted": (0, LEASE_SLOTS_MAX),
    "process_id": (0, _U32_MAX),
}
_JOB_TEXTS = ("name", "tenant", "job_token", "within")
_WORKER_TEXTS = ("host_name", "attempt", "token", "certificate", "holder", "called_from")


class RecordError(ValueError):
    """Raised for a record that makes no sense; the text says which."""


def record_of(lease: Lease, unix_offset: float) -> JobRecord:
    """The record of a lease that has slots, with its job. A lease that no job has any more is recorded as a job that
    has ended, and whose workers are gone."""
    job, state, ended = lease.job, lease.job.state, lease.job.ended
    workers = [job.members.workers[rank] for rank in range(job.members.world_size)]
    if not lease.is_current:
        state, ended = State.ENDING, join.JobEnded(reason=NOT_USED)
        workers = [dataclasses.replace(worker, token=draw_token(), presence=Presence.LOST) for worker in workers]
    body: dict[str, Any] = {
        **{name: getattr(job.terms, name) for name in _TERMS_FIELDS},
        **{name: getattr(lease, name) for name in _LEASE_FIELDS},
        "world_size": job.members.world_size,
        "tenant": job.tenant,
        "move_number": job.move_number,
        "created_at": job.created_at + unix_offset,
        "nodes": [_of_node(node) for node in lease.nodes.values()],
        "ended": base64.b64encode(ended.SerializeToString()).decode() if ended else None,
        "workers": [_of_worker(worker) for worker in workers],
    }
    problem = next(_problems(lease, body, state), "")
    assert not problem, f"{lease} cannot be written down: {problem}"
    return JobRecord(lease.switch_name, lease.number, job.name, state.value, json.dumps(body))


def job_of(record: JobRecord, now: float, unix_offset: float) -> Job:
    """The job of a record, without its entries (granting.settle_entries). Raises `RecordError`."""
    try:
        body = json.loads(record.body)
        nodes = [_node_of(fields) for fields in body["nodes"]]
        job = Job(
            record.name,
            body["created_at"] - unix_offset,
            Terms(**{name: body[name] for name in _TERMS_FIELDS}),
            Members(body["world_size"]),
            body["tenant"],
            state=State(record.state),
            move_number=body["move_number"],
            watch=Watch(progress_at=now, restored=True),
            ended=None if body["ended"] is None else join.JobEnded.FromString(base64.b64decode(body["ended"])),
            ended_at=now,
        )
        job.lease = Lease(
            job,
            state=LeaseState.HELD if job.state is State.RUNNING else LeaseState.RELEASED,
            nodes={node.branch.switch_name: node for node in nodes},
            number=record.number,
            **{name: body[name] for name in _LEASE_FIELDS},
        )
        job.members.workers = {rank: _worker_of(job, rank, fields, now) for rank, fields in enumerate(body["workers"])}
        for worker in job.members.workers.values():
            if worker.presence is Presence.LEFT:
                job.members.note_left(worker, now)
        if problem := next(_problems(job.lease, body, job.state), ""):
            raise ValueError(problem)
        if job.lease.switch_name != record.switch_name:
            raise ValueError(f"its root is {job.lease.switch_name}")
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, DecodeError) as error:
        where = f"job {record.name!r}, number {record.number!r} at {record.switch_name!r}"
        raise RecordError(f"what is written down of {where} makes no sense ({error!r})") from error
    return job


def _problems(lease: Lease, body: Mapping[str, Any], state: State) -> Iterator[str]:
    """Why a job that has slots cannot be as its record says, or cannot be expressed in a message; empty if it can."""
    job, workers, runs_on = lease.job, lease.job.members.workers, body["ended"] is None
    said = {**body, "name": job.name, "number": lease.number}
    yield from _out_of_bounds("", said, _JOB_NUMBERS, _JOB_TEXTS)
    if not math.isfinite(job.created_at):
        yield f"created_at is {job.created_at}"
    if lease.slots % lease.threads or lease.port_offset + lease.threads > THREADS_MAX:
        yield f"it has {lease.slots} slots and {lease.threads} threads from port {lease.port_offset}"
    if state not in (State.RUNNING, State.MOVING, State.ENDING) or runs_on == (state is State.ENDING):
        yield f"it is {state.value}, and has {'not ' * runs_on}ended"
    if len(workers) != job.members.world_size:
        yield f"it has {len(workers)} workers of {job.members.world_size}"
    for rank, fields in enumerate(body["workers"]):
        yield from _out_of_bounds(f"rank {rank}: ", fields, _WORKER_NUMBERS, _WORKER_TEXTS)
        yield from _problems_of_endpoint(workers[rank])
    yield from _problems_of_tree(lease, state)


def _problems_of_endpoint(worker: Worker) -> Iterator[str]:
    address: Any = worker.endpoint.address
    port: Any = worker.endpoint.port
    if type(address) is not str or type(port) is not int or not 1 <= port <= 65536 - worker.threads_max:
        yield f"rank {worker.rank}: its endpoint is {worker.endpoint}"
    ipaddress.IPv4Address(address)  # raises a ValueError
    global_rank: Any = worker.global_rank
    if global_rank is not None and (type(global_rank) is not int or not 0 <= global_rank <= _U32_MAX):
        yield f"rank {worker.rank}: global_rank is {global_rank!r}"


def _out_of_bounds(
    whose: str, has: Mapping[str, Any], numbers: Mapping[str, tuple[int, int]], texts: tuple[str, ...]
) -> Iterator[str]:
    for name, (least, most) in numbers.items():
        value = has[name]
        if type(value) is not int or not least <= value <= most:
            yield f"{whose}{name} is {value!r}, and must be {least} to {most}"
    for name in texts:
        value = has[name]
        if type(value) is not str:
            yield f"{whose}{name} is {value!r}, and must be a text"
        value.encode()  # raises a ValueError for half a character


def _problems_of_tree(lease: Lease, state: State) -> Iterator[str]:
    """Checks that each switch comes after its parent, and that each worker is attached to exactly one switch."""
    above: dict[str, Branch] = {}
    for name, node in lease.nodes.items():
        branch = node.branch
        if type(name) is not str or (branch.parent != "" if not above else name not in _below(above, branch.parent)):
            yield f"{name!r} does not hang where its tree has it"
        if not 1 <= branch.contributors <= branch.contributors_max:
            yield f"{branch.contributors} are too few or too many at {name}"
        if node.slots is not None and (type(node.slots.base) is not int or node.slots.count != lease.slots):
            yield f"its slots at {name} are {node.slots}"
        if node.slots is None and state is State.RUNNING:
            yield f"it has no slots at {name}"
        if not all(1 <= len(host) <= BELOW_ROOT_WORKERS_MAX for host in branch.hosts):
            yield f"its hosts at {name} have {[len(host) for host in branch.hosts]} workers"
        above[name] = branch
    hanging = sorted(rank for branch in above.values() for rank in branch.ranks)
    below = [name for branch in above.values() for name in branch.below]
    if (
        hanging != list(range(lease.job.members.world_size))
        or len(below) != len(above) - 1
        or not above.keys() >= set(below)
    ):
        yield "its switches and its workers do not belong together"


def _below(above: Mapping[str, Branch], parent: str) -> tuple[str, ...]:
    return above[parent].below if parent in above else ()


def _of_node(node: Node) -> dict[str, Any]:
    branch = node.branch
    return {
        "switch_name": branch.switch_name,
        "parent": branch.parent,
        "hosts": branch.hosts,
        "below": branch.below,
        "lease": dataclasses.asdict(node.slots) if node.slots is not None else None,
    }


def _node_of(fields: dict[str, Any]) -> Node:
    """The node of a record. A switch that has given its slots back has forgotten the job."""
    hosts = tuple(map(tuple, fields["hosts"]))
    branch = Branch(fields["switch_name"], fields["parent"], hosts, tuple(fields["below"]))
    slots = None if fields["lease"] is None else SlotRange(**fields["lease"])
    return Node(branch, slots, Phase.FORGOTTEN if slots is None else Phase.HOLDING, presumed=slots is not None)


def _of_worker(worker: Worker) -> dict[str, Any]:
    return {
        **{name: getattr(worker, name) for name in _WORKER_FIELDS},
        "host_id": worker.host_id.hex(),
        "global_rank": worker.global_rank,
        "endpoint": list(worker.endpoint),
        "presence": worker.presence.value,
    }


def _worker_of(job: Job, rank: int, fields: dict[str, Any], now: float) -> Worker:
    presence = Presence(fields["presence"])
    gone = presence in (Presence.LEFT, Presence.LOST)
    return Worker(
        job,
        rank,
        Endpoint(*fields["endpoint"]),
        **{name: fields[name] for name in _WORKER_FIELDS},
        asked_at=now,
        deadline=now,
        presence=presence if gone else Presence.GRANTED,
        host_id=bytes.fromhex(fields["host_id"]),
        global_rank=fields["global_rank"],
        heard_at=now,
    )
