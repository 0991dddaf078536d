"""The audit log: who asked for what, for which job, and with what result. The log has one JSON object a line.

The log contains no tokens and no keys. Each party has a share of the log, so that no party rolls away what the log says
of others. Parties are those that share connections (shares.py): the caller's tenant, or its certificate if the
certificate has no tenant, or its address if there is no certificate. For a certificate with several tenants the last
one counts. A share is a number of bytes a day, and a number at once. Calls for which the share has no room are counted,
and a line each minute gives their numbers, by method and outcome. Refusals may take a small part of the bytes at once:
the rest is for calls that were granted, which say what jobs began and ended.

Whatever the share, the first call of each party, method and outcome of a day is written, and so is every granted call
with an operator's certificate.
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
"""Bytes that one party may write in the long run."""
SHARE_BYTES_AT_ONCE = 8 << 20
"""Bytes that one party may write at once: more than the joins of 4,096 workers and their ends."""
REFUSALS_BYTES_AT_ONCE = 256 << 10
"""The part of SHARE_BYTES_AT_ONCE for calls that were not granted."""
PARTIES_MAX = 4096
"""How many shares are kept; the share unused for longest goes first."""
UNWRITTEN_S_MAX = 60.0
"""After how long a line reports calls that were only counted."""
KINDS_TOLD_MAX = 32
"""How many pairs of method and outcome such a line names; the others are added up."""
TEXT_BYTES_MAX = 200
"""The most bytes of each text in a line, in JSON's form."""
LINE_BYTES_MAX = 2048


@dataclass(frozen=True)
class AuditLimits:
    """Bytes that one party may write."""

    bytes_a_day: int = SHARE_BYTES_A_DAY
    bytes_at_once: int = SHARE_BYTES_AT_ONCE
    refusals_bytes_at_once: int = REFUSALS_BYTES_AT_ONCE


_SILENT_IF_OK = frozenset(
    {"GetReport", "ListEnded", "Diagnose", "Prove", "Check", "Watch", "List", "Capabilities", "Read"}
)
"""Methods that change nothing, and are called often: `wiresum top` asks every second."""
_GRANTED = frozenset({"OK", "BEGUN", "CANCELLED"})
"""Outcomes of granted calls. CANCELLED: the caller hung up, as a worker does at the end of an Attend."""

Kind = tuple[str, str]
"""Method and outcome of a call."""


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


class AuditLog:
    """Writes the audit log, to a file, or to the process's log if there is no path."""

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
        """Counted calls by party, starting with the party whose calls have been counted for longest."""

    def report(self) -> join.AuditReport:
        if self._file is None:
            return join.AuditReport()
        return join.AuditReport(trouble=self._file.trouble, lines_lost=self._file.lines_lost)

    def write(self, caller: Caller, method: str, request: Any, outcome: str, why: str, seconds: float) -> None:
        """Writes a call, or counts it. `outcome`: the name of a gRPC status code, the reason of a refusal, or BEGUN.
        `request`: may be None. Does not wait for the disk."""
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
        """Waits for the disk, at most `s_max`. True if the disk has taken all lines."""
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
        """Writes a line for each party whose calls have been counted since `until` or before."""
        while self._unwritten:
            party, unwritten = next(iter(self._unwritten.items()))
            if unwritten.since > until:
                return
            del self._unwritten[party]
            self._share(party, self._clock()).bytes_left -= self._write(
                {"time": _now(), "party": str(party), "from": unwritten.since_text, "unwritten": unwritten.told()}
            )

    def _write(self, line: Mapping[str, Any]) -> int:
        """Writes a line. Returns its number of bytes."""
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
    """When the share was last refilled."""
    bytes_left: float
    """Bytes left; less than zero if lines that are always written took more."""
    seen: set[Kind] = field(default_factory=set)
    """Kinds of calls of this party that were written since `seen_since`, which is a day ago at most."""
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
    """Cuts a text to TEXT_BYTES_MAX in JSON's form, which may be twelve times as long as the text; usually only quotes
    and backslashes take more, twice as much."""
    if 2 * len(text) <= TEXT_BYTES_MAX and text.isascii() and text.isprintable():
        return text
    text = text[:TEXT_BYTES_MAX]
    while len(json.dumps(text)) > TEXT_BYTES_MAX + 2:
        text = text[: len(text) * 3 // 4]
    return text


def _subject(request: Any) -> dict[str, Any]:
    """The fields of a request that the log has, without secrets."""
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
