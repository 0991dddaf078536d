"""What is stored of jobs, and read again at the start. Pure. Times in it are Unix time: that of the state machine plus
`unix_offset`.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

from wiresum import join
from wiresum.controller.driver import Endpoint
from wiresum.controller.jobs.job import Job, Presence, State, Worker
from wiresum.controller.jobs.leases import Lease
from wiresum.controller.jobs.tree import Branch, Node, Phase


@dataclass(frozen=True)
class JobRecord:
    """A job that runs, moves, or is ending."""

    switch_name: str
    """The root's."""
    number: int
    name: str
    state: str
    body: str
    """JSON; holds secrets, tokens and keys."""


@dataclass(frozen=True)
class Reservation:
    """A job that an operator created, until it runs or the time is up."""

    job_name: str
    world_size: int
    slots: int
    """0: the usual."""
    tenant: str
    priority: int
    switch_name: str
    """At this one, or those below it; empty: at any."""
    job_token: str = field(repr=False)
    created_at: float
    """Seconds of Unix time."""
    keep_until: float


@dataclass(frozen=True)
class EndedRecord:
    """How a job ended."""

    sequence: int
    """Numbers the ends."""
    job: join.EndedJob


@dataclass(frozen=True)
class StoredState:
    """All that is stored."""

    jobs: list[JobRecord] = field(default_factory=list)
    reservations: list[Reservation] = field(default_factory=list)
    draining: frozenset[str] = frozenset()
    ended: list[EndedRecord] = field(default_factory=list)
    """In the order of their sequence."""
    past: str = ""
    """Why this is not what was written last, a sentence; empty: it is, as far as the disk tells."""
    keys_lost: bool = False
    """The sequence of the jobs' keys is lost."""


_JOB_FIELDS = (
    "key_agreed",
    "key",
    "world_size",
    "tenant",
    "priority",
    "reserved",
    "job_token",
    "threads",
    "port_offset",
    "lanes",
)
"""What is written of a job as it is."""
_LATER_JOB_FIELDS = {"move_number": 0, "within": ""}
"""The same, with what a record of an earlier release means, which does not have it."""
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


class RecordError(ValueError):
    """A record makes no sense: the text says which."""


def record_of(job: Job, unix_offset: float) -> JobRecord:
    """Of a job that has slots."""
    body: dict[str, Any] = {
        **{name: getattr(job, name) for name in (*_JOB_FIELDS, *_LATER_JOB_FIELDS)},
        "created_at": job.created_at + unix_offset,
        "nodes": [_of_node(node) for node in job.nodes.values()],
        "slots": job.slots,
        "ended": base64.b64encode(job.ended.SerializeToString()).decode() if job.ended else None,
        "workers": [_of_worker(job.workers[rank]) for rank in range(job.world_size)],
    }
    return JobRecord(job.switch_name, job.number, job.name, job.state.value, json.dumps(body))


def job_of(record: JobRecord, now: float, unix_offset: float) -> Job:
    """The job as it was, without its entries (granting.settle_entries). Raises `RecordError`."""
    try:
        body = json.loads(record.body)
        nodes = [_node_of(fields) for fields in body["nodes"]]
        job = Job(
            record.name,
            **{name: body[name] for name in _JOB_FIELDS},
            **{name: body.get(name, meant) for name, meant in _LATER_JOB_FIELDS.items()},
            created_at=body["created_at"] - unix_offset,
            state=State(record.state),
            nodes={node.branch.switch_name: node for node in nodes},
            number=record.number,
            slots=body["slots"],
            progress_at=now,
            restored=True,
            ended=join.JobEnded.FromString(base64.b64decode(body["ended"])) if body["ended"] else None,
        )
        job.workers = {rank: _worker_of(job, rank, fields, now) for rank, fields in enumerate(body["workers"])}
        job.left_first = next((w for w in job.workers.values() if w.presence is Presence.LEFT), None)
        job.left_at = now
        ranks = sorted(rank for node in nodes for rank in node.branch.ranks)
        if ranks != list(range(job.world_size)) or job.switch_name != record.switch_name:
            raise ValueError("its switches and its workers do not belong together")
    except (ValueError, KeyError, TypeError) as error:
        where = f"job {record.name!r}, number {record.number} at {record.switch_name}"
        raise RecordError(
            f"what is written down of {where} makes no sense ({error!r}): run the release that wrote it, or move the "
            f"state's database away; the jobs that run end then"
        ) from error
    return job


def _of_node(node: Node) -> dict[str, Any]:
    branch = node.branch
    return {
        "switch_name": branch.switch_name,
        "parent": branch.parent,
        "ranks": branch.ranks,
        "below": branch.below,
        "lease": dataclasses.asdict(node.lease) if node.lease is not None else None,
    }


def _node_of(fields: dict[str, Any]) -> Node:
    """A switch that has given its slots back has forgotten the job."""
    branch = Branch(fields["switch_name"], fields["parent"], tuple(fields["ranks"]), tuple(fields["below"]))
    lease = None if fields["lease"] is None else Lease(**fields["lease"])
    return Node(branch, lease, Phase.FORGOTTEN if lease is None else Phase.HOLDING, presumed=lease is not None)


def _of_worker(worker: Worker) -> dict[str, Any]:
    return {
        **{name: getattr(worker, name) for name in _WORKER_FIELDS},
        "can_move": worker.can_move,
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
        can_move=fields.get("can_move", False),
        heard_at=now,
    )
