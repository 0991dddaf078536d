"""What the command's helps and errors name is in a wheel."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from zipfile import ZipFile

import pytest

from wiresum_lab import REPOSITORY

READERS_OWN = {"cluster.toml", "train.py"}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel's files. Nothing is compiled: so it lacks the native modules, which name no page."""
    folder = tmp_path_factory.mktemp("wheel")
    settings = ("wheel.cmake=false", "wheel.py-api=py3", f"build-dir={folder}/build")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"]
    options = [f"--config-settings={setting}" for setting in settings]
    subprocess.run([*command, str(folder), *options, str(REPOSITORY)], check=True, timeout=100)
    (wheel,) = folder.glob("*.whl")
    with ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def run(installed: Path, code: str) -> str:
    """With the wheel, and without the checkout: -S leaves out what makes an editable installation."""
    places = f"{installed}:{sysconfig.get_path('purelib')}"
    ended = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": places},
        check=True,
        capture_output=True,
        text=True,
        timeout=100,
    )
    return ended.stdout


def test_the_pages_are_where_the_command_says(installed: Path) -> None:
    said = run(installed, "from wiresum.cli.main import main; main(['paths', 'docs'])").strip()
    assert said == str(installed / "wiresum" / "cli" / "docs")
    assert (Path(said) / "transports.md").read_text() == (REPOSITORY / "docs" / "transports.md").read_text()


def test_every_page_that_a_text_of_the_product_names_is_in_the_wheel(installed: Path) -> None:
    pages = {path.name for path in (installed / "wiresum" / "cli" / "docs").iterdir()}
    named = set()
    for source in installed.rglob("*.py"):
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                named |= set(re.findall(r"([\w-]+\.md)\b", node.value))
    assert {"transports.md", "cluster.md", "security.md"} <= named
    assert named <= pages


def test_every_file_that_a_help_names_is_there(installed: Path) -> None:
    """Of all commands, with all that they import."""
    imports = "from wiresum.cli.main import main; from wiresum.cli.man import pages; "
    helps = imports + "print(*(text for _, text in pages(main, 'wiresum')))"
    shown = subprocess.run([sys.executable, "-c", helps], check=True, capture_output=True, text=True, timeout=100)
    ends = "md|toml|py|sh|json|ya?ml|conf|proto|service"
    named = set(re.findall(rf"[\w./-]+\.(?:{ends})\b", shown.stdout.replace("\\-", "-"))) - READERS_OWN
    assert "docs/transports.md" in named
    assert not {name for name in named if not (installed / "wiresum" / "cli" / name).exists()}
    assert not re.search(r"https?://", shown.stdout)
