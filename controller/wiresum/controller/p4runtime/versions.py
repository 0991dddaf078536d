"""What a software switch says of its release, and what follows if it refuses this controller's program.

A software switch has one program, that of its release. Its answer to Capabilities says which: in the field
`experimental`, which a server may use as it likes, as a `google.protobuf.Struct`.
"""

from __future__ import annotations

from finsy.proto import p4r
from google.protobuf import struct_pb2
from google.protobuf.message import DecodeError

from wiresum import compiled
from wiresum.controller.driver import Versions
from wiresum.join.release import software_version

CHARACTERS_MAX = 64
"""The most characters of a version that a switch says."""


def ours() -> Versions:
    program = compiled.load("v1model")
    return Versions(software_version(), program.version, program.digest)


def say(answer: p4r.CapabilitiesResponse) -> None:
    """Adds this installation's versions."""
    told = struct_pb2.Struct()
    told.update(ours()._asdict())
    answer.experimental.Pack(told)


def said(answer: p4r.CapabilitiesResponse) -> Versions:
    """The versions in an answer. A switch may be anybody's, and say anything there."""
    told = struct_pb2.Struct()
    try:
        answer.experimental.Unpack(told)
    except DecodeError:
        return Versions()
    return Versions(*(_text(told, field) for field in Versions._fields))


def _text(told: struct_pb2.Struct, field: str) -> str:
    value = told.fields[field].string_value if field in told.fields else ""
    return value[:CHARACTERS_MAX] if value.isprintable() else ""


def why_refused(theirs: Versions) -> str:
    """Says that a switch which has refused our program has another one, and which side to upgrade; empty: this is not
    why it refused."""
    mine = ours()
    if theirs.digest in ("", mine.digest):
        return ""
    newer = _number(theirs.program) > _number(mine.program)
    todo = "upgrade the controllers, and start them again" if newer else "upgrade the switch, and start it again"
    if theirs.program == mine.program:
        todo = "install one build at both, and start what was older again"
    return (
        f"has {theirs}, and this controller {mine}: {todo} (docs/availability.md, Upgrade). Until then jobs that run "
        f"there run on, and none begins there"
    )


def _number(version: str) -> int:
    return int(version) if version.isascii() and version.isdigit() else -1
