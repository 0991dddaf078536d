from __future__ import annotations

import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tracked() -> list[Path]:
    """The files of this repository, those that are new too."""
    repository = Path(__file__).resolve().parents[3]
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listing = subprocess.run(command, cwd=repository, check=True, capture_output=True, text=True)
    return [repository / name for name in listing.stdout.split("\0") if name and (repository / name).is_file()]
