from __future__ import annotations

import re

import pytest
from finsy.proto import p4r
from google.protobuf import any_pb2, struct_pb2

from wiresum.controller.driver import Versions
from wiresum.controller.p4runtime import versions
from wiresum.controller.p4runtime.versions import CHARACTERS_MAX, ours, said, say, why_refused

MINE = Versions("0.9.0", "2", "b0b")


@pytest.fixture(autouse=True)
def mine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "ours", lambda: MINE)


def test_what_a_switch_says_is_heard() -> None:
    answer = p4r.CapabilitiesResponse(p4runtime_api_version="1.4.1")
    say(answer)
    assert said(p4r.CapabilitiesResponse.FromString(answer.SerializeToString())) == MINE


def told(**fields: object) -> any_pb2.Any:
    struct = struct_pb2.Struct()
    struct.update(fields)
    packed = any_pb2.Any()
    packed.Pack(struct)
    return packed


@pytest.mark.parametrize(
    ("hostile", "heard"),
    [
        (any_pb2.Any(), Versions()),
        (any_pb2.Any(type_url="type.googleapis.com/google.protobuf.Struct", value=b"\xff\xff"), Versions()),
        (any_pb2.Any(type_url="type.googleapis.com/p4.v1.WriteRequest", value=b"x"), Versions()),
        (told(software=3, program=["2"], digest=None), Versions()),
        (told(software="0.1.0\n[31mroot", other="x"), Versions()),
        (told(software="9" * 10_000, program="1"), Versions("9" * CHARACTERS_MAX, "1")),
    ],
)
def test_whatever_a_switch_says_is_bounded_text(hostile: any_pb2.Any, heard: Versions) -> None:
    assert said(p4r.CapabilitiesResponse(experimental=hostile)) == heard


@pytest.mark.parametrize(
    ("theirs", "todo"),
    [
        (Versions("0.0.8", "1", "a11"), "has wiresum 0.0.8, switch program 1, .*: upgrade the switch,"),
        (Versions("0.3.0", "10", "a11"), "program 10, .*: upgrade the controllers, and start"),
        (Versions("0.9.0", "2", "a11"), "install one build at both"),
        (Versions("x", "\u00b2", "a11"), "upgrade the switch,"),
        (MINE, ""),
        (Versions("0.9.1", "2", "b0b"), ""),
        (Versions(program="1"), ""),
    ],
)
def test_a_refusal_says_which_side_to_upgrade_if_the_programs_differ(theirs: Versions, todo: str) -> None:
    found = why_refused(theirs)
    assert re.search(todo, found) if todo else found == ""


def test_this_installation_has_all_versions() -> None:
    assert all(ours())
