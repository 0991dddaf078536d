"""The audit log: who asked for what, for which job, and with what result. One JSON object a line.

It holds no tokens and no keys. It is bounded: files are rotated, and of many refusals in a row only some are written,
with the number of the others.
"""

from __future__ import annotations

import io
import json
import logging
import logging.handlers
import os
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from wiresum.controller.security.caller import Caller
from wiresum.controller.security.rates import TokenBuckets

log = logging.getLogger(__name__)

FILE_BYTES_MAX = 32 * 1024 * 1024
FILES_KEPT = 8
REFUSALS_PER_SECOND = 10.0
REFUSALS_BURST = 100
TEXT_CHARACTERS_MAX = 200

_SILENT_IF_OK = frozenset({"GetReport", "ListEnded", "Diagnose", "Check", "Watch", "List"})
"""They change nothing, and `wiresum top` asks every second."""


class AuditLog:
    """Without a path it goes to the process's log."""

    def __init__(self, path: Path | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises `OSError` if the file cannot be opened."""
        self._handler: logging.Handler | None = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._handler = _PrivateRotatingFile(
                path, maxBytes=FILE_BYTES_MAX, backupCount=FILES_KEPT, encoding="utf-8"
            )
        self._refusals = TokenBuckets(REFUSALS_PER_SECOND, REFUSALS_BURST, keys_max=1, clock=clock)
        self._unwritten = 0

    def write(self, caller: Caller, method: str, request: Any, outcome: str, why: str, seconds: float) -> None:
        """`outcome`: the name of a gRPC status code, why the call was refused, or BEGUN. `request`: may be None."""
        if outcome == "OK" and method in _SILENT_IF_OK:
            return
        if outcome not in ("OK", "BEGUN") and self._refusals.take(""):
            self._unwritten += 1
            return
        line = {
            "time": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            "caller": caller.name,
            "peer": caller.peer,
            "roles": sorted(caller.claims.roles),
            "method": method,
            **_subject(request),
            "outcome": outcome,
            "text": why,
            "seconds": round(seconds, 3),
        }
        if self._unwritten:
            line["refusals_unwritten"] = self._unwritten
            self._unwritten = 0
        shown = {key: value[:TEXT_CHARACTERS_MAX] if isinstance(value, str) else value for key, value in line.items()}
        text = json.dumps({key: value for key, value in shown.items() if value not in ("", [])})
        if self._handler is None:
            log.info("%s", text)
        else:
            self._handler.handle(logging.makeLogRecord({"msg": text}))

    def close(self) -> None:
        if self._handler is not None:
            self._handler.close()


def _subject(request: Any) -> dict[str, Any]:
    """What a request is about, without secrets."""
    found: dict[str, Any] = {}
    if hasattr(request, "member"):
        request = request.member
    for attribute in ("job_name", "job", "rank", "worker", "world_size", "tenant", "priority", "switch_name", "reason"):
        value = getattr(request, attribute, None)
        if isinstance(value, str | int):
            found[attribute] = value
    endpoint = getattr(request, "endpoint", None)
    if endpoint is not None:
        found["endpoint"] = f"{endpoint.address}:{endpoint.port}"
    return found


class _PrivateRotatingFile(logging.handlers.RotatingFileHandler):
    def _open(self) -> io.TextIOWrapper:
        return open(self.baseFilename, self.mode, encoding=self.encoding, opener=_open_private)  # type: ignore[return-value]


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
