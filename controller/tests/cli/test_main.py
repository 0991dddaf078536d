from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib import metadata
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from wiresum import compiled
from wiresum.cli import main as module
from wiresum.cli.main import BUILT_IN, GROUP, main
from wiresum.join import PROTOCOL_VERSION
from wiresum.join.constants import STATE_SCHEMA
from wiresum.join.installation import how_to_install
from wiresum.join.release import software_version
from wiresum_lab.patience import PATIENCE_S

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ADVICE = how_to_install("controller")
PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"


@click.command()
def hello() -> None:
    click.echo("hello from a plug-in")


NOT_A_COMMAND = 7


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> list[EntryPoint]:
    """Replaces the entry points of installed packages that the command sees."""
    entries: list[EntryPoint] = []
    monkeypatch.setattr(module, "entry_points", lambda group: EntryPoints(entries).select(group=group))
    return entries


def test_the_listed_commands_are_those_that_the_package_installs() -> None:
    declared = tomllib.loads(PYPROJECT.read_text())["project"]["entry-points"][GROUP]
    assert declared == {name: target for name, (target, _) in BUILT_IN.items()}


def test_help_lists_every_command_and_imports_none(installed: list[EntryPoint]) -> None:
    installed.append(EntryPoint("train", "a_module_that_is_not_there:train", GROUP))
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    for name in (*BUILT_IN, "train", "Examples:", "_WIRESUM_COMPLETE=bash_source"):
        assert name in result.output


def test_a_package_can_add_a_command(installed: list[EntryPoint], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plug_in", sys.modules[__name__])
    installed.append(EntryPoint("hello", "plug_in:hello", GROUP))
    result = CliRunner().invoke(main, ["hello"])
    assert (result.exit_code, result.output) == (0, "hello from a plug-in\n")


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
    missing: str, advice: str, installed: list[EntryPoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(self: EntryPoint) -> object:
        raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

    monkeypatch.setattr(EntryPoint, "load", load)
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
    assert result.exit_code == 0
    assert [line.split() for line in result.output.splitlines()] == [
        ["wiresum", software_version()],
        ["join", "protocol", str(PROTOCOL_VERSION)],
        ["state", "schema", str(STATE_SCHEMA)],
        ["switch", "program", program.version],
        ["P4Info", "digest", program.digest],
        *([name, metadata.version(name)] for name in ("torch", "grpcio", "protobuf", "numpy")),
        ["python", platform.python_version()],
    ]


def test_an_entry_point_that_is_not_a_command_is_named(
    installed: list[EntryPoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "plug_in", sys.modules[__name__])
    installed.append(EntryPoint("broken", "plug_in:NOT_A_COMMAND", GROUP))
    result = CliRunner().invoke(main, ["broken"])
    assert result.exit_code == 1
    assert "'plug_in:NOT_A_COMMAND'" in result.output


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
