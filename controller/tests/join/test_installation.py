from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

import pytest

from wiresum.join.installation import how_to_install


@pytest.fixture
def origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What pip leaves in an installed distribution."""
    folder = tmp_path / "wiresum-0.1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: wiresum\nVersion: 0.1.0\n")
    monkeypatch.setattr(metadata, "distribution", lambda _name: metadata.PathDistribution(folder))
    return folder / "direct_url.json"


def test_it_names_the_checkout_or_the_wheel_that_pip_had_it_from(origin: Path, tmp_path: Path) -> None:
    checkout, wheel = tmp_path / "my checkout", tmp_path / "wiresum-0.1.0-cp312-abi3-linux_x86_64.whl"
    checkout.mkdir()
    wheel.touch()
    origin.write_text(json.dumps({"url": checkout.as_uri(), "dir_info": {}}))
    assert how_to_install("controller") == f"pip install '{checkout}[controller]'"
    origin.write_text(json.dumps({"url": checkout.as_uri(), "dir_info": {"editable": True}}))
    assert how_to_install("torch") == f"pip install --editable '{checkout}[torch]'"
    origin.write_text(json.dumps({"url": wheel.as_uri(), "archive_info": {}}))
    assert how_to_install() == f"pip install --force-reinstall {wheel}"


def test_it_says_what_the_place_holder_is_if_that_is_gone(origin: Path, tmp_path: Path) -> None:
    expected = (
        "pip install 'path/to/wiresum[controller]', with the checkout or the wheel of Wiresum for path/to/wiresum"
    )
    assert how_to_install("controller") == expected
    origin.write_text(json.dumps({"url": (tmp_path / "gone").as_uri(), "dir_info": {}}))
    assert how_to_install("controller") == expected
