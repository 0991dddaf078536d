"""Statistics of a running switch, as lines of text and as a JSON file."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

import click

from wiresum.controller.logs import say
from wiresum.switch.software_switch import SoftwareSwitch, SwitchStats

log = logging.getLogger(__name__)

JSON_INTERVAL_S = 1.0


class Reporter:
    """Prints a line of statistics, and rewrites a file of them, each at its interval."""

    def __init__(self, device: SoftwareSwitch, line_interval_s: float | None, json_path: Path | None) -> None:
        self._device = device
        self._json_path = json_path
        self._line_interval_s = line_interval_s
        self._started = time.monotonic()
        self._line_last_at = self._json_last_at = self._started
        self._before = device.stats()
        if json_path is not None:
            try:
                self._write_json(json_path)
            except OSError as error:
                raise click.ClickException(f"cannot write the statistics to {json_path}: {error.strerror}") from error

    @property
    def idle(self) -> bool:
        return self._json_path is None and self._line_interval_s is None

    def due_in_s(self) -> float:
        return max(0.0, min(self._due_at()) - time.monotonic())

    def report_if_due(self) -> None:
        now = time.monotonic()
        if self._line_interval_s is not None and now >= self._line_last_at + self._line_interval_s:
            stats = self._device.stats()
            say(_line(stats, self._before, now - self._line_last_at))
            self._before, self._line_last_at = stats, now
        if self._json_path is not None and now >= self._json_last_at + JSON_INTERVAL_S:
            self._update_json(self._json_path)
            self._json_last_at = now

    def finish(self) -> None:
        if self._json_path is not None:
            self._update_json(self._json_path)

    def _due_at(self) -> Iterator[float]:
        if self._line_interval_s is not None:
            yield self._line_last_at + self._line_interval_s
        if self._json_path is not None:
            yield self._json_last_at + JSON_INTERVAL_S

    def _update_json(self, path: Path) -> None:
        """A full disk must not end the jobs of the switch."""
        try:
            self._write_json(path)
        except OSError as error:
            log.warning("cannot write the statistics to %s: %s", path, error.strerror)

    def _write_json(self, path: Path) -> None:
        report = {"uptime_s": time.monotonic() - self._started, **dataclasses.asdict(self._device.stats())}
        # Atomically: readers never see half a file.
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            beside.write_text(json.dumps(report, indent=2) + "\n")
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)


def _line(now: SwitchStats, before: SwitchStats, seconds: float) -> str:
    def rate(after: float, earlier: float) -> float:
        return (after - earlier) / seconds

    dropped = sum(now.packets[reason] - before.packets[reason] for reason in ("unknown", "malformed", "out_of_lease"))
    late = sum(now.packets[reason] - before.packets[reason] for reason in ("duplicate", "stale"))
    return (
        f"{time.strftime('%H:%M:%S')}  jobs {now.jobs_now}"
        f"  results/s {rate(now.results, before.results):,.0f}"
        f"  in/s {rate(now.datagrams_received, before.datagrams_received):,.0f}"
        f"  out/s {rate(now.datagrams_sent, before.datagrams_sent):,.0f}"
        f"  resent {now.packets['resent'] - before.packets['resent']:,}"
        f"  late {late:,}  refused {dropped:,}  unsent {now.send_failures - before.send_failures:,}"
        f"  cpu {100 * rate(now.cpu_seconds, before.cpu_seconds):.0f}%"
    )
