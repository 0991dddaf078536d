from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from wiresum.controller import logs
from wiresum_lab.patience import PATIENCE_S

log = logging.getLogger("wiresum.test")


@pytest.fixture(autouse=True)
def usual_logging() -> Iterator[None]:
    root = logging.getLogger()
    before = (root.level, root.handlers[:])
    yield
    root.setLevel(before[0])
    root.handlers[:] = before[1]
    logging.captureWarnings(False)
    sys.excepthook, threading.excepthook = sys.__excepthook__, threading.__excepthook__


def test_each_record_is_a_json_object_with_the_extra_fields(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up("json", verbose=True)
    log.info("job %s ended", "night", extra={"job": "night", "cause": 3})
    entry = json.loads(capsys.readouterr().err)
    assert entry.pop("time").endswith("Z")
    assert entry == {
        "level": "info",
        "logger": "wiresum.test",
        "message": "job night ended",
        "job": "night",
        "cause": 3,
    }


def test_a_traceback_stays_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up("json", verbose=False)
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        log.exception("it failed")
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["exception"].endswith("second")


def test_received_text_cannot_add_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up("text", verbose=False)
    log.warning("job %s", "x\n2026-01-01 ERROR wiresum: forged\x1b[2J")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(r"job x\n2026-01-01 ERROR wiresum: forged\x1b[2J")


def test_only_warnings_are_shown_without_verbose(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up("text", verbose=False)
    log.info("usual")
    assert capsys.readouterr().err == ""
    logs.set_up("text", verbose=True)
    log.info("usual")
    assert "usual" in capsys.readouterr().err


@click.command()
@logs.log_options
def serve() -> None:
    logs.say("ready: x", port=7)
    log.info("usual")
    warnings.warn("old", DeprecationWarning, stacklevel=1)
    raise click.ClickException("the disk is gone")


def test_text_format_does_not_change_what_a_command_prints() -> None:
    result = CliRunner().invoke(serve, [])
    assert result.stdout == "ready: x\n"
    assert result.stderr.endswith("Error: the disk is gone\n")
    assert result.exit_code == 1


def test_in_json_format_every_line_is_an_object_including_the_final_error() -> None:
    result = CliRunner().invoke(serve, ["--log-format", "json", "-v"])
    assert result.exit_code == 1
    (said,) = map(json.loads, result.stdout.splitlines())
    assert (said["message"], said["port"], said["level"]) == ("ready: x", 7, "info")
    logged = [json.loads(line) for line in result.stderr.splitlines()]
    assert [(entry["level"], entry["logger"]) for entry in logged] == [
        ("info", "wiresum.test"),
        ("warning", "py.warnings"),
        ("critical", "wiresum.controller.logs"),
    ]
    assert logged[-1]["message"] == "the disk is gone"


@pytest.mark.parametrize(
    "where", ["fail()", "import threading; t = threading.Thread(target=fail); t.start(); t.join()"]
)
def test_in_json_format_an_uncaught_exception_is_an_object(where: str) -> None:
    program = f"""
from wiresum.controller import logs
logs.set_up("json", verbose=False)
def fail():
    raise RuntimeError("boom")
{where}
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    (entry,) = map(json.loads, ended.stderr.splitlines())
    assert entry["level"] == "critical"
    assert entry["exception"].endswith("RuntimeError: boom")


def test_a_full_disk_behind_a_log_shows_no_stacks() -> None:
    program = """
import os
from wiresum.controller import logs
logs.set_up("text", verbose=False)
for _ in range(3):
    logs.say("ready")
os._exit(0)
"""
    with open("/dev/full", "w") as full:  # noqa: PTH123
        ended = subprocess.run(
            [sys.executable, "-c", program],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
    assert (ended.returncode, ended.stderr) == (0, "")
