"""What a worker was given when it joined."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field

from wiresum import join as messages


@dataclass(frozen=True)
class Endpoint:
    address: str
    """IPv4, dotted."""
    port: int


@dataclass(frozen=True)
class Grant:
    """The fields of `JoinReply`."""

    job: int
    key: int = field(repr=False)
    worker: int
    """Its number at its switch."""
    rank: int
    workers: int
    """Of the whole job."""
    lanes: int
    threads: int
    slots: int
    switch_endpoint: Endpoint
    switch_name: str
    results_group: Endpoint | None
    token: str = field(repr=False)
    heartbeat_interval_ms: int
    heartbeat_lost_ms: int
    reattach_ms: int


def grant_of(reply: messages.JoinReply, control_endpoint: str) -> Grant:
    """`control_endpoint` is the one that gave the reply: a switch at every address of its host is there."""
    address = reply.switch_endpoint.address
    if address in ("", "0.0.0.0"):
        address = socket.gethostbyname(control_endpoint.rpartition(":")[0])  # worked a moment ago, when we connected
    group = reply.results_group
    return Grant(
        job=reply.job,
        key=reply.key,
        worker=reply.worker,
        rank=reply.rank,
        workers=reply.workers,
        lanes=reply.lanes,
        threads=reply.threads,
        slots=reply.slots,
        switch_endpoint=Endpoint(address, reply.switch_endpoint.port),
        switch_name=reply.switch_name,
        results_group=Endpoint(group.address, group.port) if reply.HasField("results_group") else None,
        token=reply.token,
        heartbeat_interval_ms=reply.heartbeat_interval_ms,
        heartbeat_lost_ms=reply.heartbeat_lost_ms,
        reattach_ms=reply.reattach_ms,
    )
