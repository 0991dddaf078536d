from __future__ import annotations

import json
import platform
from importlib import metadata

from click.testing import CliRunner

from wiresum import compiled
from wiresum.cli.version import version
from wiresum.join import PROTOCOL_VERSION
from wiresum.join.constants import STATE_SCHEMA
from wiresum.join.release import software_version


def test_the_installed_versions_are_shown() -> None:
    result = CliRunner().invoke(version, [])
    assert result.exit_code == 0
    lines = dict(line.split(maxsplit=1) for line in result.output.splitlines() if not line.startswith("join"))
    assert lines["python"] == platform.python_version()
    assert lines["grpcio"] == metadata.version("grpcio")
    assert lines["wiresum"] == software_version()
    program = compiled.load("v1model")
    for row in (
        f"join protocol  {PROTOCOL_VERSION}",
        f"state schema   {STATE_SCHEMA}",
        f"switch program {program.version}",
        f"P4Info digest  {program.digest}",
    ):
        assert row in result.output.splitlines()


def test_json_has_the_installed_versions() -> None:
    versions = json.loads(CliRunner().invoke(version, ["--json"]).output)
    assert versions["protobuf"] == metadata.version("protobuf")
    assert versions["join protocol"] == str(PROTOCOL_VERSION)
