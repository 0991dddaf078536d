from __future__ import annotations

from pathlib import Path

import pytest

from wiresum_lab.doubles.stored_state import StoredState


@pytest.fixture
def site(tmp_path: Path) -> StoredState:
    return StoredState(tmp_path)
