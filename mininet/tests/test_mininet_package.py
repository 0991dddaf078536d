"""Where Mininet cannot be used, the text says why, and what to do about that."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from wiresum_mininet import mininet_package


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The only place where there may be a Mininet; all tools are there."""
    loaded = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "mininet"}
    for name in loaded:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if not Path(place, "mininet/__init__.py").exists()])
    monkeypatch.setattr(mininet_package, "DEBIAN_FOLDER", tmp_path)
    monkeypatch.setattr(mininet_package, "TOOLS", ("sh",))
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] == "mininet" and name not in loaded]:
        del sys.modules[name]


def install(folder: Path, node: str = "") -> None:
    package = folder / "mininet"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "node.py").write_text(node)


def test_nothing_is_missing_where_mininet_can_be_loaded(folder: Path) -> None:
    install(folder)
    assert mininet_package.missing() == ""


def test_a_mininet_that_is_not_there_is_to_be_installed(folder: Path) -> None:
    said = mininet_package.missing()
    assert said.startswith("missing: Mininet (no Python package `mininet`")
    assert mininet_package.INSTALL in said


@pytest.mark.parametrize(
    ("module", "advice"),
    [("distutils", "-m pip install setuptools"), ("removed_module", "with the system's own Python")],
)
def test_a_mininet_that_this_python_cannot_load_is_not_to_be_installed_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, module: str, advice: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    install(folder, f"import {module}")
    said = mininet_package.missing()
    assert said.startswith("Mininet is installed, but Python 3.")
    assert f"cannot load it: import of {module} halted" in said
    assert advice in said
    assert "apt-get" not in said


def test_tools_that_are_missing_besides_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mininet_package, "TOOLS", ("no-such-tool",))
    install(folder, "import no_such_module")
    said = mininet_package.missing()
    assert said.startswith("missing: no-such-tool. On Debian or Ubuntu: apt-get install")
    assert ". Mininet is installed, but " in said
