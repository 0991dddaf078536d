from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from wiresum.controller import logs

log = logging.getLogger("wiresum.test")


@pytest.fixture(autouse=True)
def usual_logging() -> Iterator[None]:
    root = logging.getLogger()
    before = (root.level, root.handlers[:])
    yield
    root.setLevel(before[0])
    root.handlers[:] = before[1]


def test_each_record_is_an_object_with_the_fields_of_extra(capsys: pytest.CaptureFixture[str]) -> None:
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


def test_a_traceback_stays_on_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up("json", verbose=False)
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        log.exception("it failed")
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["exception"].endswith("second")


def test_what_others_sent_cannot_add_a_line_of_text(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up("text", verbose=False)
    log.warning("job %s", "x\n2026-01-01 ERROR wiresum: forged\x1b[2J")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(r"job x\n2026-01-01 ERROR wiresum: forged\x1b[2J")


def test_only_what_is_unusual_is_said_without_verbose(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up("text", verbose=False)
    log.info("usual")
    assert capsys.readouterr().err == ""
    logs.set_up("text", verbose=True)
    log.info("usual")
    assert "usual" in capsys.readouterr().err


def test_a_command_gets_the_options() -> None:
    @click.command()
    @logs.log_options
    def serve(log_format: str, verbose: bool) -> None:
        click.echo(f"{log_format} {verbose}")

    assert CliRunner().invoke(serve, ["--log-format", "json", "-v"]).output == "json True\n"
    assert CliRunner().invoke(serve, []).output == "text False\n"
