"""The committed files in p4src/wiresum/compiled belong to the sources in p4src."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from wiresum.compiled import compile_program as p4_compile


def test_the_committed_files_are_of_the_current_sources() -> None:
    assert p4_compile.stale() is None, "run p4src/wiresum/compiled/compile_program.py"


def test_compiling_gives_the_committed_files_without_a_warning() -> None:
    if shutil.which(p4_compile.COMPILER) is None:
        pytest.skip(f"the program was not compiled, {p4_compile.COMPILER} is not on PATH: {p4_compile.INSTALL}")
    for name, text in p4_compile.compiled().items():
        assert (p4_compile.COMPILED / name).read_text() == text, f"{name} differs: run compile_program.py"


def test_a_changed_source_is_detected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sources = tmp_path / "p4src"
    shutil.copytree(p4_compile.FOLDER, sources)
    monkeypatch.setattr(p4_compile, "FOLDER", sources)
    assert p4_compile.stale() is None
    with (sources / "common" / "verdict.p4").open("a") as verdict:
        verdict.write("// a remark\n")
    assert p4_compile.stale() == "was compiled from other sources"


def test_changed_or_missing_compiled_files_are_detected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiled = tmp_path / "compiled"
    shutil.copytree(p4_compile.COMPILED, compiled)
    monkeypatch.setattr(p4_compile, "COMPILED", compiled)
    program = compiled / p4_compile.FILES[0]
    with program.open("a") as file:
        file.write("\n")
    assert p4_compile.stale() == f"{program.name} was changed by hand"
    program.unlink()
    assert p4_compile.stale() == f"{program.name} is missing"
    monkeypatch.setattr(p4_compile, "RECORD", compiled / "nothing")
    assert p4_compile.stale() == "was never compiled"


@pytest.mark.parametrize(
    ("command", "complaint"), [("echo warning: careful >&2", "warning: careful"), ("exit 3", "ended with 3")]
)
def test_a_warning_or_failure_of_the_compiler_is_an_error(command: str, complaint: str) -> None:
    with pytest.raises(p4_compile.CompileError, match=complaint):
        p4_compile.run_compiler(["sh", "-c", command])
