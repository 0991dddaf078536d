# mypy: ignore-errors
# ruff: noqa
# fmt: off
from wiresum.join import join_pb2 as _join_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetReportRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Report(_message.Message):
    __slots__ = ("jobs", "switches", "service", "tenants", "set_aside")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    SWITCHES_FIELD_NUMBER: _ClassVar[int]
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    SET_ASIDE_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[JobReport]
    switches: _containers.RepeatedCompositeFieldContainer[SwitchReport]
    service: ServiceReport
    tenants: _containers.RepeatedCompositeFieldContainer[TenantReport]
    set_aside: _containers.RepeatedCompositeFieldContainer[SetAsideRecord]
    def __init__(self, jobs: _Optional[_Iterable[_Union[JobReport, _Mapping]]] = ..., switches: _Optional[_Iterable[_Union[SwitchReport, _Mapping]]] = ..., service: _Optional[_Union[ServiceReport, _Mapping]] = ..., tenants: _Optional[_Iterable[_Union[TenantReport, _Mapping]]] = ..., set_aside: _Optional[_Iterable[_Union[SetAsideRecord, _Mapping]]] = ...) -> None: ...

class SetAsideRecord(_message.Message):
    __slots__ = ("name", "switch_name", "state", "why")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SWITCH_NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    name: str
    switch_name: str
    state: str
    why: str
    def __init__(self, name: _Optional[str] = ..., switch_name: _Optional[str] = ..., state: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class JobReport(_message.Message):
    __slots__ = ("job", "name", "world_size", "joined", "slot_base", "slots", "state", "packets", "results", "age_seconds", "switch_name", "tenant", "priority", "queue_position", "waiting", "lanes", "threads", "workers", "caller", "uncounted", "switches", "moves", "streams")
    class PacketsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    JOB_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    JOINED_FIELD_NUMBER: _ClassVar[int]
    SLOT_BASE_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PACKETS_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SWITCH_NAME_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    QUEUE_POSITION_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    UNCOUNTED_FIELD_NUMBER: _ClassVar[int]
    SWITCHES_FIELD_NUMBER: _ClassVar[int]
    MOVES_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    job: int
    name: str
    world_size: int
    joined: int
    slot_base: int
    slots: int
    state: str
    packets: _containers.ScalarMap[str, int]
    results: int
    age_seconds: float
    switch_name: str
    tenant: str
    priority: int
    queue_position: int
    waiting: str
    lanes: int
    threads: int
    workers: _containers.RepeatedCompositeFieldContainer[WorkerReport]
    caller: str
    uncounted: bool
    switches: _containers.RepeatedCompositeFieldContainer[_join_pb2.NodeReport]
    moves: int
    streams: int
    def __init__(self, job: _Optional[int] = ..., name: _Optional[str] = ..., world_size: _Optional[int] = ..., joined: _Optional[int] = ..., slot_base: _Optional[int] = ..., slots: _Optional[int] = ..., state: _Optional[str] = ..., packets: _Optional[_Mapping[str, int]] = ..., results: _Optional[int] = ..., age_seconds: _Optional[float] = ..., switch_name: _Optional[str] = ..., tenant: _Optional[str] = ..., priority: _Optional[int] = ..., queue_position: _Optional[int] = ..., waiting: _Optional[str] = ..., lanes: _Optional[int] = ..., threads: _Optional[int] = ..., workers: _Optional[_Iterable[_Union[WorkerReport, _Mapping]]] = ..., caller: _Optional[str] = ..., uncounted: _Optional[bool] = ..., switches: _Optional[_Iterable[_Union[_join_pb2.NodeReport, _Mapping]]] = ..., moves: _Optional[int] = ..., streams: _Optional[int] = ...) -> None: ...

class WorkerReport(_message.Message):
    __slots__ = ("peer", "endpoint", "state", "heartbeat_age_ms", "contributions", "tensor_last", "switch_name", "certificate_expires_at", "tensor_said", "sums_wrong")
    PEER_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
    TENSOR_LAST_FIELD_NUMBER: _ClassVar[int]
    SWITCH_NAME_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    TENSOR_SAID_FIELD_NUMBER: _ClassVar[int]
    SUMS_WRONG_FIELD_NUMBER: _ClassVar[int]
    peer: _join_pb2.Peer
    endpoint: _join_pb2.Endpoint
    state: str
    heartbeat_age_ms: int
    contributions: int
    tensor_last: int
    switch_name: str
    certificate_expires_at: float
    tensor_said: int
    sums_wrong: int
    def __init__(self, peer: _Optional[_Union[_join_pb2.Peer, _Mapping]] = ..., endpoint: _Optional[_Union[_join_pb2.Endpoint, _Mapping]] = ..., state: _Optional[str] = ..., heartbeat_age_ms: _Optional[int] = ..., contributions: _Optional[int] = ..., tensor_last: _Optional[int] = ..., switch_name: _Optional[str] = ..., certificate_expires_at: _Optional[float] = ..., tensor_said: _Optional[int] = ..., sums_wrong: _Optional[int] = ...) -> None: ...

class SwitchReport(_message.Message):
    __slots__ = ("name", "kind", "state", "trouble", "slots_total", "slots_free", "jobs", "jobs_max", "lanes_max", "endpoint", "stray_packets", "parent", "part_of", "room", "room_taken", "uncounted", "software_version", "program_version", "sums_wrong")
    class StrayPacketsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class RoomEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class RoomTakenEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    SLOTS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FREE_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    JOBS_MAX_FIELD_NUMBER: _ClassVar[int]
    LANES_MAX_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    STRAY_PACKETS_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    PART_OF_FIELD_NUMBER: _ClassVar[int]
    ROOM_FIELD_NUMBER: _ClassVar[int]
    ROOM_TAKEN_FIELD_NUMBER: _ClassVar[int]
    UNCOUNTED_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_VERSION_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_VERSION_FIELD_NUMBER: _ClassVar[int]
    SUMS_WRONG_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: str
    state: str
    trouble: str
    slots_total: int
    slots_free: int
    jobs: int
    jobs_max: int
    lanes_max: int
    endpoint: _join_pb2.Endpoint
    stray_packets: _containers.ScalarMap[str, int]
    parent: str
    part_of: str
    room: _containers.ScalarMap[str, int]
    room_taken: _containers.ScalarMap[str, int]
    uncounted: bool
    software_version: str
    program_version: str
    sums_wrong: int
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[str] = ..., state: _Optional[str] = ..., trouble: _Optional[str] = ..., slots_total: _Optional[int] = ..., slots_free: _Optional[int] = ..., jobs: _Optional[int] = ..., jobs_max: _Optional[int] = ..., lanes_max: _Optional[int] = ..., endpoint: _Optional[_Union[_join_pb2.Endpoint, _Mapping]] = ..., stray_packets: _Optional[_Mapping[str, int]] = ..., parent: _Optional[str] = ..., part_of: _Optional[str] = ..., room: _Optional[_Mapping[str, int]] = ..., room_taken: _Optional[_Mapping[str, int]] = ..., uncounted: _Optional[bool] = ..., software_version: _Optional[str] = ..., program_version: _Optional[str] = ..., sums_wrong: _Optional[int] = ...) -> None: ...

