"""The pipeline that a P4Runtime server is given: P4Info, and the device configuration (`p4_device_config`), whose form
depends on the kind of switch:

- bmv2: the JSON that p4c wrote.
- The software switch: JSON, `{"lanes": 360, "slots": 4096}`, as the process was started with.
- Tofino: the compiler's `.conf` file names what the chip loads (`tofino.bin`), what the driver needs to write tables
  (`context.json`), and `bfrt.json`. Stratum takes them as a message, `BfPipelineConfig`
  (stratum/hal/lib/barefoot/bf.proto). `pi`, the driver's own server (`bf_switchd --p4rt-server`, open-p4studio's
  bf-drivers/src/pi/pi_imp.c), takes five parts, each behind its length in 4 bytes, little-endian: the program's name,
  `tofino.bin`, `context.json`, the pipeline's name, `bfrt.json`.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from finsy.proto import p4i
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

from wiresum import compiled
from wiresum.controller.p4runtime import sizes
from wiresum.controller.p4runtime.sizes import PipelineError, Sizes
from wiresum.controller.switches import DEVICE_CONFIGS

PI_NAME_BYTES_MAX = 100
"""The longest name of a program or pipeline that a server based on PI accepts."""


@dataclass(frozen=True)
class Pipeline:
    """A program for one switch, and its sizes."""

    p4info: p4i.P4Info
    device_config: bytes
    lanes: int
    slots: int
    job_rows: int
    keys: bytes = b""
    """Identity of the sequence of keys (jobs/keys.py) that the switch's cells may hold."""

    @property
    def cookie(self) -> int:
        """64 bits that tell this pipeline, with cells of these keys, from every other. The switch keeps the cookie with
        the program, so a running program is not loaded again, unless its cells may hold keys of another sequence:
        loading makes new cells."""
        digest = hashlib.sha256(self.p4info.SerializeToString(deterministic=True))
        digest.update(self.device_config)
        digest.update(self.keys)
        return int.from_bytes(digest.digest()[:8], "big")


def bmv2() -> Pipeline:
    """The pipeline of bmv2. Raises `PipelineError`."""
    info = sizes.ours()
    return Pipeline(info, compiled.load("v1model").device_config, *sizes.sizes_of(info, "the program for bmv2"))


def software(*, lanes: int = 0, slots: int = 0) -> Pipeline:
    """The pipeline of a software switch. 0 lanes or slots: as many as the program for bmv2 has. Raises
    `PipelineError`."""
    info = sizes.ours()
    compiled_for = sizes.sizes_of(info, "the program of software switches")
    chosen = Sizes(lanes or compiled_for.lanes, slots or compiled_for.slots, compiled_for.job_rows)
    sizes.check_slots(chosen.slots)
    config = json.dumps({"lanes": chosen.lanes, "slots": chosen.slots}, sort_keys=True).encode()
    return Pipeline(info, config, *chosen)


def tofino(folder: Path, p4info: Path, *, form: str) -> Pipeline:
    """The pipeline of a Tofino. `folder` and `p4info`: what the compiler wrote (docs/tofino.md). `form`: one of
    `DEVICE_CONFIGS`. Raises `PipelineError`."""
    assert form in DEVICE_CONFIGS
    conf = _conf(folder)
    described = _describe(conf)
    info = _parse_file(p4info)
    _check_of_one_build(conf, described.bfrt, p4info, info)
    pack = _pack_for_stratum if form == "stratum" else _pack_for_pi
    return Pipeline(info, pack(conf, described), *sizes.sizes_of(info, str(p4info)))


def _parse_file(path: Path) -> p4i.P4Info:
    try:
        return sizes.parse(_read(path).decode())
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise PipelineError(f"{path}: this is not P4Info in protobuf's text form: {error}") from error


# Tofino.


def _check_of_one_build(conf: Path, bfrt: bytes, path: Path, info: p4i.P4Info) -> None:
    """Raises `PipelineError` unless the chip has the sizes that P4Info says. The two files are named apart, and one may
    be older."""
    described = {**_sizes_in(info.counters), **_sizes_in(info.registers)}
    try:
        tables = json.loads(bfrt).get("tables", [])
        built = {str(table["name"]).removeprefix("pipe."): int(table.get("size", 0)) for table in tables}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise PipelineError(f"{conf}: its bfrt.json is not what the compiler writes ({error!r})") from error
    for name, size in described.items():
        if built.get(name, size) != size:
            raise PipelineError(
                f"{path}: '{name}' has a size of {size} there, and of {built[name]} in the bfrt.json of {conf.parent}: "
                f"give `program` and `p4info` of one compilation"
            )


