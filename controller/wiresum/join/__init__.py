"""The messages of workers, operators and the service, which the `.proto` files define. Imports no gRPC."""

from __future__ import annotations

from wiresum.join.constants import LEASE_SLOTS_MAX, PROTOCOL_VERSION
from wiresum.join.join_pb2 import (
    DESCRIPTOR,
    AbortReply,
    AbortRequest,
    Challenge,
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
    Proof,
    Pulse,
    Resumed,
    Sharing,
    Waiting,
)
from wiresum.join.names import name_problem
from wiresum.join.operator_pb2 import (
    AuditReport,
    CreateJobReply,
    CreateJobRequest,
    DiscardRecordReply,
    DiscardRecordRequest,
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
    SetAsideRecord,
    SwitchReport,
    TenantAtSwitch,
    TenantReport,
    WorkerReport,
)
from wiresum.join.peers import TRANSLATION_ADVICE, describe_peer, ranks_text, why_translated

Admission = JoinRequest.Admission

JOIN_SERVICE: str = DESCRIPTOR.services_by_name["JoinService"].full_name
"""The service that is named to gRPC's health service to ask whether a job could begin."""

MESSAGE_BYTES_MAX = 16_384
"""The most bytes of a request; a larger one is refused before it is parsed."""

POSITIONS_BYTES_MAX = MESSAGE_BYTES_MAX + 4 * LEASE_SLOTS_MAX
"""The most bytes of a heartbeat and a JoinRequest, which may have a number for each slot of a lease."""

ANSWER_BYTES_MAX = 1 << 20
"""The most bytes of an answer: a Diagnosis names all workers of a job."""

PAGE_BYTES_MAX = 32 * 1024
"""The most bytes of an answer that comes in pages, besides its first record."""

REPORT_BYTES_MAX = 64 * 1024 * 1024
"""The most bytes of a Report, which may have over a thousand jobs, with their counters."""

REFUSED_KEY = "wiresum-refused"
"""Trailing metadata of every refusal, so that a refusal is not taken for a failure of gRPC with an equal status
code."""

RETRY_KEY = "grpc-retry-pushback-ms"
"""Trailing metadata of a refusal: after how many milliseconds to ask again."""

WHY_NOT_KEY = "wiresum-why-not-bin"
"""Trailing metadata of an answer about health: a sentence that says why the state is not SERVING."""

STANDS_BY = "this controller stands by"
"""The beginning of the text with which a standby refuses calls, with the status UNAVAILABLE."""

__all__ = [
    "ANSWER_BYTES_MAX",
    "MESSAGE_BYTES_MAX",
    "PAGE_BYTES_MAX",
    "POSITIONS_BYTES_MAX",
    "PROTOCOL_VERSION",
    "REFUSED_KEY",
    "REPORT_BYTES_MAX",
    "RETRY_KEY",
    "STANDS_BY",
    "TRANSLATION_ADVICE",
    "WHY_NOT_KEY",
    "AbortReply",
    "AbortRequest",
    "Admission",
    "AuditReport",
    "Challenge",
    "CreateJobReply",
    "CreateJobRequest",
    "Diagnosis",
    "DiscardRecordReply",
    "DiscardRecordRequest",
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
    "Proof",
    "Pulse",
    "Report",
    "Resumed",
    "ServiceReport",
    "SetAsideRecord",
    "Sharing",
    "SwitchReport",
    "TenantAtSwitch",
    "TenantReport",
    "Waiting",
    "WorkerReport",
    "describe_peer",
    "name_problem",
    "ranks_text",
    "why_translated",
]
