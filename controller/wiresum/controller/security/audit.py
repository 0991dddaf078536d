"""The audit log: who asked for what, for which job, and with what result. One JSON object a line.

It holds no tokens and no keys. Each party has its share of it, so that none rolls away what the log says of others. A
party is one of those that share connections (shares.py): the caller's tenant, or its certificate if that has none, or
its address if there is no certificate. Of several tenants it is the last. Its share is a number of bytes a day, and a
number at once. Calls for which the share has no room are counted, and a line each minute has their numbers, by
method and outcome. Refusals may take a small part of what there is at once: the rest is for calls that were granted,
which say what jobs began and ended.

Whatever the share, the first call of each party, method and outcome of a day is written, and so is every call of an
operator's certificate that was granted.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from wiresum import join
from wiresum.controller.security.audit_file import AuditFile
from wiresum.controller.security.caller import Caller
from wiresum.controller.security.names import OPERATOR
from wiresum.controller.security.shares import Party

log = logging.getLogger(__name__)

DAY_S = 86_400.0
SHARE_BYTES_A_DAY = 16 << 20
"""What one party may write in the long run."""
SHARE_BYTES_AT_ONCE = 8 << 20
"""What it may write at once: more than the joins of 4,096 workers and their ends."""
REFUSALS_BYTES_AT_ONCE = 256 << 10
"""The part of that for calls that were not granted."""
PARTIES_MAX = 4096
"""Shares kept; the one unused for longest goes first."""
UNWRITTEN_S_MAX = 60.0
"""After which calls that were only counted are told."""
KINDS_TOLD_MAX = 32
"""Methods and outcomes in the line that tells of them; the others are added up."""
TEXT_BYTES_MAX = 200
"""Of each text in a line, as JSON has it."""
LINE_BYTES_MAX = 2048


@dataclass(frozen=True)
class AuditLimits:
    """Of one party."""

    bytes_a_day: int = SHARE_BYTES_A_DAY
    bytes_at_once: int = SHARE_BYTES_AT_ONCE
    refusals_bytes_at_once: int = REFUSALS_BYTES_AT_ONCE


_SILENT_IF_OK = frozenset(
    {"GetReport", "ListEnded", "Diagnose", "Prove", "Check", "Watch", "List", "Capabilities", "Read"}
)
"""They change nothing, and `wiresum top` asks every second."""
_GRANTED = frozenset({"OK", "BEGUN", "CANCELLED"})
"""CANCELLED: the caller hung up, as a worker does at the end of an Attend."""

Kind = tuple[str, str]
"""Method and outcome."""


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


class AuditLog:
    """Without a path it goes to the process's log."""

    def __init__(
        self,
        path: Path | None = None,
        limits: AuditLimits | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = limits or AuditLimits()
        self._file = None if path is None else AuditFile(path)
        self._clock = clock
        self._shares: OrderedDict[Party, _Share] = OrderedDict()
        self._unwritten: OrderedDict[Party, _Unwritten] = OrderedDict()
        """By party, those that are counted for longest first."""

    def report(self) -> join.AuditReport:
        if self._file is None:
            return join.AuditReport()
        return join.AuditReport(trouble=self._file.trouble, lines_lost=self._file.lines_lost)

    def write(self, caller: Caller, method: str, request: Any, outcome: str, why: str, seconds: float) -> None:
        """`outcome`: the name of a gRPC status code, why the call was refused, or BEGUN. `request`: may be None. Does
        not wait for the disk."""
        now = self._clock()
        self._tell_unwritten(now - UNWRITTEN_S_MAX)
        if outcome == "OK" and method in _SILENT_IF_OK:
            return
        party, kind = caller.parties[-1], (method, outcome)
        share = self._share(party, now)
        granted = outcome in _GRANTED
        always = kind not in share.seen or (granted and caller.authenticated and caller.has_role(OPERATOR))
        reserve = 0 if granted else self._limits.bytes_at_once - self._limits.refusals_bytes_at_once
        if not always and share.bytes_left < reserve + LINE_BYTES_MAX:
            self._unwritten.setdefault(party, _Unwritten(now)).count[kind] += 1
            return
        share.seen.add(kind)
        share.bytes_left -= self._write(
            {
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
        )

    def flush(self, s_max: float) -> bool:
        """Waits for the disk. Returns whether it has taken all lines."""
        return self._file is None or self._file.flush(s_max)

    def close(self) -> None:
        self._tell_unwritten(self._clock())
        if self._file is not None:
            self._file.close()

    def _share(self, party: Party, now: float) -> _Share:
        share = self._shares.pop(party, None) or _Share(now, self._limits.bytes_at_once)
        share.refill(now, self._limits)
        self._shares[party] = share
        if len(self._shares) > PARTIES_MAX:
            self._shares.popitem(last=False)
        return share

    def _tell_unwritten(self, until: float) -> None:
        """Of the parties whose calls are counted since `until` or before."""
        while self._unwritten:
            party, unwritten = next(iter(self._unwritten.items()))
            if unwritten.since > until:
                return
            del self._unwritten[party]
            self._share(party, self._clock()).bytes_left -= self._write(
                {"time": _now(), "party": str(party), "from": unwritten.since_text, "unwritten": unwritten.told()}
            )

    def _write(self, line: Mapping[str, Any]) -> int:
        """Returns how many bytes that takes."""
        shown = {key: _bounded(value) if isinstance(value, str) else value for key, value in line.items()}
        text = json.dumps({key: value for key, value in shown.items() if value not in ("", [])})
        assert len(text) < LINE_BYTES_MAX, "every part of a line is bounded"
        if self._file is None:
            log.info("%s", text)
        else:
            self._file.write(text)
        return len(text) + 1


@dataclass
class _Share:
    at: float
    """When it was filled up last."""
    bytes_left: float
    """Less than zero if what had to be written was more."""
    seen: set[Kind] = field(default_factory=set)
    """What was written of this party since `seen_since`, a day at most."""
    seen_since: float = field(init=False)

    def __post_init__(self) -> None:
        self.seen_since = self.at

    def refill(self, now: float, limits: AuditLimits) -> None:
        gained = (now - self.at) / DAY_S * limits.bytes_a_day
        self.bytes_left = min(limits.bytes_at_once, self.bytes_left + gained)
        self.at = now
        if now - self.seen_since >= DAY_S:
            self.seen, self.seen_since = set(), now


@dataclass
class _Unwritten:
    """Calls of a party that are only counted."""

    since: float
    since_text: str = field(default_factory=_now)
    count: Counter[Kind] = field(default_factory=Counter)

    def told(self) -> dict[str, int]:
        told = {f"{method} {outcome}": count for (method, outcome), count in self.count.most_common(KINDS_TOLD_MAX)}
        others = self.count.total() - sum(told.values())
        return {**told, "others": others} if others else told


def _bounded(text: str) -> str:
    """As JSON it may be twelve times as long as it is; usually only quotes and backslashes take more, twice as much."""
    if 2 * len(text) <= TEXT_BYTES_MAX and text.isascii() and text.isprintable():
        return text
    text = text[:TEXT_BYTES_MAX]
    while len(json.dumps(text)) > TEXT_BYTES_MAX + 2:
        text = text[: len(text) * 3 // 4]
    return text


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
