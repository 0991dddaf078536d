"""What is committed in p4src/wiresum/compiled is what p4src says."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from wiresum.compiled import compile_program as p4_compile
from wiresum.compiled.compile_program import TARGETS, Target

TARGET_NAMES = [target.name for target in TARGETS]


@pytest.fixture(params=TARGETS, ids=TARGET_NAMES)
def target(request: pytest.FixtureRequest) -> Target:
    chosen: Target = request.param
    return chosen


def test_what_is_committed_was_compiled_from_the_sources(target: Target) -> None:
    assert p4_compile.stale(target) is None, "run: make p4"


def test_the_compiler_makes_of_the_sources_what_is_committed_without_a_warning(target: Target) -> None:
    if shutil.which(target.compiler) is None:
        pytest.skip(f"{target.name} was not compiled, {target.compiler} is not on PATH: {p4_compile.INSTALL}")
    for name, text in p4_compile.compiled(target).items():
        assert (p4_compile.COMPILED / name).read_text() == text, f"{name} differs: run make p4"


def test_a_changed_source_is_stale(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: Target) -> None:
    sources = tmp_path / "p4src"
    shutil.copytree(p4_compile.FOLDER, sources)
    monkeypatch.setattr(p4_compile, "FOLDER", sources)
    assert p4_compile.stale(target) is None
    with (sources / "common" / "verdict.p4").open("a") as verdict:
        verdict.write("// a remark\n")
    assert p4_compile.stale(target) == "was compiled from other sources"


def test_a_file_changed_by_hand_is_stale(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: Target) -> None:
    compiled = tmp_path / "compiled"
    shutil.copytree(p4_compile.COMPILED, compiled)
    monkeypatch.setattr(p4_compile, "COMPILED", compiled)
    with (compiled / target.files[0]).open("a") as file:
        file.write("\n")
    assert p4_compile.stale(target) == f"{target.files[0]} was changed by hand"


def test_a_target_that_was_never_compiled_is_stale(target: Target) -> None:
    assert p4_compile.stale(dataclasses.replace(target, name="abacus")) == "was never compiled"


def test_a_compiler_that_warns_has_failed() -> None:
    with pytest.raises(p4_compile.CompileError, match="warning: careful"):
        p4_compile.run_compiler(["sh", "-c", "echo warning: careful >&2"])
