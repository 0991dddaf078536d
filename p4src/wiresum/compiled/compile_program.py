"""Compiles the switch program into p4src/wiresum/compiled, with p4c, so that controller and tests need no compiler.

    python p4src/wiresum/compiled/compile_program.py           compile for every target whose compiler is here
    python p4src/wiresum/compiled/compile_program.py --check   say what is stale; needs no compiler

The record, program.json, has the hash of the sources that each file was made from. A file whose hash is not
that of the sources is stale, and a test is red until this has run again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMPILED = Path(__file__).resolve().parent
FOLDER = COMPILED.parents[1]
RECORD = COMPILED / "program.json"
COMPILE_TIMEOUT_S = 1800
INSTALL = "install p4c: p4lang's own packages, or its container image p4lang/p4c"


class CompileError(RuntimeError):
    """The compiler is missing, failed, or warned."""


@dataclass(frozen=True)
class Target:
    """One switch that the program is compiled for."""

    name: str
    compiler: str
    sources: tuple[str, ...]
    """Folders."""
    files: tuple[str, ...]
    """What comes of it, in COMPILED."""
    compile: Callable[[Path], dict[str, str]]
    """Into a scratch folder; gives the text of each of `files`."""


def source_hash(target: Target) -> str:
    """SHA-256 over names and contents of all its sources, in order of name."""
    digest = hashlib.sha256()
    for path in sorted(path for folder in target.sources for path in (FOLDER / folder).glob("*.p4")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(FOLDER).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def run_compiler(command: list[str]) -> None:
    """Raises `CompileError` if it fails, or says anything: warnings are errors."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False)
    output = (done.stdout + done.stderr).strip()
    if done.returncode != 0 or "warning" in output:
        raise CompileError(f"{' '.join(command)} ended with {done.returncode} and said:\n{output}")


def compile_v1model(scratch: Path, sources: Path = FOLDER) -> dict[str, str]:
    program, p4info = scratch / "v1model.json", scratch / "v1model.p4info.txtpb"
    main = sources / "v1model" / "main.p4"
    run_compiler(["p4c-bm2-ss", "--std", "p4-16", "--p4runtime-files", str(p4info), "-o", str(program), str(main)])
    return {program.name: normalised(json.loads(program.read_text())), p4info.name: p4info.read_text()}


def normalised(program: Any) -> str:
    """Without what differs from one compiler or folder to the next: its version, and paths."""
    program.pop("__meta__", None)
    program["program"] = "wiresum"
    return json.dumps(without_source_info(program), indent=1, sort_keys=True) + "\n"


def without_source_info(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: without_source_info(value) for key, value in node.items() if key != "source_info"}
    if isinstance(node, list):
        return [without_source_info(value) for value in node]
    return node


TOFINO_COMPILER = "p4c-barefoot"
TOFINO_ARCHITECTURES = {"tofino": "tna", "tofino2": "t2na"}


def compile_tofino(target: str, folder: Path, sources: Path = FOLDER) -> tuple[Path, Path]:
    """For "tofino" or "tofino2": into `folder` goes all that the compiler writes, among it the assembly,
    `pipe/main.bfa`. Gives the paths of the P4Info and of what the driver has in its place. Takes minutes."""
    p4info, bfrt = folder / "p4info.txtpb", folder / "bfrt.json"
    generation = f"-D__TARGET_TOFINO__={2 if target == 'tofino2' else 1}"
    # Its front end does not know P4Runtime's @id, which its P4Info heeds all the same.
    options = ["--std", "p4-16", "--target", target, "--arch", TOFINO_ARCHITECTURES[target], "--Wdisable=unknown", "-g"]
    to = ["--p4runtime-force-std-externs", "--p4runtime-files", str(p4info), "--bf-rt-schema", str(bfrt)]
    main = sources / "tna" / "main.p4"
    run_compiler([TOFINO_COMPILER, *options, generation, *to, "-o", str(folder), str(main)])
    return p4info, bfrt


TARGETS = (
    Target("v1model", "p4c-bm2-ss", ("common", "v1model"), ("v1model.json", "v1model.p4info.txtpb"), compile_v1model),
)


def sizes() -> dict[str, int]:
    """The sizes that hosts and controller must know, from sizes.p4."""
    text = (FOLDER / "common" / "sizes.p4").read_text()
    found = dict(re.findall(r"^#define (\w+) (\d+)$", text, re.MULTILINE))
    return {key.lower(): int(found[key]) for key in ("LANES", "SLOTS", "JOB_ROWS")}


def compiled(target: Target) -> dict[str, str]:
    """What the compiler makes of the sources now: text by file name."""
    if shutil.which(target.compiler) is None:
        raise CompileError(f"{target.compiler} is not on PATH: {INSTALL}")
    with tempfile.TemporaryDirectory(prefix="wiresum-p4-") as scratch:
        files = target.compile(Path(scratch))
    assert set(files) == set(target.files)
    return files


def read_record() -> dict[str, Any]:
    record: dict[str, Any] = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    return record


def stale(target: Target) -> str | None:
    """Why its committed files are not those of the sources; None if they are."""
    recorded = read_record().get("targets", {}).get(target.name)
    if recorded is None:
        return "was never compiled"
    if recorded["sources"] != source_hash(target):
        return "was compiled from other sources"
    for name in target.files:
        path = COMPILED / name
        if not path.exists():
            return f"{name} is missing"
        if recorded["files"].get(name) != hashlib.sha256(path.read_bytes()).hexdigest():
            return f"{name} was changed by hand"
    return None if read_record().get("sizes") == sizes() else "has other sizes than sizes.p4"


def write(target: Target, files: dict[str, str]) -> None:
    record = read_record()
    record["sizes"] = sizes()
    for name, text in files.items():
        (COMPILED / name).write_text(text)
    record.setdefault("targets", {})[target.name] = {
        "sources": source_hash(target),
        "files": {name: hashlib.sha256(text.encode()).hexdigest() for name, text in sorted(files.items())},
    }
    RECORD.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--check", action="store_true", help="only say what is stale")
    arguments = parser.parse_args()
    failed = False
    for target in TARGETS:
        try:
            if not arguments.check:
                write(target, compiled(target))
            complaint = stale(target)
        except CompileError as error:
            complaint = str(error)
        failed |= complaint is not None
        print(f"{target.name}: {complaint or 'up to date'}")
    if failed and arguments.check:
        print("run: python p4src/wiresum/compiled/compile_program.py")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