class TenantReport(_message.Message):
    __slots__ = ("name", "jobs", "jobs_max", "slots", "slots_max", "waiting_jobs", "waiting_jobs_max", "switch_percent", "switches")
    NAME_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    JOBS_MAX_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_MAX_FIELD_NUMBER: _ClassVar[int]
    WAITING_JOBS_FIELD_NUMBER: _ClassVar[int]
    WAITING_JOBS_MAX_FIELD_NUMBER: _ClassVar[int]
    SWITCH_PERCENT_FIELD_NUMBER: _ClassVar[int]
    SWITCHES_FIELD_NUMBER: _ClassVar[int]
    name: str
    jobs: int
    jobs_max: int
    slots: int
    slots_max: int
    waiting_jobs: int
    waiting_jobs_max: int
    switch_percent: int
    switches: _containers.RepeatedCompositeFieldContainer[TenantAtSwitch]
    def __init__(self, name: _Optional[str] = ..., jobs: _Optional[int] = ..., jobs_max: _Optional[int] = ..., slots: _Optional[int] = ..., slots_max: _Optional[int] = ..., waiting_jobs: _Optional[int] = ..., waiting_jobs_max: _Optional[int] = ..., switch_percent: _Optional[int] = ..., switches: _Optional[_Iterable[_Union[TenantAtSwitch, _Mapping]]] = ...) -> None: ...

class TenantAtSwitch(_message.Message):
    __slots__ = ("switch_name", "room", "room_taken")
    class RoomEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class RoomTakenEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    SWITCH_NAME_FIELD_NUMBER: _ClassVar[int]
    ROOM_FIELD_NUMBER: _ClassVar[int]
    ROOM_TAKEN_FIELD_NUMBER: _ClassVar[int]
    switch_name: str
    room: _containers.ScalarMap[str, int]
    room_taken: _containers.ScalarMap[str, int]
    def __init__(self, switch_name: _Optional[str] = ..., room: _Optional[_Mapping[str, int]] = ..., room_taken: _Optional[_Mapping[str, int]] = ...) -> None: ...

