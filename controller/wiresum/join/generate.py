"""Writes what protoc makes of join.proto: `python controller/wiresum/join/generate.py`, or `make proto`.

Needs grpcio-tools. A plain script, so that it also runs where the files that it writes are missing or broken.

protoc's output refuses to be imported by any protobuf or gRPC older than the tools that wrote it, and by any newer
than the next major release. These messages need nothing that new: the descriptor is plain proto3, and the builder
that turns it into classes has not changed since protobuf 4. So the two version checks are taken out, and
`pyproject.toml` alone says which releases are supported.

gRPC's plugin writes no types; `join_pb2_grpc.pyi` is made here, from the descriptor.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGE = "wiresum/join"
GENERATED = ("join_pb2.py", "join_pb2.pyi", "join_pb2_grpc.py", "join_pb2_grpc.pyi")

_PROTOBUF_CHECK = re.compile(
    r"^from google\.protobuf import runtime_version as _runtime_version\n"
    r"|^_runtime_version\.ValidateProtobufRuntimeVersion\(\n.*?^\)\n"
    r"|^# (NO CHECKED-IN PROTOBUF GENCODE|Protobuf Python Version: [^\n]*)\n",
    re.MULTILINE | re.DOTALL,
)
_GRPC_CHECK = re.compile(r"^GRPC_GENERATED_VERSION = .*?^    \)\n", re.MULTILINE | re.DOTALL)


def generate(destination: Path) -> None:
    """Writes the files of `GENERATED` into `destination`."""
    source_root = Path(__file__).resolve().parents[2]
    with tempfile.TemporaryDirectory() as scratch:
        outputs = [f"--{kind}_out={scratch}" for kind in ("python", "pyi", "grpc_python")]
        protoc = [sys.executable, "-m", "grpc_tools.protoc", f"-I{source_root}", *outputs, f"{PACKAGE}/join.proto"]
        subprocess.run(protoc, check=True)
        written = Path(scratch) / PACKAGE
        messages = (written / "join_pb2.py").read_text()
        service = (written / "join_pb2_grpc.py").read_text()
        types = (written / "join_pb2.pyi").read_text()
    (destination / "join_pb2.py").write_text(_without(_PROTOBUF_CHECK, messages, count=4))
    (destination / "join_pb2.pyi").write_text(_TOOLS_OFF + types)
    (destination / "join_pb2_grpc.py").write_text(_without(_GRPC_CHECK, service, count=1).replace(_UNUSED, ""))
    (destination / "join_pb2_grpc.pyi").write_text(_service_types(service))


_TOOLS_OFF = "# mypy: ignore-errors\n# ruff: noqa\n# fmt: off\n"
_UNUSED = "import warnings\n"
"""What only the check that was taken out needed."""


def _without(pattern: re.Pattern[str], text: str, *, count: int) -> str:
    stripped, found = pattern.subn("", text)
    if found != count or re.search("runtime_version|GRPC_VERSION", stripped):
        raise RuntimeError("protoc's output has a new form: look at its version checks and change this script")
    return stripped


def _service_types(service: str) -> str:
    methods = re.findall(
        r"self\.(\w+) = channel\.(\w+)\(\n.*?request_serializer=\w+\.(\w+)\..*?response_deserializer=\w+\.(\w+)\.",
        service,
        re.DOTALL,
    )
    lines = [
        f'{_TOOLS_OFF}"""Types of join_pb2_grpc. Generated from join.proto by wiresum.join.generate. DO NOT EDIT!"""',
        "from collections.abc import Iterator",
        "from typing import Any",
        "",
        "from wiresum.join import join_pb2",
        "",
        "class JoinServiceStub:",
        "    def __init__(self, channel: Any) -> None: ...",
    ]
    for name, kind, request, reply in methods:
        taken = f"Iterator[join_pb2.{request}]" if kind.startswith("stream") else f"join_pb2.{request}"
        # A streaming answer is also a grpc.Call, which has no types.
        given = "Any" if kind.endswith("stream") else f"join_pb2.{reply}"
        options = "timeout: float | None = ..., wait_for_ready: bool | None = ..."
        lines.append(f"    def {name}(self, request: {taken}, *, {options}) -> {given}: ...")
    lines += ["", "class JoinServiceServicer:"]
    for name, kind, request, _ in methods:
        taken = "Any" if kind.startswith("stream") else f"join_pb2.{request}"
        lines.append(f"    def {name}(self, request: {taken}, context: Any) -> Any: ...")
    lines += ["", "def add_JoinServiceServicer_to_server(servicer: JoinServiceServicer, server: Any) -> None: ..."]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the committed files are stale")
    here = Path(__file__).resolve().parent
    if not parser.parse_args().check:
        generate(here)
        return 0
    stale = stale_files(here)
    for name in stale:
        sys.stderr.write(f"{PACKAGE}/{name} is not what join.proto makes: run `make proto` and commit the result\n")
    return 1 if stale else 0


def stale_files(committed: Path) -> list[str]:
    """The generated files in `committed` that differ from what join.proto makes now."""
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        return [
            name
            for name in GENERATED
            if not (committed / name).exists() or (committed / name).read_text() != (Path(scratch) / name).read_text()
        ]


if __name__ == "__main__":
    sys.exit(main())
