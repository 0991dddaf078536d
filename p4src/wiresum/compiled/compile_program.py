"""Compiles the switch program into p4src/wiresum/compiled, with p4c, so that controller and tests need no compiler.

    python p4src/wiresum/compiled/compile_program.py           compile for bmv2
    python p4src/wiresum/compiled/compile_program.py --check   say what is stale; needs no compiler

The record, program.json, has hashes of the sources and of the files made from them. If a hash differs, the program is
stale, and a test fails until this has run again.
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
from pathlib import Path
from typing import Any

COMPILED = Path(__file__).resolve().parent
FOLDER = COMPILED.parents[1]
SOURCES = ("common", "v1model")
FILES = ("v1model.json", "v1model.p4info.txtpb")
RECORD = COMPILED / "program.json"
COMPILER = "p4c-bm2-ss"
COMPILE_TIMEOUT_S = 1800
INSTALL = "install p4c: p4lang's own packages, or its container image p4lang/p4c"


class CompileError(RuntimeError):
    """Raised if the compiler is missing, failed, or warned."""


def source_hash() -> str:
    """SHA-256 over names and contents of all sources, in order of name."""
    digest = hashlib.sha256()
    for path in sorted(path for folder in SOURCES for path in (FOLDER / folder).glob("*.p4")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(FOLDER).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def run_compiler(command: list[str]) -> None:
    """Runs a compiler. Raises `CompileError` if it fails or warns."""
    if shutil.which(command[0]) is None:
        raise CompileError(f"{command[0]} is not on PATH: {INSTALL}")
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False)
    output = (done.stdout + done.stderr).strip()
    if done.returncode != 0 or "warning" in output:
        raise CompileError(f"{' '.join(command)} ended with {done.returncode} and said:\n{output}")


def compile_v1model(scratch: Path, sources: Path = FOLDER) -> dict[str, str]:
    """Compiles for bmv2. Returns the text of each of FILES."""
    program, p4info = (scratch / name for name in FILES)
    main = sources / "v1model" / "main.p4"
    run_compiler([COMPILER, "--std", "p4-16", "--p4runtime-files", str(p4info), "-o", str(program), str(main)])
    return {program.name: normalised(json.loads(program.read_text())), p4info.name: p4info.read_text()}


def normalised(program: Any) -> str:
    """A program's JSON without what differs from one compiler or folder to the next: the compiler's version, and
    paths."""
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
    """Compiles for "tofino" or "tofino2": all that the compiler writes goes into `folder`, with the assembly,
    `pipe/main.bfa`. Returns the paths of P4Info and of the driver's own description, bfrt.json. Takes minutes."""
    p4info, bfrt = folder / "p4info.txtpb", folder / "bfrt.json"
    generation = f"-D__TARGET_TOFINO__={2 if target == 'tofino2' else 1}"
    # The compiler's front end does not know P4Runtime's @id, which its P4Info heeds all the same.
    options = ["--std", "p4-16", "--target", target, "--arch", TOFINO_ARCHITECTURES[target], "--Wdisable=unknown", "-g"]
    to = ["--p4runtime-force-std-externs", "--p4runtime-files", str(p4info), "--bf-rt-schema", str(bfrt)]
    main = sources / "tna" / "main.p4"
    run_compiler([TOFINO_COMPILER, *options, generation, *to, "-o", str(folder), str(main)])
    return p4info, bfrt


def sizes() -> dict[str, int]:
    """The sizes that hosts and controller must know, from sizes.p4."""
    text = (FOLDER / "common" / "sizes.p4").read_text()
    found = dict(re.findall(r"^#define (\w+) (\d+)$", text, re.MULTILINE))
    return {key.lower(): int(found[key]) for key in ("LANES", "SLOTS", "JOB_ROWS")}


def compiled() -> dict[str, str]:
    """The files that the compiler makes of the sources now: text by file name."""
    with tempfile.TemporaryDirectory(prefix="wiresum-p4-") as scratch:
        return compile_v1model(Path(scratch))


def stale() -> str | None:
    """Why the committed files are not those of the sources; None if they are."""
    if not RECORD.exists():
        return "was never compiled"
    record = json.loads(RECORD.read_text())
    if record["sources"] != source_hash():
        return "was compiled from other sources"
    for name in FILES:
        path = COMPILED / name
        if not path.exists():
            return f"{name} is missing"
        if record["files"][name] != _hash(path.read_bytes()):
            return f"{name} was changed by hand"
    return None if record["sizes"] == sizes() else "has other sizes than sizes.p4"


def write(files: dict[str, str]) -> None:
    for name, text in files.items():
        (COMPILED / name).write_text(text)
    hashes = {name: _hash(text.encode()) for name, text in files.items()}
    record = {"sizes": sizes(), "sources": source_hash(), "files": hashes}
    RECORD.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n")


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--check", action="store_true", help="only say what is stale")
    arguments = parser.parse_args()
    try:
        if not arguments.check:
            write(compiled())
        complaint = stale()
    except CompileError as error:
        complaint = str(error)
    print(f"v1model: {complaint or 'up to date'}")
    if complaint and arguments.check:
        print("run: python p4src/wiresum/compiled/compile_program.py")
    return 1 if complaint else 0


if __name__ == "__main__":
    sys.exit(main())
