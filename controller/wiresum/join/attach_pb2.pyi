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

class AttachRequest(_message.Message):
    __slots__ = ("protocol_version", "name", "endpoint", "p4runtime", "lanes", "slots", "hosts", "below", "multicast")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    P4RUNTIME_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    BELOW_FIELD_NUMBER: _ClassVar[int]
    MULTICAST_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    name: str
    endpoint: _join_pb2.Endpoint
    p4runtime: str
    lanes: int
    slots: int
    hosts: _containers.RepeatedScalarFieldContainer[str]
    below: str
    multicast: str
    def __init__(self, protocol_version: _Optional[int] = ..., name: _Optional[str] = ..., endpoint: _Optional[_Union[_join_pb2.Endpoint, _Mapping]] = ..., p4runtime: _Optional[str] = ..., lanes: _Optional[int] = ..., slots: _Optional[int] = ..., hosts: _Optional[_Iterable[str]] = ..., below: _Optional[str] = ..., multicast: _Optional[str] = ...) -> None: ...

class AttachReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
