"""What is written down of jobs, and read again when the service starts. Pure.

A record is a snapshot: JSON, so that a person can read it with any SQLite client. Times in it are Unix time, since the
clock of the state machine means nothing to the next process: `unix_offset` is what must be added to that one's.
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
    """A job that runs, or is ending."""

    switch_name: str
    """The root's."""
    number: int
    name: str
    state: str
    body: str
    """JSON, and secret: tokens and keys are in it."""


@dataclass(frozen=True)
class Reservation:
    """A name that an operator keeps for a job, until somebody has joined it, or the time is up."""

    job_name: str
    world_size: int
    slots: int
    """0: the usual."""
    tenant: str
    priority: int
    switch_name: str
    """On this one, or on those below it; empty: on any."""
    job_token: str = field(repr=False)
    created_at: float
    """Seconds of Unix time."""
    keep_until: float


@dataclass(frozen=True)
class EndedRecord:
    """What became of a job."""

    sequence: int
    """In the order in which jobs ended."""
    name: str
    outcome: str
    """A cause of `join.JobEnded` in lower case, or one of those in history.py."""
    reason: str
    world_size: int
    tenant: str
    caller: str
    """Empty if the service was started anew meanwhile."""
    switch_name: str
    """The root's; empty: it got no slots."""
    slots: int
    """At each of its switches."""
    created_at: float
    """Seconds of Unix time."""
    ended_at: float
    switches: int
    """How many it had; of a job that got slots."""


@dataclass(frozen=True)
class StoredState:
    """All that was written down."""

    jobs: list[JobRecord] = field(default_factory=list)
    reservations: list[Reservation] = field(default_factory=list)
    draining: frozenset[str] = frozenset()
    ended: list[EndedRecord] = field(default_factory=list)
    """In the order of their sequence."""
    past: str = ""
    """Why this is not all that was written, a sentence; empty: it is, as far as the disk tells."""
    keys_lost: bool = False
    """The jobs' keys are from a sequence that is lost."""


class RecordError(ValueError):
    """What is written down makes no sense: the text says where."""


def record_of(job: Job, unix_offset: float) -> JobRecord:
    """Of a job that has slots."""
    body: dict[str, Any] = {
        "created_at": job.created_at + unix_offset,
        "key_agreed": job.key_agreed,
        "key": job.key,
        "world_size": job.world_size,
        "tenant": job.tenant,
        "priority": job.priority,
        "reserved": job.reserved,
        "job_token": job.job_token,
        "nodes": [_of_node(node) for node in job.nodes.values()],
        "slots": job.slots,
        "threads": job.threads,
        "port_offset": job.port_offset,
        "lanes": job.lanes,
        "ended": base64.b64encode(job.ended.SerializeToString()).decode() if job.ended else None,
        "workers": [_of_worker(job.workers[rank]) for rank in range(job.world_size)],
    }
    return JobRecord(job.switch_name, job.number, job.name, job.state.value, json.dumps(body))


def job_of(record: JobRecord, now: float, unix_offset: float) -> Job:
    """The job as it was; all its workers have yet to be heard of, and what its switches are told is not there yet
    (granting.settle_entries). Raises `RecordError`."""
    try:
        body = json.loads(record.body)
        nodes = [_node_of(fields) for fields in body["nodes"]]
        job = Job(
            record.name,
            body["key_agreed"],
            body["world_size"],
            created_at=body["created_at"] - unix_offset,
            tenant=body["tenant"],
            priority=body["priority"],
            reserved=body["reserved"],
            job_token=body["job_token"],
            state=State(record.state),
            nodes={node.branch.switch_name: node for node in nodes},
            number=record.number,
            key=body["key"],
            slots=next(node.lease.count for node in nodes if node.lease is not None),
            threads=body["threads"],
            port_offset=body["port_offset"],
            lanes=body["lanes"],
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
    except (ValueError, KeyError, TypeError, StopIteration) as error:
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
    """One that has given its slots back has forgotten the job, and any other may have it."""
    branch = Branch(fields["switch_name"], fields["parent"], tuple(fields["ranks"]), tuple(fields["below"]))
    lease = None if fields["lease"] is None else Lease(**fields["lease"])
    return Node(branch, lease, Phase.FORGOTTEN if lease is None else Phase.HOLDING, presumed=lease is not None)


def _of_worker(worker: Worker) -> dict[str, Any]:
    return {
        "endpoint": list(worker.endpoint),
        "threads_max": worker.threads_max,
        "lanes_max": worker.lanes_max,
        "slots_wanted": worker.slots_wanted,
        "host_name": worker.host_name,
        "process_id": worker.process_id,
        "attempt": worker.attempt,
        "token": worker.token,
        "presence": worker.presence.value,
        "certificate": worker.certificate,
        "holder": worker.holder,
        "called_from": worker.called_from,
    }


def _worker_of(job: Job, rank: int, fields: dict[str, Any], now: float) -> Worker:
    presence = Presence(fields.pop("presence"))
    gone = presence in (Presence.LEFT, Presence.LOST)
    return Worker(
        job,
        rank,
        Endpoint(*fields.pop("endpoint")),
        **fields,
        asked_at=now,
        deadline=now,
        presence=presence if gone else Presence.GRANTED,
        heard_at=now,
    )
