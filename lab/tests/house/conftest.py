from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from wiresum_lab import REPOSITORY


@pytest.fixture(scope="session")
def tracked() -> list[Path]:
    """The files of this repository, those that are new too."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listing = subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True)
    return [REPOSITORY / name for name in listing.stdout.split("\0") if name and (REPOSITORY / name).is_file()]
