"""The audit log: who asked for what, for which job, and with what result. One JSON object a line.

It holds no tokens and no keys. It is bounded: files are rotated, and of many refusals of one party only some are
written, with the number of the others. A party is a tenant, a certificate without one, or an address without a
certificate; what one is refused does not hide what others are.
"""

from __future__ import annotations

import io
import json
import logging
import logging.handlers
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
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
"""Of one party."""
UNWRITTEN_S_MAX = 60.0
"""After which those that are only counted are told."""
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
        self._clock = clock
        self._refusals = TokenBuckets(REFUSALS_PER_SECOND, REFUSALS_BURST, clock=clock)
        self._unwritten: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """How many refusals of a party were not written, and since when."""

    def write(self, caller: Caller, method: str, request: Any, outcome: str, why: str, seconds: float) -> None:
        """`outcome`: the name of a gRPC status code, why the call was refused, or BEGUN. `request`: may be None."""
        self._tell_unwritten(self._clock() - UNWRITTEN_S_MAX)
        if outcome == "OK" and method in _SILENT_IF_OK:
            return
        party = _party(caller)
        count, since = self._unwritten.get(party, (0, self._clock()))
        if outcome not in ("OK", "BEGUN") and self._refusals.take(party):
            self._unwritten[party] = (count + 1, since)
            return
        line = {
            "time": _now(),
            "caller": caller.name,
            "peer": caller.peer,
            "roles": sorted(caller.claims.roles),
            "method": method,
            **_subject(request),
            "outcome": outcome,
            "text": why,
            "seconds": round(seconds, 3),
        }
        if count:
            line["refusals_unwritten"] = count
            del self._unwritten[party]
        self._write(line)

    def close(self) -> None:
        self._tell_unwritten(self._clock())
        if self._handler is not None:
            self._handler.close()

    def _tell_unwritten(self, until: float) -> None:
        """Of the parties that are counted since `until` or before, and have no line since."""
        while self._unwritten:
            party, (count, since) = next(iter(self._unwritten.items()))
            if since > until:
                return
            del self._unwritten[party]
            self._write({"time": _now(), "party": party, "refusals_unwritten": count})

    def _write(self, line: Mapping[str, Any]) -> None:
        shown = {key: value[:TEXT_CHARACTERS_MAX] if isinstance(value, str) else value for key, value in line.items()}
        text = json.dumps({key: value for key, value in shown.items() if value not in ("", [])})
        if self._handler is None:
            log.info("%s", text)
        else:
            self._handler.handle(logging.makeLogRecord({"msg": text}))


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def _party(caller: Caller) -> str:
    if not caller.authenticated:
        return caller.address or "this host"
    if caller.claims.tenants:
        return f"tenant {' '.join(sorted(caller.claims.tenants))}"
    return f"certificate {caller.name}"


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