def _sizes_in(objects: Iterable[p4i.Counter | p4i.Register]) -> dict[str, int]:
    return {each.preamble.name: each.size for each in objects}


@dataclass(frozen=True)
class _Profile:
    """What one set of pipes runs."""

    name: str
    context: bytes
    binary: bytes
    pipes: tuple[int, ...]


@dataclass(frozen=True)
class _Described:
    """The files that the compiler's `.conf` file describes."""

    name: str
    bfrt: bytes
    profiles: tuple[_Profile, ...]


def _conf(folder: Path) -> Path:
    found = sorted(folder.glob("*.conf"))
    if len(found) != 1:
        raise PipelineError(f"{folder}: the compiler writes one .conf file into its folder, and here are {len(found)}")
    return found[0]


def _describe(conf: Path) -> _Described:
    try:
        (device,) = json.loads(_read(conf))["p4_devices"]
        (program,) = device["p4_programs"]
        name, bfrt = str(program["program-name"]), _read(_find(conf, program["bfrt-config"]))
        profiles = tuple(_profile(conf, pipeline) for pipeline in program["p4_pipelines"])
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, PipelineError):
            raise
        raise PipelineError(
            f"{conf}: this is not what the compiler writes for one program on one device ({error!r})"
        ) from error
    return _Described(name, bfrt, profiles)


def _profile(conf: Path, pipeline: Mapping[str, Any]) -> _Profile:
    name = str(pipeline["p4_pipeline_name"])
    context, binary = (_read(_find(conf, pipeline[key], name)) for key in ("context", "config"))
    return _Profile(name, context, binary, tuple(int(pipe) for pipe in pipeline["pipe_scope"]))


def _find(conf: Path, named: str, folder: str = "") -> Path:
    """The path of a file that the `.conf` file names. The compiler names files relative to where it was started: this
    place is tried first, and then the folder of the `.conf` file."""
    places = [conf.parent / named, conf.parent / folder / Path(named).name]
    return next((place for place in places if place.exists()), places[0])


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise PipelineError(f"{path}: cannot read it: {error.strerror}") from error


def _pack_for_pi(conf: Path, described: _Described) -> bytes:
    if len(described.profiles) != 1:
        raise PipelineError(f"{conf}: form 'pi' holds one pipeline, and this program has {len(described.profiles)}")
    (profile,) = described.profiles
    name, pipeline = described.name.encode(), profile.name.encode()
    for text in (name, pipeline):
        # Without the pipeline's name the server would not look for bfrt.json.
        if not 0 < len(text) <= PI_NAME_BYTES_MAX:
            raise PipelineError(
                f"{conf}: names of program and pipeline must have 1 to {PI_NAME_BYTES_MAX} bytes in form 'pi', "
                f"and one has {len(text)}"
            )
    parts = (name, profile.binary, profile.context, pipeline, described.bfrt)
    return b"".join(struct.pack("<I", len(part)) + part for part in parts)


def _pack_for_stratum(_conf: Path, described: _Described) -> bytes:
    message = _bf_pipeline_config()()
    message.p4_name, message.bfruntime_info = described.name, described.bfrt
    for profile in described.profiles:
        message.profiles.add(
            profile_name=profile.name, context=profile.context, binary=profile.binary, pipe_scope=profile.pipes
        )
    return cast(bytes, message.SerializeToString(deterministic=True))


def _bf_pipeline_config() -> Any:
    """The class of messages `stratum.hal.barefoot.BfPipelineConfig`, by its fields' published numbers."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="stratum/hal/lib/barefoot/bf.proto", package="stratum.hal.barefoot", syntax="proto3"
    )
    config = file.message_type.add(name="BfPipelineConfig")
    profile = config.nested_type.add(name="Profile")
    one, many = field.LABEL_OPTIONAL, field.LABEL_REPEATED
    profile.field.add(name="profile_name", number=1, type=field.TYPE_STRING, label=one)
    profile.field.add(name="context", number=2, type=field.TYPE_BYTES, label=one)
    profile.field.add(name="binary", number=3, type=field.TYPE_BYTES, label=one)
    profile.field.add(name="pipe_scope", number=4, type=field.TYPE_UINT32, label=many)
    config.field.add(name="p4_name", number=1, type=field.TYPE_STRING, label=one)
    config.field.add(name="bfruntime_info", number=2, type=field.TYPE_BYTES, label=one)
    nested = f".{file.package}.{config.name}.{profile.name}"
    config.field.add(name="profiles", number=3, type=field.TYPE_MESSAGE, type_name=nested, label=many)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{config.name}"))
