from __future__ import annotations

import json
import platform
from importlib import metadata

from click.testing import CliRunner

from wiresum.cli.version import version
from wiresum.join import PROTOCOL_VERSION


def test_the_installed_versions_are_shown() -> None:
    result = CliRunner().invoke(version, [])
    assert result.exit_code == 0
    lines = dict(line.split(maxsplit=1) for line in result.output.splitlines() if not line.startswith("join"))
    assert lines["python"] == platform.python_version()
    assert lines["grpcio"] == metadata.version("grpcio")
    assert f"join protocol {PROTOCOL_VERSION}" in result.output


def test_json_has_the_installed_versions() -> None:
    versions = json.loads(CliRunner().invoke(version, ["--json"]).output)
    assert versions["protobuf"] == metadata.version("protobuf")
    assert versions["join protocol"] == str(PROTOCOL_VERSION)
