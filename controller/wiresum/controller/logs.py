"""Logs of the commands that serve: lines for people, or a JSON object on each line for collectors.

Logs go to standard error. `extra` becomes fields of the object: log.info("job ended", extra={"job": name}). What a
command says about itself (`say`: that it is ready) goes to standard output at every level, in the same format.
"""

from __future__ import annotations

import functools
import json
import logging
import sys
import threading
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any, TypeVar

import click

FORMATS = ("text", "json")
TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_FIELDS = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {"message", "asctime", "taskName"}

T = TypeVar("T")

log = logging.getLogger(__name__)
_said = logging.getLogger("wiresum.service")


def log_options(command: Callable[..., T]) -> Callable[..., T]:
    """Gives a command `--log-format` and `--verbose`, and logs as they say while it runs."""

    @click.option("--verbose", "-v", is_flag=True, help="Log every decision too, not only what is unusual.")
    @click.option(
        "--log-format",
        type=click.Choice(FORMATS),
        default="text",
        show_default=True,
        help="Lines for people, or JSON objects for a collector of logs.",
    )
    @functools.wraps(command)
    def with_logs(*arguments: Any, log_format: str, verbose: bool, **options: Any) -> T:
        set_up(log_format, verbose=verbose)
        try:
            return command(*arguments, **options)
        except click.ClickException as error:
            if log_format != "json":
                raise
            log.critical("%s", error.format_message())
            raise click.exceptions.Exit(error.exit_code) from error

    return with_logs


def set_up(log_format: str, *, verbose: bool) -> None:
    """Sets up logging for the whole process; a second call replaces the first."""
    handler, aloud = _Stream(), _Stream(sys.stdout)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter(TEXT))
    aloud.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter("%(message)s"))
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[handler], force=True)
    _said.handlers, _said.propagate = [aloud], False
    _said.setLevel(logging.INFO)
    logging.getLogger("asyncio").addFilter(_is_ours)
    # Uncaught exceptions and Python's warnings are records like others.
    logging.captureWarnings(True)
    sys.excepthook = lambda kind, error, stack: log.critical("it fails", exc_info=(kind, error, stack))
    threading.excepthook = _log_thread_end
    # finsy warns of what every bmv2 lacks, and shows a stack for what the P4Runtime client says in a sentence.
    logging.getLogger("finsy").setLevel(logging.INFO if verbose else logging.CRITICAL + 1)


class _Stream(logging.StreamHandler):  # type: ignore[type-arg]
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Ignores a full disk behind a log, which is no reason to show a traceback for each line."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


def _is_ours(record: logging.LogRecord) -> bool:
    """Drops gRPC's error about an ended loop. gRPC keeps one queue of events for all loops of a process. When a
    controller changes its role, a loop ends, and another loop that finds an event for it logs a traceback."""
    error = record.exc_info[1] if record.exc_info else None
    of_ended_loop = isinstance(error, RuntimeError) and str(error) == "Event loop is closed"
    return not (of_ended_loop and "PollerCompletionQueue" in record.getMessage())


def say(message: str, **fields: object) -> None:
    """Says something about the service as a whole. `fields`: further fields of the JSON object."""
    _said.info("%s", message, extra=fields)


def _log_thread_end(arguments: threading.ExceptHookArgs) -> None:
    if arguments.exc_value is not None and arguments.exc_type is not SystemExit:
        found = (arguments.exc_type, arguments.exc_value, arguments.exc_traceback)
        log.critical("a thread fails: %s", arguments.thread and arguments.thread.name, exc_info=found)


class TextFormatter(logging.Formatter):
    """One line for each record, whatever text other machines sent; only tracebacks take more."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        line = super().formatMessage(record)
        return "".join(character if character.isprintable() else repr(character)[1:-1] for character in line)


class JsonFormatter(logging.Formatter):
    """Formats a record as JSON: `time` (UTC), `level`, `logger`, `message`; `exception` with the traceback, if there is
    one; and the fields of `extra`."""

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
