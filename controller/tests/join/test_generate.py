from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import wiresum.join
from wiresum.join import generate

COMMITTED = Path(wiresum.join.__file__).parent

needs_tools = pytest.mark.skipif(
    importlib.util.find_spec("grpc_tools") is None, reason="grpcio-tools is not installed: it writes the files"
)


@needs_tools
def test_the_committed_files_are_up_to_date() -> None:
    assert generate.stale_files(COMMITTED) == [], "run controller/wiresum/join/generate.py"


@needs_tools
def test_an_outdated_file_is_detected(tmp_path: Path) -> None:
    for name in generate.GENERATED:
        (tmp_path / name).write_text((COMMITTED / name).read_text())
    (tmp_path / "join_pb2.py").write_text("something else")
    (tmp_path / "join_pb2.pyi").unlink()
    assert generate.stale_files(tmp_path) == ["join_pb2.py", "join_pb2.pyi"]


def test_the_generated_files_do_not_require_the_versions_of_their_generator() -> None:
    for name in generate.GENERATED:
        if name.endswith(".pyi"):
            continue
        text = (COMMITTED / name).read_text()
        assert "runtime_version" not in text
        assert "GRPC_GENERATED_VERSION" not in text
