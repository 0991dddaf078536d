"""Logs of the commands that serve: lines for people, or a JSON object on each line for collectors.

They go to standard error, where systemd and containers take them. What the code says with `extra` becomes fields of the
object: log.info("job ended", extra={"job": name}).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any, TypeVar

import click

FORMATS = ("text", "json")
TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_FIELDS = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {"message", "asctime", "taskName"}

Command = TypeVar("Command", bound=Callable[..., Any])


def log_options(command: Command) -> Command:
    """Gives a command `--log-format` and `--verbose`; it passes them to `set_up`, as `log_format` and `verbose`."""
    command = click.option("--verbose", "-v", is_flag=True, help="Log every decision too, not only what is unusual.")(
        command
    )
    return click.option(
        "--log-format",
        type=click.Choice(FORMATS),
        default="text",
        show_default=True,
        help="Lines for people, or JSON objects for a collector of logs.",
    )(command)


def set_up(log_format: str, *, verbose: bool) -> None:
    """For the whole process; a second call replaces the first."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter(TEXT))
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[handler], force=True)
    # finsy warns of what every bmv2 lacks, and shows a stack for what the P4Runtime client says in a sentence.
    logging.getLogger("finsy").setLevel(logging.INFO if verbose else logging.CRITICAL + 1)


class TextFormatter(logging.Formatter):
    """One line for each record, whatever names and reasons other machines sent; only tracebacks take more."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        line = super().formatMessage(record)
        return "".join(character if character.isprintable() else repr(character)[1:-1] for character in line)


class JsonFormatter(logging.Formatter):
    """`time` (UTC), `level`, `logger`, `message`; `exception` with the traceback, if there is one; and the fields of
    `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, timezone.utc)
        entry: dict[str, Any] = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= {name: value for name, value in vars(record).items() if name not in _FIELDS and name not in entry}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)