class ServiceReport(_message.Message):
    __slots__ = ("role", "software_version", "age_seconds", "refusals", "trouble", "past", "moves", "audit", "active_silent_seconds", "join_protocol", "state_schema", "program_version", "program_digest")
    class RefusalsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class MovesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    ROLE_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_VERSION_FIELD_NUMBER: _ClassVar[int]
    AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    REFUSALS_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    PAST_FIELD_NUMBER: _ClassVar[int]
    MOVES_FIELD_NUMBER: _ClassVar[int]
    AUDIT_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_SILENT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    JOIN_PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    STATE_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_VERSION_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_DIGEST_FIELD_NUMBER: _ClassVar[int]
    role: str
    software_version: str
    age_seconds: float
    refusals: _containers.ScalarMap[str, int]
    trouble: str
    past: str
    moves: _containers.ScalarMap[str, int]
    audit: AuditReport
    active_silent_seconds: float
    join_protocol: int
    state_schema: int
    program_version: str
    program_digest: str
    def __init__(self, role: _Optional[str] = ..., software_version: _Optional[str] = ..., age_seconds: _Optional[float] = ..., refusals: _Optional[_Mapping[str, int]] = ..., trouble: _Optional[str] = ..., past: _Optional[str] = ..., moves: _Optional[_Mapping[str, int]] = ..., audit: _Optional[_Union[AuditReport, _Mapping]] = ..., active_silent_seconds: _Optional[float] = ..., join_protocol: _Optional[int] = ..., state_schema: _Optional[int] = ..., program_version: _Optional[str] = ..., program_digest: _Optional[str] = ...) -> None: ...

class AuditReport(_message.Message):
    __slots__ = ("trouble", "lines_lost")
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    LINES_LOST_FIELD_NUMBER: _ClassVar[int]
    trouble: str
    lines_lost: int
    def __init__(self, trouble: _Optional[str] = ..., lines_lost: _Optional[int] = ...) -> None: ...

class ListEndedRequest(_message.Message):
    __slots__ = ("job_name", "count_max", "page")
    JOB_NAME_FIELD_NUMBER: _ClassVar[int]
    COUNT_MAX_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    job_name: str
    count_max: int
    page: int
    def __init__(self, job_name: _Optional[str] = ..., count_max: _Optional[int] = ..., page: _Optional[int] = ...) -> None: ...

class EndedJobs(_message.Message):
    __slots__ = ("jobs", "next_page")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[EndedJob]
    next_page: int
    def __init__(self, jobs: _Optional[_Iterable[_Union[EndedJob, _Mapping]]] = ..., next_page: _Optional[int] = ...) -> None: ...

class EndedJob(_message.Message):
    __slots__ = ("name", "outcome", "reason", "world_size", "tenant", "caller", "switch_name", "slots", "created_at", "ended_at", "switches", "moves")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    SWITCH_NAME_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    SWITCHES_FIELD_NUMBER: _ClassVar[int]
    MOVES_FIELD_NUMBER: _ClassVar[int]
    name: str
    outcome: str
    reason: str
    world_size: int
    tenant: str
    caller: str
    switch_name: str
    slots: int
    created_at: float
    ended_at: float
    switches: int
    moves: int
    def __init__(self, name: _Optional[str] = ..., outcome: _Optional[str] = ..., reason: _Optional[str] = ..., world_size: _Optional[int] = ..., tenant: _Optional[str] = ..., caller: _Optional[str] = ..., switch_name: _Optional[str] = ..., slots: _Optional[int] = ..., created_at: _Optional[float] = ..., ended_at: _Optional[float] = ..., switches: _Optional[int] = ..., moves: _Optional[int] = ...) -> None: ...

class CreateJobRequest(_message.Message):
    __slots__ = ("job_name", "world_size", "slots", "tenant", "priority", "switch_name", "keep_seconds")
    JOB_NAME_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    SWITCH_NAME_FIELD_NUMBER: _ClassVar[int]
    KEEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    job_name: str
    world_size: int
    slots: int
    tenant: str
    priority: int
    switch_name: str
    keep_seconds: int
    def __init__(self, job_name: _Optional[str] = ..., world_size: _Optional[int] = ..., slots: _Optional[int] = ..., tenant: _Optional[str] = ..., priority: _Optional[int] = ..., switch_name: _Optional[str] = ..., keep_seconds: _Optional[int] = ...) -> None: ...

class CreateJobReply(_message.Message):
    __slots__ = ("job_token",)
    JOB_TOKEN_FIELD_NUMBER: _ClassVar[int]
    job_token: str
    def __init__(self, job_token: _Optional[str] = ...) -> None: ...

class EndJobRequest(_message.Message):
    __slots__ = ("job_name", "reason")
    JOB_NAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    job_name: str
    reason: str
    def __init__(self, job_name: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class EndJobReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("switch_name", "resume")
    SWITCH_NAME_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    switch_name: str
    resume: bool
    def __init__(self, switch_name: _Optional[str] = ..., resume: _Optional[bool] = ...) -> None: ...

class DrainReply(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: int
    def __init__(self, jobs: _Optional[int] = ...) -> None: ...

class DiscardRecordRequest(_message.Message):
    __slots__ = ("job_name",)
    JOB_NAME_FIELD_NUMBER: _ClassVar[int]
    job_name: str
    def __init__(self, job_name: _Optional[str] = ...) -> None: ...

class DiscardRecordReply(_message.Message):
    __slots__ = ("records",)
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    records: int
    def __init__(self, records: _Optional[int] = ...) -> None: ...
