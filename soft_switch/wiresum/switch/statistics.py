"""Statistics of a running switch, as lines of text and as a JSON file."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import os
import time
from collections.abc import Callable
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
        self._trouble = ""
        """Why the file cannot be written; empty if it can."""
        self._started = self._line_last_at = time.monotonic()
        self._before = device.stats()
        self._intervals_s: dict[Callable[[], None], float] = {}
        if line_interval_s is not None:
            self._intervals_s[self._print_line] = line_interval_s
        if json_path is not None:
            self._intervals_s[self.update_file] = JSON_INTERVAL_S
            try:
                self._write_json(json_path)
            except OSError as error:
                raise click.ClickException(f"cannot write the statistics to {json_path}: {error.strerror}") from error
        self._due_at = {report: self._started + interval_s for report, interval_s in self._intervals_s.items()}

    def due_in_s(self) -> float:
        """Infinite if nothing is to be reported."""
        return max(0.0, min(self._due_at.values(), default=math.inf) - time.monotonic())

    def report_if_due(self) -> None:
        now = time.monotonic()
        for report, due_at in self._due_at.items():
            if now >= due_at:
                report()
                self._due_at[report] = now + self._intervals_s[report]

    def update_file(self) -> None:
        """Rewrites the file, if there is one. A full disk must not end the jobs of the switch."""
        if self._json_path is None:
            return
        trouble = ""
        try:
            self._write_json(self._json_path)
        except OSError as error:
            trouble = error.strerror or str(error)
        if trouble != self._trouble:
            log.warning("the statistics in %s: %s", self._json_path, trouble or "they can be written again")
        self._trouble = trouble

    def _print_line(self) -> None:
        stats, now = self._device.stats(), time.monotonic()
        say(_line(stats, self._before, now - self._line_last_at))
        self._before, self._line_last_at = stats, now

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
