from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from wiresum.cli import man as module
from wiresum.cli.main import BUILT_IN, main

BOLD_AND_BACKSPACES = re.compile(r".\x08|\x1b\[[0-9;]*m")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("man") / "man1"
    result = CliRunner().invoke(main, ["man", str(folder)])
    assert (result.exit_code, result.output) == (0, f"{folder}\n")
    return folder


def words(text: str) -> str:
    return " ".join(text.split())


def test_every_command_has_a_page(written: Path) -> None:
    found = {path.name for path in written.iterdir()}
    assert {"wiresum.1", *(f"wiresum-{name}.1" for name in BUILT_IN), "wiresum-ca-issue-worker.1"} <= found


def test_a_page_says_what_the_help_says(written: Path) -> None:
    if shutil.which("groff") is None:
        pytest.skip("the manual pages are not shown: groff is not on PATH")
    for path in sorted(written.iterdir()):
        show = ["groff", "-man", "-Tascii", "-P-cbou", "-ww", "-rLL=1000n", "-rHY=0", str(path)]
        shown = subprocess.run(show, capture_output=True, text=True, check=True, timeout=60)
        assert shown.stderr == "", f"{path.name} is no clean troff"
        page = words(BOLD_AND_BACKSPACES.sub("", shown.stdout))
        context, command = found(path.stem)
        for parameter in command.get_params(context):
            record = parameter.get_help_record(context)
            if isinstance(parameter, click.Option) and record is not None:
                assert words(record[0]) in page and words(record[1]) in page, f"{path.name}: {record}"
        for text in (command.help or "", command.epilog or ""):
            for line in text.replace("\b", "").splitlines():
                assert words(line) in page, f"{path.name} lacks: {line}"


def found(stem: str) -> tuple[click.Context, click.Command]:
    context, command = click.Context(main, info_name="wiresum"), main  # type: tuple[click.Context, click.Command]
    for name in stem.split("-")[1:]:
        assert isinstance(command, click.Group)
        below = command.get_command(context, name)
        assert below is not None
        context, command = click.Context(below, info_name=name, parent=context), below
    return context, command


def test_pages_go_where_man_finds_those_of_this_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("man") is None:
        pytest.skip("where pages are found is not tested: man is not on PATH")
    folder = tmp_path / module.FOLDER.relative_to(Path(module.sys.prefix))
    assert CliRunner().invoke(main, ["man", str(folder)]).exit_code == 0
    (tmp_path / "bin").mkdir()
    environment = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}
    where = subprocess.run(
        ["man", "-w", "wiresum-switch"], env=environment, capture_output=True, text=True, check=False
    )
    assert where.stdout.strip() == str(folder / "wiresum-switch.1"), where.stderr


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = CliRunner().invoke(main, ["man", str(tmp_path / "file" / "man1")])
    assert result.exit_code == 1
    assert "Traceback" not in result.output
    assert str(tmp_path / "file") in result.output
