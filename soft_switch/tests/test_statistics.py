from __future__ import annotations

import contextlib
import logging
from pathlib import Path

import pytest

from wiresum.switch.software_switch import SoftwareSwitch
from wiresum.switch.statistics import Reporter


def test_a_file_that_cannot_be_written_is_told_once_and_its_end_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    folder = tmp_path / "folder"
    folder.mkdir()
    with contextlib.closing(SoftwareSwitch(port=0, threads=1, slots=64, lanes_max=16)) as switch:
        reporter = Reporter(switch, None, folder / "switch.json")
        (folder / "switch.json").unlink()
        folder.rmdir()
        for _ in range(3):
            reporter.update_file()
        folder.mkdir()
        for _ in range(3):
            reporter.update_file()
    assert ["No such file" in message for message in caplog.messages] == [True, False]
    assert "can be written again" in caplog.messages[1]
    assert (folder / "switch.json").exists()
