"""The Tofino program, compiled and assembled from p4src into build/, and kept there until the sources or the
compiler change. Compiling takes minutes."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

from wiresum.compiled.compile_program import TOFINO_COMPILER, compile_tofino
from wiresum_lab import REPOSITORY

ASSEMBLER = "bfas"
ASSEMBLE_TIMEOUT_S = 300
TARGETS = {1: "tofino", 2: "tofino2"}
"""By generation, in the compiler's terms."""
_BUILD = REPOSITORY / "build" / "tofino"
_SOURCES = REPOSITORY / "p4src"


class AssembleError(RuntimeError):
    """The assembler refused a program."""


def missing() -> str:
    """The tools that are not on PATH, or an empty text."""
    absent = [tool for tool in (TOFINO_COMPILER, ASSEMBLER) if shutil.which(tool) is None]
    return f"{' and '.join(absent)} not on PATH: part of p4c built with -DENABLE_TOFINO=ON" if absent else ""


def assembly(generation: int) -> Path:
    """The assembly of the current p4src."""
    target = TARGETS[generation]
    folder = _BUILD / f"{target}-{_state()[:16]}"
    if not (folder / "compiled").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        compile_tofino(target, folder)
        (folder / "compiled").touch()
    return folder / "pipe" / "main.bfa"


def assemble(source: Path, folder: Path) -> Path:
    """Assembles the chip's binary and context.json into `folder`. Raises `AssembleError` if the assembler refuses."""
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    command = [ASSEMBLER, "--no-condense", "-o", str(folder), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ASSEMBLE_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise AssembleError(f"{' '.join(command)} ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
    return folder


def program(generation: int) -> Path:
    """The current p4src, assembled."""
    source = assembly(generation)
    folder = source.parents[1] / "assembled"
    if not (folder / "context.json").exists():
        scratch = folder.with_name("assembling")
        shutil.rmtree(scratch, ignore_errors=True)
        assemble(source, scratch).rename(folder)
    return folder


def _state() -> str:
    """SHA-256 of the sources and of the tools' versions."""
    digest = hashlib.sha256()
    for path in sorted(path for folder in ("common", "tna") for path in (_SOURCES / folder).glob("*.p4")):
        digest.update(f"{path.relative_to(_SOURCES)} {path.stat().st_size}\n".encode() + path.read_bytes())
    for tool in (TOFINO_COMPILER, ASSEMBLER):
        where = shutil.which(tool)
        assert where is not None, "the caller has checked `missing`"
        digest.update(f"{tool} {Path(where).stat().st_size} {Path(where).stat().st_mtime_ns}\n".encode())
    return digest.hexdigest()
