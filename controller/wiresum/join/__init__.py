"""The messages of workers, operators and the service, which the `.proto` files define. Imports no gRPC."""

from __future__ import annotations

from wiresum.join.constants import LEASE_SLOTS_MAX, PROTOCOL_VERSION
from wiresum.join.join_pb2 import (
    DESCRIPTOR,
    AbortReply,
    AbortRequest,
    Diagnosis,
    Endpoint,
    Halt,
    Halted,
    Heartbeat,
    JobEnded,
    JobEvent,
    JoinEvent,
    JoinReply,
    JoinRequest,
    LeaveReply,
    LeaveRequest,
    Member,
    Move,
    NodeReport,
    Peer,
    Pulse,
    Resumed,
    Waiting,
)
from wiresum.join.names import name_problem
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
    TenantReport,
    WorkerReport,
)
from wiresum.join.peers import describe_peer

Admission = JoinRequest.Admission

JOIN_SERVICE: str = DESCRIPTOR.services_by_name["JoinService"].full_name
"""By which gRPC's health service is asked whether a job could begin."""

MESSAGE_BYTES_MAX = 16_384
"""Of a request; a larger one is refused before it is parsed."""

POSITIONS_BYTES_MAX = MESSAGE_BYTES_MAX + 4 * LEASE_SLOTS_MAX
"""The same of a heartbeat and a JoinRequest, which may have a number for each slot of a lease."""

ANSWER_BYTES_MAX = 1 << 20
"""A Diagnosis names all workers of a job."""

REPORT_BYTES_MAX = 64 * 1024 * 1024
"""A Report may have over a thousand jobs, with their counters."""

REFUSED_KEY = "wiresum-refused"
"""Trailing metadata of every refusal, so that it is not taken for a failure of gRPC with the same status code."""

STANDS_BY = "this controller stands by"
"""How the text begins with which a standby refuses calls, with the status UNAVAILABLE."""

__all__ = [
    "ANSWER_BYTES_MAX",
    "MESSAGE_BYTES_MAX",
    "POSITIONS_BYTES_MAX",
    "PROTOCOL_VERSION",
    "REFUSED_KEY",
    "REPORT_BYTES_MAX",
    "STANDS_BY",
    "AbortReply",
    "AbortRequest",
    "Admission",
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
    "Halt",
    "Halted",
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
    "Move",
    "NodeReport",
    "Peer",
    "Pulse",
    "Report",
    "Resumed",
    "ServiceReport",
    "SwitchReport",
    "TenantReport",
    "Waiting",
    "WorkerReport",
    "describe_peer",
    "name_problem",
]
