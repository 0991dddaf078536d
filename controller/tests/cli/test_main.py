from __future__ import annotations

import importlib.util
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from wiresum import compiled
from wiresum.cli.main import COMMANDS, main
from wiresum.join import PROTOCOL_VERSION
from wiresum.join.constants import STATE_SCHEMA
from wiresum.join.installation import how_to_install
from wiresum.join.release import software_version
from wiresum_lab.patience import PATIENCE_S

ADVICE = how_to_install("controller")


def test_help_lists_every_command_and_imports_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, (target, _) in COMMANDS.items():
        monkeypatch.setitem(COMMANDS, name, (f"not_there.{target}", f"What {name} does."))
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    for text in (*(f"{name:<13}What {name} does." for name in COMMANDS), "Examples:", "_WIRESUM_COMPLETE=bash_source"):
        assert text in result.output


@pytest.mark.parametrize(
    ("missing", "advice"),
    [
        ("torch", how_to_install("torch")),
        ("matplotlib.pyplot", how_to_install("demo")),
        ("wiresum.switch._native", how_to_install()),
        ("something", how_to_install()),
    ],
)
def test_a_command_that_cannot_be_imported_says_what_to_install(
    missing: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def import_module(_: str) -> Any:
        raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

    monkeypatch.setattr(importlib, "import_module", import_module)
    result = CliRunner().invoke(main, ["jobs"])
    assert result.exit_code == 1
    assert "Traceback" not in result.output
    assert advice in result.output


def test_a_command_that_lacks_a_part_when_it_runs_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text(
        '[controller]\nlisten = "127.0.0.1:43487"\n\n[[switch]]\nname = "leaf"\nkind = "software"\n'
        'p4runtime = "127.0.0.1:9559"\naddress = "127.0.0.1"\n'
    )
    hidden = "import sys; sys.modules |= dict.fromkeys(['finsy', 'cryptography', 'rich', 'prometheus_client']); "
    run = "from wiresum.cli.main import main; main(prog_name='wiresum')"
    for arguments in (["controller", "check"], ["controller", "plan"], ["controller"]):
        command = [sys.executable, "-c", hidden + run, *arguments, "--config", "cluster.toml"]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert ended.returncode == 1
        assert ended.stderr == f"Error: 'wiresum controller' needs finsy, which is not installed: {ADVICE}\n"


def test_the_installed_versions_are_said() -> None:
    result = CliRunner().invoke(main, ["--version"])
    program = compiled.load("v1model")
    torch = metadata.version("torch") if importlib.util.find_spec("torch") else "not installed"
    assert result.exit_code == 0
    assert [line.split() for line in result.output.splitlines()] == [
        ["wiresum", software_version()],
        ["join", "protocol", str(PROTOCOL_VERSION)],
        ["state", "schema", str(STATE_SCHEMA)],
        ["switch", "program", program.version],
        ["P4Info", "digest", program.digest],
        ["torch", *torch.split()],
        *([name, metadata.version(name)] for name in ("grpcio", "protobuf", "numpy")),
        ["python", platform.python_version()],
    ]


def test_a_command_that_does_not_exist_is_an_error() -> None:
    result = CliRunner().invoke(main, ["nonsense"])
    assert result.exit_code == 2
    assert "No such command 'nonsense'" in result.output


def test_python_m_runs_the_command() -> None:
    command = [sys.executable, "-m", "wiresum.cli", "--help"]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE_S).stdout
    assert output.startswith("Usage: python -m wiresum.cli")


def test_the_shell_completes_the_names_of_commands() -> None:
    environment = {"_WIRESUM_COMPLETE": "bash_complete", "COMP_WORDS": "wiresum sw", "COMP_CWORD": "1"}
    output = CliRunner().invoke(main, [], prog_name="wiresum", env=environment).output
    assert output == "plain,switch\n"


def test_grpc_logs_nothing_unless_asked_to() -> None:
    code = (
        "import os; from click.testing import CliRunner; from wiresum.cli.main import main;"
        "CliRunner().invoke(main, ['health', '--help']); print(os.environ['GRPC_VERBOSITY'])"
    )
    for given, kept in (({}, "ERROR"), ({"GRPC_VERBOSITY": "DEBUG"}, "DEBUG")):
        environment = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"} | given
        run = [sys.executable, "-c", code]
        output = subprocess.run(
            run, check=True, capture_output=True, text=True, timeout=PATIENCE_S, env=environment
        ).stdout
        assert output == f"{kept}\n"
