"""Every command and program explains itself, and at once: its help imports nothing that takes long to import."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from wiresum_lab import REPOSITORY
from wiresum_lab.benchmarks.__main__ import BENCHMARKS
from wiresum_lab.patience import PATIENCE_S

MAKEFILE = (REPOSITORY / "Makefile").read_text()
LAB = "wiresum_lab.benchmarks"
IMPORTED_ANYWAY = {
    f"{LAB}.scale": {"numpy"},
    f"{LAB}.compress.memory": {"grpc", "numpy", "wiresum.agent._native"},
    "wiresum_lab.soaks.cluster_soak": {"grpc", "wiresum.agent._native"},
}
"""By programs that only developers start."""
WITH_TORCH = [f"{LAB}.{name}" for name in ("compress", "gpu", "gradients", "precision", "reproducible")]
"""Their options' choices are models and methods in PyTorch."""
PROGRAMS = sorted(
    {
        *re.findall(r"\$\(py\) -m (wiresum[\w.]+)", MAKEFILE),
        *(f"{LAB}.{module}" for module, _ in BENCHMARKS.values()),
        *(f"wiresum_lab.{module}" for module in ("demos.bmv2_demo", "demos.clicks_demo", "p4runtime_shell")),
    }
    - {*WITH_TORCH},
    key=lambda program: (program in IMPORTED_ANYWAY, program),
)
"""The slowest last: what one has imported, a later one does not import."""
OPTION = re.compile(r"^  (-[^\n]+?)(?:  +(\S.*)|\n {4,}\S.*)?$", re.MULTILINE)


def shown(programs: list[str]) -> dict[str, dict[str, Any]]:
    """The command's helps and those of these programs, as helps.py says them."""
    command = [sys.executable, str(Path(__file__).with_name("helps.py")), *programs]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, dict[str, Any]] = json.loads(ended.stdout)
    for program in programs:
        assert found[program]["status"] == 0, f"{program}: {found[program]['text']}"
        assert "usage:" in found[program]["text"].lower(), program
    return found


@pytest.fixture(scope="module")
def helps() -> dict[str, dict[str, Any]]:
    return shown(PROGRAMS)


def test_every_command_explains_itself_and_each_option(helps: dict[str, dict[str, Any]]) -> None:
    for command, each in helps.items():
        if command.startswith("wiresum "):
            assert each["status"] == 0, command
            assert f"Usage: {command}" in each["text"]
            options = list(OPTION.finditer(each["text"].partition("\nOptions:\n")[2].partition("\n\n")[0]))
            assert options, command
            unexplained = [option[1] for option in options if not (option[2] or "\n" in option[0])]
            assert not unexplained, f"{unexplained} of {command}"


def test_no_help_imports_what_takes_long(helps: dict[str, dict[str, Any]]) -> None:
    """Otherwise `wiresum --help`, completion and each probe by `wiresum health` would take a second or more."""
    imported = {name: {*each["imported"]} - IMPORTED_ANYWAY.get(name, set()) for name, each in helps.items()}
    assert {name: found for name, found in imported.items() if found} == {}
    assert {*PROGRAMS} < helps.keys()


@pytest.mark.nightly
def test_programs_with_pytorch_have_help() -> None:
    shown(WITH_TORCH)
