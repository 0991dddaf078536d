from __future__ import annotations

from pathlib import Path

import pytest

from wiresum_lab import tracked_files


@pytest.fixture(scope="session")
def tracked() -> list[Path]:
    return tracked_files()
