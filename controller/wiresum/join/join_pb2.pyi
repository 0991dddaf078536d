# mypy: ignore-errors
# ruff: noqa
# fmt: off
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Endpoint(_message.Message):
    __slots__ = ("address", "port")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    address: str
    port: int
    def __init__(self, address: _Optional[str] = ..., port: _Optional[int] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("protocol_version", "job_name", "rank", "world_size", "endpoint", "threads_max", "lanes_max", "slots", "host_name", "process_id", "software_version", "timeout_ms", "attempt", "tenant", "job_token", "admission", "agreed", "resumed", "host_id", "global_rank")
    class Admission(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        QUEUE: _ClassVar[JoinRequest.Admission]
        AT_ONCE: _ClassVar[JoinRequest.Admission]
        FURTHER: _ClassVar[JoinRequest.Admission]
    QUEUE: JoinRequest.Admission
    AT_ONCE: JoinRequest.Admission
    FURTHER: JoinRequest.Admission
    class AgreedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    JOB_NAME_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    THREADS_MAX_FIELD_NUMBER: _ClassVar[int]
    LANES_MAX_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    HOST_NAME_FIELD_NUMBER: _ClassVar[int]
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_VERSION_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    JOB_TOKEN_FIELD_NUMBER: _ClassVar[int]
    ADMISSION_FIELD_NUMBER: _ClassVar[int]
    AGREED_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    HOST_ID_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_RANK_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    job_name: str
    rank: int
    world_size: int
    endpoint: Endpoint
    threads_max: int
    lanes_max: int
    slots: int
    host_name: str
    process_id: int
    software_version: str
    timeout_ms: int
    attempt: str
    tenant: str
    job_token: str
    admission: JoinRequest.Admission
    agreed: _containers.ScalarMap[str, str]
    resumed: Resumed
    host_id: bytes
    global_rank: int
    def __init__(self, protocol_version: _Optional[int] = ..., job_name: _Optional[str] = ..., rank: _Optional[int] = ..., world_size: _Optional[int] = ..., endpoint: _Optional[_Union[Endpoint, _Mapping]] = ..., threads_max: _Optional[int] = ..., lanes_max: _Optional[int] = ..., slots: _Optional[int] = ..., host_name: _Optional[str] = ..., process_id: _Optional[int] = ..., software_version: _Optional[str] = ..., timeout_ms: _Optional[int] = ..., attempt: _Optional[str] = ..., tenant: _Optional[str] = ..., job_token: _Optional[str] = ..., admission: _Optional[_Union[JoinRequest.Admission, str]] = ..., agreed: _Optional[_Mapping[str, str]] = ..., resumed: _Optional[_Union[Resumed, _Mapping]] = ..., host_id: _Optional[bytes] = ..., global_rank: _Optional[int] = ...) -> None: ...

class Resumed(_message.Message):
    __slots__ = ("slots", "threads", "lanes", "positions", "reason", "ended", "job_id")
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    slots: int
    threads: int
    lanes: int
    positions: bytes
    reason: str
    ended: JobEnded
    job_id: bytes
    def __init__(self, slots: _Optional[int] = ..., threads: _Optional[int] = ..., lanes: _Optional[int] = ..., positions: _Optional[bytes] = ..., reason: _Optional[str] = ..., ended: _Optional[_Union[JobEnded, _Mapping]] = ..., job_id: _Optional[bytes] = ...) -> None: ...

class JoinEvent(_message.Message):
    __slots__ = ("waiting", "granted", "ended")
    WAITING_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    waiting: Waiting
    granted: JoinReply
    ended: JobEnded
    def __init__(self, waiting: _Optional[_Union[Waiting, _Mapping]] = ..., granted: _Optional[_Union[JoinReply, _Mapping]] = ..., ended: _Optional[_Union[JobEnded, _Mapping]] = ...) -> None: ...

class Waiting(_message.Message):
    __slots__ = ("reason", "queue_position")
    REASON_FIELD_NUMBER: _ClassVar[int]
    QUEUE_POSITION_FIELD_NUMBER: _ClassVar[int]
    reason: str
    queue_position: int
    def __init__(self, reason: _Optional[str] = ..., queue_position: _Optional[int] = ...) -> None: ...

class JoinReply(_message.Message):
    __slots__ = ("job", "key", "worker", "workers", "lanes", "threads", "slots", "switch_endpoint", "token", "heartbeat_interval_ms", "heartbeat_lost_ms", "reattach_ms", "switch_name", "results_group", "rank", "members_secret", "roles", "sharing", "check_word")
    JOB_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    SWITCH_ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_LOST_MS_FIELD_NUMBER: _ClassVar[int]
    REATTACH_MS_FIELD_NUMBER: _ClassVar[int]
    SWITCH_NAME_FIELD_NUMBER: _ClassVar[int]
    RESULTS_GROUP_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_SECRET_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    SHARING_FIELD_NUMBER: _ClassVar[int]
    CHECK_WORD_FIELD_NUMBER: _ClassVar[int]
    job: int
    key: int
    worker: int
    workers: int
    lanes: int
    threads: int
    slots: int
    switch_endpoint: Endpoint
    token: str
    heartbeat_interval_ms: int
    heartbeat_lost_ms: int
    reattach_ms: int
    switch_name: str
    results_group: Endpoint
    rank: int
    members_secret: bytes
    roles: bytes
    sharing: Sharing
    check_word: bool
    def __init__(self, job: _Optional[int] = ..., key: _Optional[int] = ..., worker: _Optional[int] = ..., workers: _Optional[int] = ..., lanes: _Optional[int] = ..., threads: _Optional[int] = ..., slots: _Optional[int] = ..., switch_endpoint: _Optional[_Union[Endpoint, _Mapping]] = ..., token: _Optional[str] = ..., heartbeat_interval_ms: _Optional[int] = ..., heartbeat_lost_ms: _Optional[int] = ..., reattach_ms: _Optional[int] = ..., switch_name: _Optional[str] = ..., results_group: _Optional[_Union[Endpoint, _Mapping]] = ..., rank: _Optional[int] = ..., members_secret: _Optional[bytes] = ..., roles: _Optional[bytes] = ..., sharing: _Optional[_Union[Sharing, _Mapping]] = ..., check_word: _Optional[bool] = ...) -> None: ...

class Sharing(_message.Message):
    __slots__ = ("ranks", "number", "secret")
    RANKS_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    ranks: _containers.RepeatedScalarFieldContainer[int]
    number: int
    secret: bytes
    def __init__(self, ranks: _Optional[_Iterable[int]] = ..., number: _Optional[int] = ..., secret: _Optional[bytes] = ...) -> None: ...

class Peer(_message.Message):
    __slots__ = ("rank", "host_name", "process_id", "address", "called_from", "certificate", "global_rank")
    RANK_FIELD_NUMBER: _ClassVar[int]
    HOST_NAME_FIELD_NUMBER: _ClassVar[int]
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CALLED_FROM_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_RANK_FIELD_NUMBER: _ClassVar[int]
    rank: int
    host_name: str
    process_id: int
    address: str
    called_from: str
    certificate: str
    global_rank: int
    def __init__(self, rank: _Optional[int] = ..., host_name: _Optional[str] = ..., process_id: _Optional[int] = ..., address: _Optional[str] = ..., called_from: _Optional[str] = ..., certificate: _Optional[str] = ..., global_rank: _Optional[int] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("job", "worker", "token", "switch_name")
    JOB_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    SWITCH_NAME_FIELD_NUMBER: _ClassVar[int]
    job: int
    worker: int
    token: str
    switch_name: str
    def __init__(self, job: _Optional[int] = ..., worker: _Optional[int] = ..., token: _Optional[str] = ..., switch_name: _Optional[str] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("member", "round_newest", "halted", "tensor_newest", "sums_wrong")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    ROUND_NEWEST_FIELD_NUMBER: _ClassVar[int]
    HALTED_FIELD_NUMBER: _ClassVar[int]
    TENSOR_NEWEST_FIELD_NUMBER: _ClassVar[int]
    SUMS_WRONG_FIELD_NUMBER: _ClassVar[int]
    member: Member
    round_newest: int
    halted: Halted
    tensor_newest: int
    sums_wrong: int
    def __init__(self, member: _Optional[_Union[Member, _Mapping]] = ..., round_newest: _Optional[int] = ..., halted: _Optional[_Union[Halted, _Mapping]] = ..., tensor_newest: _Optional[int] = ..., sums_wrong: _Optional[int] = ...) -> None: ...

class Halted(_message.Message):
    __slots__ = ("move_number", "positions", "unasked")
    MOVE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    UNASKED_FIELD_NUMBER: _ClassVar[int]
    move_number: int
    positions: bytes
    unasked: bool
    def __init__(self, move_number: _Optional[int] = ..., positions: _Optional[bytes] = ..., unasked: _Optional[bool] = ...) -> None: ...

class JobEvent(_message.Message):
    __slots__ = ("pulse", "ended", "halt", "move")
    PULSE_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    HALT_FIELD_NUMBER: _ClassVar[int]
    MOVE_FIELD_NUMBER: _ClassVar[int]
    pulse: Pulse
    ended: JobEnded
    halt: Halt
    move: Move
    def __init__(self, pulse: _Optional[_Union[Pulse, _Mapping]] = ..., ended: _Optional[_Union[JobEnded, _Mapping]] = ..., halt: _Optional[_Union[Halt, _Mapping]] = ..., move: _Optional[_Union[Move, _Mapping]] = ...) -> None: ...

class Pulse(_message.Message):
    __slots__ = ("lost",)
    LOST_FIELD_NUMBER: _ClassVar[int]
    lost: str
    def __init__(self, lost: _Optional[str] = ...) -> None: ...

class Halt(_message.Message):
    __slots__ = ("move_number", "reason")
    MOVE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    move_number: int
    reason: str
    def __init__(self, move_number: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Move(_message.Message):
    __slots__ = ("move_number", "grant", "roles")
    MOVE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    move_number: int
    grant: JoinReply
    roles: bytes
    def __init__(self, move_number: _Optional[int] = ..., grant: _Optional[_Union[JoinReply, _Mapping]] = ..., roles: _Optional[bytes] = ...) -> None: ...

class JobEnded(_message.Message):
    __slots__ = ("cause", "worker", "reason")
    class Cause(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        CAUSE_UNSPECIFIED: _ClassVar[JobEnded.Cause]
        WORKER_LOST: _ClassVar[JobEnded.Cause]
        ABORTED_BY_WORKER: _ClassVar[JobEnded.Cause]
        ENDED_BY_OPERATOR: _ClassVar[JobEnded.Cause]
        SWITCH_LOST: _ClassVar[JobEnded.Cause]
        WORKER_LEFT: _ClassVar[JobEnded.Cause]
    CAUSE_UNSPECIFIED: JobEnded.Cause
    WORKER_LOST: JobEnded.Cause
    ABORTED_BY_WORKER: JobEnded.Cause
    ENDED_BY_OPERATOR: JobEnded.Cause
    SWITCH_LOST: JobEnded.Cause
    WORKER_LEFT: JobEnded.Cause
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    cause: JobEnded.Cause
    worker: Peer
    reason: str
    def __init__(self, cause: _Optional[_Union[JobEnded.Cause, str]] = ..., worker: _Optional[_Union[Peer, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("member",)
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    member: Member
    def __init__(self, member: _Optional[_Union[Member, _Mapping]] = ...) -> None: ...

class LeaveReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AbortRequest(_message.Message):
    __slots__ = ("member", "reason", "sums_wrong")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SUMS_WRONG_FIELD_NUMBER: _ClassVar[int]
    member: Member
    reason: str
    sums_wrong: int
    def __init__(self, member: _Optional[_Union[Member, _Mapping]] = ..., reason: _Optional[str] = ..., sums_wrong: _Optional[int] = ...) -> None: ...

class AbortReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Challenge(_message.Message):
    __slots__ = ("job_name", "nonce")
    JOB_NAME_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    job_name: str
    nonce: bytes
    def __init__(self, job_name: _Optional[str] = ..., nonce: _Optional[bytes] = ...) -> None: ...

class Proof(_message.Message):
    __slots__ = ("mac",)
    MAC_FIELD_NUMBER: _ClassVar[int]
    mac: bytes
    def __init__(self, mac: _Optional[bytes] = ...) -> None: ...

class Diagnosis(_message.Message):
    __slots__ = ("workers", "switches", "moving")
    class Worker(_message.Message):
        __slots__ = ("peer", "tensor_last", "contributions", "heartbeat_age_ms", "left", "uncounted", "switch_name", "sharing", "tensor_said")
        PEER_FIELD_NUMBER: _ClassVar[int]
        TENSOR_LAST_FIELD_NUMBER: _ClassVar[int]
        CONTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
        HEARTBEAT_AGE_MS_FIELD_NUMBER: _ClassVar[int]
        LEFT_FIELD_NUMBER: _ClassVar[int]
        UNCOUNTED_FIELD_NUMBER: _ClassVar[int]
        SWITCH_NAME_FIELD_NUMBER: _ClassVar[int]
        SHARING_FIELD_NUMBER: _ClassVar[int]
        TENSOR_SAID_FIELD_NUMBER: _ClassVar[int]
        peer: Peer
        tensor_last: int
        contributions: int
        heartbeat_age_ms: int
        left: bool
        uncounted: bool
        switch_name: str
        sharing: _containers.RepeatedScalarFieldContainer[int]
        tensor_said: int
        def __init__(self, peer: _Optional[_Union[Peer, _Mapping]] = ..., tensor_last: _Optional[int] = ..., contributions: _Optional[int] = ..., heartbeat_age_ms: _Optional[int] = ..., left: _Optional[bool] = ..., uncounted: _Optional[bool] = ..., switch_name: _Optional[str] = ..., sharing: _Optional[_Iterable[int]] = ..., tensor_said: _Optional[int] = ...) -> None: ...
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    SWITCHES_FIELD_NUMBER: _ClassVar[int]
    MOVING_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[Diagnosis.Worker]
    switches: _containers.RepeatedCompositeFieldContainer[NodeReport]
    moving: str
    def __init__(self, workers: _Optional[_Iterable[_Union[Diagnosis.Worker, _Mapping]]] = ..., switches: _Optional[_Iterable[_Union[NodeReport, _Mapping]]] = ..., moving: _Optional[str] = ...) -> None: ...

class NodeReport(_message.Message):
    __slots__ = ("switch_name", "parent", "workers", "slot_base", "phase", "packets", "results", "contributions", "uncounted")
    class PacketsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    SWITCH_NAME_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    SLOT_BASE_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    PACKETS_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
    UNCOUNTED_FIELD_NUMBER: _ClassVar[int]
    switch_name: str
    parent: str
    workers: int
    slot_base: int
    phase: str
    packets: _containers.ScalarMap[str, int]
    results: int
    contributions: int
    uncounted: bool
    def __init__(self, switch_name: _Optional[str] = ..., parent: _Optional[str] = ..., workers: _Optional[int] = ..., slot_base: _Optional[int] = ..., phase: _Optional[str] = ..., packets: _Optional[_Mapping[str, int]] = ..., results: _Optional[int] = ..., contributions: _Optional[int] = ..., uncounted: _Optional[bool] = ...) -> None: ...
