"""This module decides when an absent join service means the end of the job for this worker.

A job needs its service for nothing but its end. So while the switch sends results, a worker goes on without the service
for as long as necessary. Once nothing comes from the switch either, these bounds hold, of which the grant says the
first two (docs/operations.md, "Who is lost, and when"):

- connections to the service's address are refused, or a standby answers: the service's process has ended, and may be
  started again (`reattach_s`). If the switch does not answer what this worker sends, or the worker stands still, and
  the job has a fallback, the bound is `FALLBACK_S`;
- nothing answers at all: the service's host may be frozen or cut off (the longer of `reattach_s` and `lost_s`);
- nothing answers at all, and this host has lost the way (its address, its link, its route): `lost_s`;
- nothing answers at all, and the switch does not answer what this worker sends: `CUT_OFF_S`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from wiresum.agent.errors import SwitchUnreachableError, WiresumError
from wiresum.agent.statistics import NO_TRAFFIC, TrafficStats
from wiresum.join import STANDS_BY, JoinReply

log = logging.getLogger(__name__)

ABSENCE_SAID_AFTER_S = 2.0
STANDSTILL_SAID_AFTER_S = 30.0
CUT_OFF_S = 120.0
FALLBACK_S = 5.0  # R7.24
"""The bound is longer than a controller takes to start. A switch is silent too while another worker does not send."""
LOOK_S, STILL_LOOKS, LOOKS_MAX = 0.01, 10, 500
"""Last results: the pause between two looks, how many looks without a new one suffice, and the most looks."""


class Silence:
    """Measures how long the switch has been silent. `now` is in seconds, of any clock."""

    def __init__(self, traffic: Callable[[], TrafficStats], now: float) -> None:
        self._read_traffic = traffic
        self.reset(now)

    def reset(self, now: float) -> None:
        """Restarts the silence at `now`."""
        self._traffic, self._since = self._read_traffic(), now
        self.unanswered = 0
        """Packets that this worker has sent during the silence."""

    def seconds(self, now: float) -> float:
        """Returns for how many seconds nothing has come."""
        traffic = self._read_traffic()
        if traffic.bytes_received != self._traffic.bytes_received:
            self._since = now
            self.unanswered = 0
        else:
            self.unanswered += traffic.packets_sent - self._traffic.packets_sent
        self._traffic = traffic
        return now - self._since


class Standstill:
    """Warns once while nothing comes from the switch though this worker sends, and says once that sums come again.

    No rule ends a job for that: another worker may just be late. Used by one thread."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._traffic = NO_TRAFFIC
        self._since: float | None = None
        """Since when this worker has sent without an answer; None: it has not."""
        self._said = False

    def look(self, traffic: TrafficStats, now: float) -> None:
        """`now` is in seconds, of any clock."""
        before, self._traffic = self._traffic, traffic
        if traffic.bytes_received != before.bytes_received:
            if self._said:
                log.warning("something comes from %s again", self._where)
            self._since, self._said = None, False
        elif self._since is None:
            self._since = now if traffic.packets_sent != before.packets_sent else None
        elif now >= self._since + STANDSTILL_SAID_AFTER_S and not self._said:
            self._said = True
            log.warning(
                "for %.0f s nothing has come from %s, though this worker sends: another worker is late, or packets do "
                "not pass. `wiresum doctor --check path` tries the way from this host; with an operator's certificate "
                "`wiresum doctor --check job` says for whom the job waits",
                now - self._since, self._where,
            )  # fmt: skip


def await_last_results(traffic: Callable[[], TrafficStats], pause: Callable[[float], bool]) -> None:
    """Waits for late results: collectives that a worker which has left took part in still complete, and this process
    may have stood still since. The loop counts looks, not seconds, because the process may stand still again. `pause`
    waits for so many seconds, and returns whether this worker leaves, too."""
    results, still = traffic().results, 0
    for _ in range(LOOKS_MAX):
        if still == STILL_LOOKS or pause(LOOK_S):
            return
        before, results = results, traffic().results
        still = still + 1 if results == before else 0


class Absence:
    """The service's absence, since anything was last heard of the service. `now` is in seconds, of any clock."""

    def __init__(
        self,
        where: str,
        grant: JoinReply,
        traffic: Callable[[], TrafficStats],
        why_cut_off: Callable[[], str],
        now: float,
        *,
        has_fallback: bool = False,
    ) -> None:
        """`why_cut_off` says what is wrong with this host's own way to the switch; empty if nothing is known."""
        self._reattach_s, self._lost_s = grant.reattach_ms / 1000, grant.heartbeat_lost_ms / 1000
        self._unanswered_s = min(self._reattach_s, FALLBACK_S) if has_fallback else self._reattach_s
        """The bound for a service that refuses, and a switch that gets no packets or does not answer."""
        self.cause = ""
        """gRPC's text for why the last connection failed."""
        self._where = where
        self._why_cut_off = why_cut_off
        self._said = False
        self._heard_at = now
        self._silence = Silence(traffic, now)

    def hear(self, endpoint: str, now: float) -> None:
        """Notes that the service was heard from, at this endpoint."""
        if self._said:
            log.warning("the join service answers again, at %s", endpoint)
        self._said = False
        self._heard_at = now
        self._silence.reset(now)

    def error(self, now: float, *, stands_still: bool = False) -> WiresumError | None:
        """Returns None while the service may still come back. `stands_still`: the worker sends nothing before it has
        heard of the service."""
        away_s, quiet_s = now - self._heard_at, self._silence.seconds(now)
        unanswered = self._silence.unanswered
        refused = "refused" in self.cause or STANDS_BY in self.cause
        reattach_s = self._unanswered_s if unanswered or stands_still else self._reattach_s
        if quiet_s >= (reattach_s if refused else max(self._reattach_s, self._lost_s)):
            return SwitchUnreachableError(
                f"{self._where} does not answer, {away_s:.0f} s after it was last heard of ({self.cause}), and nothing "
                f"comes from the switch: it was stopped, or the network to it fails. Look at its log, and start the "
                f"job again"
            )
        if not refused and quiet_s >= self._lost_s and (why := self._why_cut_off()):
            return SwitchUnreachableError(
                f"this worker is cut off from {self._where}: {why}. For {quiet_s:.0f} s nothing came from the service "
                f"nor from the switch. Mend this host's network, and start the job again"
            )
        if not refused and quiet_s >= CUT_OFF_S and unanswered:
            return SwitchUnreachableError(
                f"this worker is cut off: for {quiet_s:.0f} s neither {self._where} ({self.cause}) nor the switch "
                f"has answered, though {unanswered} packets were sent. Look at the network between them and this host, "
                f"and start the job again"
            )
        self._say(away_s)
        return None

    def left_s(self, now: float) -> float:
        """Returns for how many more seconds a service that was killed may still be started again."""
        return self._reattach_s - self._silence.seconds(now)

    def _say(self, away_s: float) -> None:
        if away_s >= ABSENCE_SAID_AFTER_S and not self._said:
            self._said = True
            log.warning(
                "%s has not answered for %.0f s (%s); the job goes on without it, while the switch sends results and "
                "for up to %.0f s after",
                self._where, away_s, self.cause or "silence", self._reattach_s,
            )  # fmt: skip
