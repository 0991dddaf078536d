"""The messages that workers and the controller exchange; `join.proto` beside this file defines them.

Importing this module loads protobuf but not gRPC: the service's stubs are in `wiresum.join.join_pb2_grpc`.
"""

from __future__ import annotations

from wiresum.join.join_pb2 import (
    AbortReply,
    AbortRequest,
    Diagnosis,
    Endpoint,
    Heartbeat,
    JobEnded,
    JobEvent,
    JoinReply,
    JoinRequest,
    LeaveReply,
    ListJobsReply,
    ListJobsRequest,
    Member,
    Peer,
    Pulse,
)

PROTOCOL_VERSION = 1
"""Changes when a worker and a service of different versions would misunderstand each other."""

DEFAULT_CONTROL_PORT = 43487
"""TCP port of the join service: 0xA9DF, the one below the first data port."""

WORKERS_MAX = 32
"""Workers of a job."""

THREADS_MAX = 16
"""Threads, and so data ports, of a worker."""

JOB_NAME_BYTES_MAX = 128
"""Longest name of a job, in UTF-8."""

MESSAGE_BYTES_MAX = 16_384
"""No message but ListJobsReply comes near; a larger one is refused before it is parsed."""

LIST_BYTES_MAX = 64 * 1024 * 1024
"""A ListJobsReply of a full switch is large: over a thousand jobs, with their counters."""

REFUSED_KEY = "wiresum-refused"
"""Trailing metadata of every refusal, so that it is not taken for a failure of gRPC with the same status code."""

__all__ = [
    "DEFAULT_CONTROL_PORT",
    "JOB_NAME_BYTES_MAX",
    "LIST_BYTES_MAX",
    "MESSAGE_BYTES_MAX",
    "PROTOCOL_VERSION",
    "REFUSED_KEY",
    "THREADS_MAX",
    "WORKERS_MAX",
    "AbortReply",
    "AbortRequest",
    "Diagnosis",
    "Endpoint",
    "Heartbeat",
    "JobEnded",
    "JobEvent",
    "JoinReply",
    "JoinRequest",
    "LeaveReply",
    "ListJobsReply",
    "ListJobsRequest",
    "Member",
    "Peer",
    "Pulse",
]
