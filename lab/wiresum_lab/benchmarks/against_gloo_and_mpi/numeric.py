"""The conversion between floats and lanes, against memcpy: runs host_agent's `numeric_bench`, and builds it first."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from wiresum_lab import REPOSITORY

BUILD_FOLDER = REPOSITORY / "build" / "numeric-bench"
BUILD_TIMEOUT_S = 300
RUN_TIMEOUT_S = 120
FORMAT = "f32/32"


class NumericBenchError(RuntimeError):
    """It could not be built or run; the text says why."""


@dataclass(frozen=True)
class Conversion:
    """One direction of the conversion with the instruction set that is used on this machine."""

    operation: str
    instruction_set: str
    gigabytes_per_s: float
    ratio_to_memcpy: float


def measure() -> list[Conversion]:
    """Raises NumericBenchError."""
    with tempfile.TemporaryDirectory(prefix="wiresum-bench-") as scratch:
        path = Path(scratch) / "numeric.json"
        _run([str(_build()), "--json", str(path)], RUN_TIMEOUT_S)
        rows = json.loads(path.read_text())
    return conversions(rows)


def conversions(rows: list[dict[str, object]]) -> list[Conversion]:
    """Of all instruction sets only the last, which is the widest that the machine has: it is the one in use."""
    wanted = [row for row in rows if row["format"] == FORMAT]
    if not wanted:
        raise NumericBenchError(f"numeric_bench has reported no operation on {FORMAT}")
    return [
        Conversion(
            str(row["operation"]),
            str(row["instruction_set"]),
            float(str(row["bytes"])) / float(str(row["seconds_median"])) / 1e9,
            float(str(row["ratio_to_memcpy"])),
        )
        for row in wanted
        if row["instruction_set"] == wanted[-1]["instruction_set"]
    ]


def _build() -> Path:
    if shutil.which("cmake") is None:
        raise NumericBenchError("building numeric_bench needs cmake and a C++ compiler: apt install cmake g++")
    configure = ["cmake", "-S", str(REPOSITORY), "-B", str(BUILD_FOLDER), "-DWIRESUM_BENCH=ON"]
    _run([*configure, "-DCMAKE_BUILD_TYPE=RelWithDebInfo"], BUILD_TIMEOUT_S)
    _run(["cmake", "--build", str(BUILD_FOLDER), "--target", "numeric_bench", "--parallel"], BUILD_TIMEOUT_S)
    found = sorted(BUILD_FOLDER.rglob("numeric_bench"))
    if not found:
        raise NumericBenchError(f"the build left no numeric_bench under {BUILD_FOLDER}")
    return found[0]


def _run(command: list[str], timeout_s: float) -> None:
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        raise NumericBenchError(f"`{command[0]}` took longer than {timeout_s:g} s") from error
    if result.returncode != 0:
        tail = (result.stderr or result.stdout).strip()[-1000:]
        raise NumericBenchError(f"`{' '.join(command)}` failed: {tail}")
