from __future__ import annotations

import dataclasses
import json
import struct
from pathlib import Path

import pytest

from wiresum import compiled
from wiresum.controller.p4runtime import PipelineError, device_config
from wiresum.controller.p4runtime.testing import write_tofino_program

BINARY, CONTEXT, BFRT = b"\x00chip", b'{"context": 1}', b'{"bfrt": 1}'


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """What the compiler writes, with paths as seen from where it was started."""
    write_tofino_program(tmp_path)
    return tmp_path


def test_bmv2_gets_what_p4c_made(program: compiled.Program) -> None:
    pipeline = device_config.bmv2()
    assert pipeline.device_config == program.device_config
    assert (pipeline.lanes, pipeline.slots, pipeline.job_rows) == (64, 4096, 256)


def test_the_software_switch_gets_its_sizes_as_json() -> None:
    pipeline = device_config.software(lanes=360, slots=1024)
    assert json.loads(pipeline.device_config) == {"lanes": 360, "slots": 1024}
    assert (pipeline.lanes, pipeline.slots) == (360, 1024)
    assert pipeline.p4info == device_config.bmv2().p4info
    assert device_config.software().lanes == device_config.bmv2().lanes


def test_cookies_tell_pipelines_apart() -> None:
    pipelines = [device_config.bmv2(), device_config.software(), device_config.software(lanes=360, slots=4096)]
    assert len({pipeline.cookie for pipeline in pipelines}) == 3
    assert device_config.bmv2().cookie == pipelines[0].cookie
    changed = dataclasses.replace(pipelines[0], device_config=pipelines[0].device_config + b" ")
    assert changed.cookie != pipelines[0].cookie
    keys = [dataclasses.replace(pipelines[0], keys=bytes([number])).cookie for number in range(10)]
    assert len({*keys, pipelines[0].cookie}) == 11


def test_stratum_gets_its_message(built: Path) -> None:
    """Written out by the rules of protobuf's wire format, from the field numbers of bf.proto."""

    def field(number: int, value: bytes) -> bytes:
        return bytes([number << 3 | 2, len(value)]) + value

    profile = field(1, b"pipe") + field(2, CONTEXT) + field(3, BINARY) + field(4, bytes([0, 1, 2, 3]))
    expected = field(1, b"main") + field(2, BFRT) + field(3, profile)
    assert device_config.tofino(built, built / "info.txtpb").device_config == expected


def test_servers_made_of_pi_get_three_parts_with_their_lengths(built: Path) -> None:
    packed = device_config.tofino(built, built / "info.txtpb", form="pi").device_config
    parts = []
    while packed:
        (length,) = struct.unpack_from("<I", packed)
        parts.append(packed[4 : 4 + length])
        packed = packed[4 + length :]
    assert parts == [b"main", BINARY, CONTEXT]


def test_the_files_may_lie_where_the_compilers_file_says(built: Path) -> None:
    (built / "build/tofino").mkdir(parents=True)
    for name in ("bfrt.json", "pipe"):
        (built / name).rename(built / "build/tofino" / name)
    assert BINARY in device_config.tofino(built, built / "info.txtpb").device_config


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda at: (at / "pipe/tofino.bin").unlink(), r"tofino\.bin: cannot read it: No such file"),
        (lambda at: (at / "main.conf").unlink(), r"writes one \.conf file into its folder, and here are 0"),
        (lambda at: (at / "main.conf").write_text("[]"), r"main\.conf: this is not what the compiler writes"),
        (lambda at: (at / "main.conf").write_text('{"p4_devices": [{}, {}]}'), "this is not what the compiler writes"),
        (lambda at: (at / "info.txtpb").write_text("tables {"), "this is not P4Info in protobuf's text form"),
        (
            lambda at: (at / "info.txtpb").write_text(""),
            "counter 'packets' has 0 rows, not 256: this is not our program",
        ),
    ],
)
def test_what_is_wrong_with_compiled_files_is_said(built: Path, spoil: object, message: str) -> None:
    spoil(built)  # type: ignore[operator]
    with pytest.raises(PipelineError, match=message):
        device_config.tofino(built, built / "info.txtpb")


def test_a_form_that_there_is_not_is_refused(built: Path) -> None:
    with pytest.raises(PipelineError, match="there is no form 'tar'"):
        device_config.tofino(built, built / "info.txtpb", form="tar")
