from __future__ import annotations

import dataclasses
import json
import struct
from pathlib import Path

import pytest

from wiresum import compiled
from wiresum.controller.p4runtime import PipelineError, device_config, targets_of
from wiresum.controller.switches import DEVICE_CONFIGS, SwitchConfig
from wiresum_lab.doubles.p4runtime_proxy import write_tofino_program

BINARY, CONTEXT, BFRT = b"\x00chip", b'{"context": 1}', b'{"bfrt": 1}'


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """The compiler's output, with paths relative to the folder where it ran."""
    write_tofino_program(tmp_path)
    return tmp_path


def test_bmv2_gets_the_json_of_p4c(program: compiled.Program) -> None:
    pipeline = device_config.bmv2()
    assert pipeline.device_config == program.device_config
    assert (pipeline.lanes, pipeline.slots, pipeline.job_rows) == (64, 4096, 256)


def test_the_software_switch_gets_its_sizes_as_json() -> None:
    pipeline = device_config.software(lanes=360, slots=1024)
    assert json.loads(pipeline.device_config) == {"lanes": 360, "slots": 1024}
    assert (pipeline.lanes, pipeline.slots) == (360, 1024)
    assert pipeline.p4info == device_config.bmv2().p4info
    assert device_config.software().lanes == device_config.bmv2().lanes


def test_cookies_differ_between_pipelines() -> None:
    pipelines = [device_config.bmv2(), device_config.software(), device_config.software(lanes=360, slots=4096)]
    assert len({pipeline.cookie for pipeline in pipelines}) == 3
    assert device_config.bmv2().cookie == pipelines[0].cookie
    changed = dataclasses.replace(pipelines[0], device_config=pipelines[0].device_config + b" ")
    assert changed.cookie != pipelines[0].cookie
    keys = [dataclasses.replace(pipelines[0], keys=bytes([number])).cookie for number in range(10)]
    assert len({*keys, pipelines[0].cookie}) == 11


def test_stratum_gets_its_protobuf_message(built: Path) -> None:
    """The bytes are written by the rules of protobuf, with the field numbers of bf.proto."""

    def field(number: int, value: bytes) -> bytes:
        return bytes([number << 3 | 2, len(value)]) + value

    profile = field(1, b"pipe") + field(2, CONTEXT) + field(3, BINARY) + field(4, bytes([0, 1, 2, 3]))
    expected = field(1, b"main") + field(2, BFRT) + field(3, profile)
    assert device_config.tofino(built, built / "info.txtpb", form="stratum").device_config == expected


def read_as_pi_does(packed: bytes) -> dict[str, bytes]:
    """Reads step by step like `_pi_update_device_start` in bf-drivers/src/pi/pi_imp.c of open-p4studio."""
    at = 0

    def part(*, bytes_max: int | None = None) -> bytes:
        nonlocal at
        (length,) = struct.unpack_from("<I", packed, at)
        assert bytes_max is None or length <= bytes_max
        at += 4 + length
        assert at <= len(packed), "the server has no length of the whole: it would read past the end"
        return packed[at - length : at]

    read = {"prog_name": part(bytes_max=100), "cfg": part(), "ctx": part(), "p4_pipeline_name": part(bytes_max=100)}
    if read["p4_pipeline_name"]:
        read["bf-rt"] = part()
    assert at == len(packed)
    return read


def test_servers_built_on_pi_get_five_parts_with_their_lengths(built: Path) -> None:
    packed = device_config.tofino(built, built / "info.txtpb", form="pi").device_config
    expected = {"prog_name": b"main", "cfg": BINARY, "ctx": CONTEXT, "p4_pipeline_name": b"pipe", "bf-rt": BFRT}
    assert read_as_pi_does(packed) == expected


@pytest.mark.parametrize("form", DEVICE_CONFIGS)
def test_the_configuration_selects_the_form_of_the_device_config(built: Path, form: str) -> None:
    switch = SwitchConfig(
        "t", "tofino", "10.0.0.2:9559", 0, "10.0.0.1", 43488, program=built, p4info=built / "info.txtpb"
    )
    chosen = dataclasses.replace(switch, device_config=form)
    expected = device_config.tofino(built, built / "info.txtpb", form=form)
    (target,), (usual,) = targets_of([chosen]), targets_of([switch])
    assert target.pipeline.device_config == expected.device_config
    assert (target == usual) == (form == "stratum"), "unless it is given"


@pytest.mark.parametrize("name", ["", "m" * 101])
@pytest.mark.parametrize("key", ["program-name", "p4_pipeline_name"])
def test_a_program_name_that_servers_built_on_pi_refuse_is_an_error(built: Path, key: str, name: str) -> None:
    document = json.loads((built / "main.conf").read_text())
    (program,) = document["p4_devices"][0]["p4_programs"]
    (pipeline,) = program["p4_pipelines"]
    pipeline |= {"context": str(built / "pipe/context.json"), "config": str(built / "pipe/tofino.bin")}
    (pipeline if key in pipeline else program)[key] = name
    (built / "main.conf").write_text(json.dumps(document))
    with pytest.raises(PipelineError, match=f"must have 1 to 100 bytes in form 'pi', and one has {len(name)}"):
        device_config.tofino(built, built / "info.txtpb", form="pi")
    assert device_config.tofino(built, built / "info.txtpb", form="stratum").device_config


def test_files_are_also_found_at_the_paths_in_main_conf(built: Path) -> None:
    (built / "build/tofino").mkdir(parents=True)
    for name in ("bfrt.json", "pipe"):
        (built / name).rename(built / "build/tofino" / name)
    assert BINARY in device_config.tofino(built, built / "info.txtpb", form="stratum").device_config


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda at: (at / "pipe/tofino.bin").unlink(), r"tofino\.bin: cannot read it: No such file"),
        (lambda at: (at / "main.conf").unlink(), r"writes one \.conf file into its folder, and here are 0"),
        (lambda at: (at / "main.conf").write_text("[]"), r"main\.conf: this is not what the compiler writes"),
        (lambda at: (at / "main.conf").write_text('{"p4_devices": [{}, {}]}'), "this is not what the compiler writes"),
        (lambda at: (at / "info.txtpb").write_text("tables {"), "this is not P4Info in protobuf's text form"),
        (lambda at: (at / "info.txtpb").write_text(""), r"info\.txtpb: it has no .*: this is not our program"),
        (lambda at: (at / "bfrt.json").write_text("[]"), r"bfrt\.json is not what the compiler writes"),
    ],
)
def test_faulty_compiler_output_is_reported(built: Path, spoil: object, message: str) -> None:
    spoil(built)  # type: ignore[operator]
    with pytest.raises(PipelineError, match=message):
        device_config.tofino(built, built / "info.txtpb", form="stratum")


@pytest.mark.parametrize("name", ["packets", "owners"])
def test_a_p4info_of_another_compilation_than_the_chips_is_refused(built: Path, name: str) -> None:
    sizes = {"packets": 2048, "owners": 8192, "another": 7}
    described = {"tables": [{"name": f"pipe.{each}", "size": size} for each, size in sizes.items()]}
    (built / "bfrt.json").write_text(json.dumps(described))
    assert device_config.tofino(built, built / "info.txtpb", form="pi").slots == 4096
    described["tables"][list(sizes).index(name)]["size"] = 1024
    (built / "bfrt.json").write_text(json.dumps(described))
    message = rf"info\.txtpb: '{name}' has a size of {sizes[name]} there, and of 1024 in the bfrt\.json of {built}"
    with pytest.raises(PipelineError, match=message):
        device_config.tofino(built, built / "info.txtpb", form="pi")
