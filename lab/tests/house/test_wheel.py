"""What the command's helps and errors name is in a wheel."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import click
import pytest

from wiresum.cli.main import main
from wiresum_lab import REPOSITORY
from wiresum_lab.patience import PATIENCE_S

READERS_OWN = {"cluster.toml", "/etc/wiresum/cluster.toml", "/etc/wiresum/standby.toml", "manifest.json", "train.py"}


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel's files."""
    site = tmp_path_factory.mktemp("site")
    with ZipFile(wheel) as archive:
        archive.extractall(site)
    return site


def run(installed: Path, code: str) -> str:
    """With the wheel, and without the checkout: -S leaves out what makes an editable installation."""
    places = f"{installed}:{Path(click.__file__).parents[1]}"
    ended = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": places},
        check=True,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    return ended.stdout


def test_the_pages_are_where_the_command_says(installed: Path) -> None:
    said = run(installed, "from wiresum.cli.main import main; main(['paths', 'docs'])").strip()
    assert said == str(installed / "wiresum" / "cli" / "docs")
    assert (Path(said) / "transports.md").read_text() == (REPOSITORY / "docs" / "transports.md").read_text()


def test_every_page_that_a_text_of_the_product_names_is_in_the_wheel(installed: Path) -> None:
    pages = {path.name for path in (installed / "wiresum" / "cli" / "docs").iterdir()}
    sources = [re.sub(r"(^| ) *#.*", "", source.read_text()) for source in installed.rglob("*.py")]
    named = {name for text in sources for name in re.findall(r"([\w-]+\.md)\b", text)}
    assert {"transports.md", "cluster.md", "security.md"} <= named
    assert named <= pages


def test_every_file_that_a_help_names_is_there(installed: Path) -> None:
    """Of all commands, with all that they import."""
    shown = "\n".join(helps(main, click.Context(main, info_name="wiresum", terminal_width=1000)))
    ends = "md|toml|py|sh|json|ya?ml|conf|proto|service"
    named = set(re.findall(rf"[\w./-]+\.(?:{ends})\b", shown)) - READERS_OWN
    assert "docs/transports.md" in named
    assert not {name for name in named if not (installed / "wiresum" / "cli" / name).exists()}
    assert not re.search(r"https?://", shown)


def helps(command: click.Command, context: click.Context) -> Iterator[str]:
    """Of a command and of those below it."""
    yield command.get_help(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from helps(below, click.Context(below, info_name=name, parent=context))
