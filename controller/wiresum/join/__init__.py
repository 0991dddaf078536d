"""The messages that workers, operators and the service exchange; the `.proto` files here define them.

Importing this module loads protobuf but not gRPC: the stubs are in `join_pb2_grpc` and its like.
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
    JoinEvent,
    JoinReply,
    JoinRequest,
    LeaveReply,
    LeaveRequest,
    Member,
    NodeReport,
    Peer,
    Pulse,
    Waiting,
)
from wiresum.join.names import JOB_NAME_BYTES_MAX, name_problem
from wiresum.join.operator_pb2 import (
    CreateJobReply,
    CreateJobRequest,
    DrainReply,
    DrainRequest,
    EndedJob,
    EndedJobs,
    EndJobReply,
    EndJobRequest,
    GetReportRequest,
    JobReport,
    ListEndedRequest,
    Report,
    ServiceReport,
    SwitchReport,
    WorkerReport,
)
from wiresum.join.peers import describe_peer

PROTOCOL_VERSION = 4
"""Changes when a worker and a service of different versions would misunderstand each other."""

DEFAULT_CONTROL_PORT = 43487
"""TCP port of the join service: 0xA9DF, the one below the first data port."""

WORKERS_MAX = 1024
"""Workers of a job; of one switch, 32 (docs/protocol.md, section 8)."""

THREADS_MAX = 16
"""Threads, and so data ports, of a worker."""

MESSAGE_BYTES_MAX = 16_384
"""No request comes near; a larger one is refused before it is parsed."""

ANSWER_BYTES_MAX = 1 << 20
"""A Diagnosis names all workers of a job."""

REPORT_BYTES_MAX = 64 * 1024 * 1024
"""A Report of a full switch is large: over a thousand jobs, with their counters."""

REFUSED_KEY = "wiresum-refused"
"""Trailing metadata of every refusal, so that it is not taken for a failure of gRPC with the same status code."""

STANDS_BY = "this controller stands by"
"""So begins what a standby says to those who ask it for what only the active one does, with the status UNAVAILABLE."""

__all__ = [
    "ANSWER_BYTES_MAX",
    "DEFAULT_CONTROL_PORT",
    "JOB_NAME_BYTES_MAX",
    "MESSAGE_BYTES_MAX",
    "PROTOCOL_VERSION",
    "REFUSED_KEY",
    "REPORT_BYTES_MAX",
    "STANDS_BY",
    "THREADS_MAX",
    "WORKERS_MAX",
    "AbortReply",
    "AbortRequest",
    "CreateJobReply",
    "CreateJobRequest",
    "Diagnosis",
    "DrainReply",
    "DrainRequest",
    "EndJobReply",
    "EndJobRequest",
    "EndedJob",
    "EndedJobs",
    "Endpoint",
    "GetReportRequest",
    "Heartbeat",
    "JobEnded",
    "JobEvent",
    "JobReport",
    "JoinEvent",
    "JoinReply",
    "JoinRequest",
    "LeaveReply",
    "LeaveRequest",
    "ListEndedRequest",
    "Member",
    "NodeReport",
    "Peer",
    "Pulse",
    "Report",
    "ServiceReport",
    "SwitchReport",
    "Waiting",
    "WorkerReport",
    "describe_peer",
    "name_problem",
]
