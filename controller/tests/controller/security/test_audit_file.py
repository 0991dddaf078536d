from __future__ import annotations

import json
import logging
import os
import shutil
import stat
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from wiresum.controller.security import audit_file as module
from wiresum.controller.security.audit_file import AuditFile
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import wait_until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.log"


@pytest.fixture
def now() -> list[float]:
    return [0.0]


@pytest.fixture
def file(path: Path, now: list[float], caplog: pytest.LogCaptureFixture) -> Iterator[AuditFile]:
    caplog.set_level(logging.WARNING)
    opened = AuditFile(path, clock=lambda: now[0])
    yield opened
    opened.close()


def put(file: AuditFile, *lines: str) -> None:
    for line in lines:
        file.write(line)
    assert file.flush(PATIENCE_S)


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_files_are_rotated_and_only_their_owner_may_read_them(path: Path) -> None:
    file = AuditFile(path, file_bytes_max=2000)
    put(file, *["x" * 300] * 300)
    file.close()
    files = list(path.parent.iterdir())
    assert len(files) == module.FILES_KEPT + 1
    assert all(each.stat().st_size <= 2000 for each in files)
    assert {stat.S_IMODE(each.stat().st_mode) for each in files} == {0o600}
    assert file.lines_lost == 0


def test_after_logrotates_create_it_writes_to_the_new_file(file: AuditFile, path: Path) -> None:
    put(file, "before")
    path.rename(path.with_suffix(".1"))
    path.touch(mode=0o640)
    put(file, "after")
    assert (lines(path.with_suffix(".1")), lines(path)) == (["before"], ["after"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o640, "the mode is logrotate's"


def test_after_a_rename_without_a_new_file_it_makes_one(file: AuditFile, path: Path) -> None:
    put(file, "before")
    path.rename(path.with_suffix(".1"))
    put(file, "after")
    assert (lines(path.with_suffix(".1")), lines(path)) == (["before"], ["after"])


def test_after_logrotates_copytruncate_it_writes_at_the_beginning(file: AuditFile, path: Path) -> None:
    put(file, "before" * 100)
    shutil.copy(path, path.with_suffix(".1"))
    os.truncate(path, 0)
    put(file, "after")
    assert path.read_bytes() == b"after\n"


@pytest.mark.skipif(shutil.which("logrotate") is None, reason="needs logrotate")
@pytest.mark.parametrize("how", ["create", "copytruncate"])
def test_logrotate_itself_loses_no_line(file: AuditFile, path: Path, tmp_path: Path, how: str) -> None:
    rules = tmp_path / "rules"
    rules.write_text(f"{path} {{\n  rotate 5\n  {how}\n  su root root\n}}\n")
    rules.chmod(0o644)
    for number in range(3):
        put(file, f"line {number}")
        state = str(tmp_path / "state")
        subprocess.run(["logrotate", "-f", "-s", state, str(rules)], check=True, capture_output=True, timeout=60)
    put(file, "last")
    found = [line for each in sorted(tmp_path.glob("audit.log*")) for line in lines(each)]
    assert sorted(found) == ["last", "line 0", "line 1", "line 2"]
    assert lines(path) == ["last"]


def test_a_full_disk_is_said_once_and_its_end_too_and_lines_are_counted(
    file: AuditFile, path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    put(file, "before")
    path.unlink()
    path.symlink_to("/dev/full")
    put(file, *(f"lost {number}" for number in range(50)))
    assert file.lines_lost == 50
    assert "No space left" in file.trouble
    path.unlink()
    put(file, "after")
    assert file.trouble == ""
    gap, after = lines(path)
    assert json.loads(gap).items() >= {"lines_lost": 50}.items()
    assert after == "after"
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert "the audit log cannot be written" in caplog.messages[0]
    assert "50 lines were lost" in caplog.messages[1]
    assert "Traceback" not in capfd.readouterr().err


def test_it_finds_by_itself_that_the_disk_is_mended(path: Path) -> None:
    file = AuditFile(path, retry_s=0.01)
    put(file, "before")
    path.unlink()
    path.symlink_to("/dev/full")
    put(file, "lost")
    assert file.trouble
    path.unlink()
    wait_until(lambda: not file.trouble, "it tries again without a new line")
    file.close()
    assert [json.loads(line)["lines_lost"] for line in lines(path)] == [1]


def test_a_part_of_a_line_does_not_spoil_the_next_one(path: Path) -> None:
    """A disk that was full, or a host that lost its power, leaves one."""
    path.write_bytes(b'{"half')
    file = AuditFile(path)
    put(file, "whole", "next")
    file.close()
    assert lines(path) == ['{"half', "whole", "next"]


def test_a_disk_that_hangs_holds_up_nobody_and_is_told(
    path: Path, now: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    """A pipe that nobody reads is such a disk."""
    os.mkfifo(path)
    reader = os.open(path, os.O_RDWR)
    file = AuditFile(path, queue_bytes_max=256 << 10, clock=lambda: now[0])
    line = "x" * 1023
    for _ in range(1000):
        file.write(line)
    wait_until(lambda: file.lines_lost > 0 and file._busy_since is not None, "the queue is full")
    assert file.trouble == ""
    now[0] += 2 * module.SILENCE_S_MAX
    file.write(line)
    assert "has taken nothing" in file.trouble
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    got = bytearray()

    def read() -> None:
        while not got.endswith(b"last\n"):
            got.extend(os.read(reader, 65536))

    thread = threading.Thread(target=read)
    thread.start()
    assert file.flush(PATIENCE_S)  # or the queue may have no room for the next line
    put(file, "last")
    thread.join(PATIENCE_S)
    file.close()
    os.close(reader)
    found = got.decode().splitlines()
    assert found.count(line) + file.lines_lost == 1001
    assert sum(json.loads(each)["lines_lost"] for each in found if "lines_lost" in each) == file.lines_lost
    assert file.trouble == ""
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]


def test_a_folder_in_which_nothing_can_be_renamed_does_not_end_the_log(
    path: Path, now: list[float], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It tries again after a minute."""

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    file = AuditFile(path, file_bytes_max=100, clock=lambda: now[0])
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", refuse)
        put(file, *["x" * 60] * 10)
        assert lines(path) == ["x" * 60] * 10
        assert (file.lines_lost, file.trouble) == (0, "")
        assert len(caplog.records) == 1
    now[0] += module.ROTATE_RETRY_S - 1
    put(file, "soon")
    now[0] += 1
    put(file, "late")
    file.close()
    assert (lines(path), lines(Path(f"{path}.1"))[-1]) == (["late"], "soon")


def test_a_path_that_cannot_be_opened_is_trouble_and_not_the_end(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    file = AuditFile(tmp_path / "file" / "audit.log")
    put(file, "lost")
    assert str(tmp_path / "file") in file.trouble
    assert file.lines_lost == 1
    file.close()
