"""`wiresum switch`: a software switch and its join service in one process."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import logging
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import click

from wiresum.controller import JoinServer
from wiresum.controller.serving import stop_on_signals
from wiresum.join import DEFAULT_CONTROL_PORT
from wiresum.switch.software_switch import DATA_PORT, LANES_MAX, PORTS, SoftwareSwitch, SwitchStats, lanes_for_mtu

log = logging.getLogger(__name__)

JSON_INTERVAL_S = 1.0
WAIT_S_MAX = 0.5
"""Longest sleep of the main thread between two looks at what is due."""


@click.command()
@click.option(
    "--control",
    metavar="HOST:PORT",
    default=f"127.0.0.1:{DEFAULT_CONTROL_PORT}",
    show_default=True,
    help="Where workers join (TCP). Port 0 takes a free one.",
)
@click.option("--bind", metavar="IPV4", help="Address of the data ports.  [default: the host of --control]")
@click.option(
    "--port",
    type=click.IntRange(0, 65536 - PORTS),
    default=DATA_PORT,
    show_default=True,
    help=f"First of {PORTS} consecutive UDP data ports. 0 takes some free block.",
)
@click.option(
    "--threads",
    type=click.IntRange(0, PORTS),
    default=0,
    help="Data threads.  [default: half of the cores, at most 4]",
)
@click.option("--slots", type=click.IntRange(1, 1 << 20), default=4096, show_default=True, help="Slots for all jobs.")
@click.option(
    "--mtu",
    type=click.IntRange(84, 65536),
    default=1500,
    show_default=True,
    help="IP packets of the network hold this many bytes; sets the lanes.",
)
@click.option("--lanes", type=click.IntRange(1, LANES_MAX), help="32-bit lanes of a packet, instead of --mtu.")
@click.option(
    "--spin",
    "spin_us",
    metavar="MICROSECONDS",
    type=click.IntRange(-1, 1_000_000),
    default=-1,
    help="Poll this long before sleeping.  [default: by the number of cores]",
)
@click.option("--offload/--no-offload", default=True, show_default=True, help="Use UDP GSO and GRO.")
@click.option(
    "--stats-interval",
    "stats_interval_s",
    metavar="SECONDS",
    type=click.FloatRange(min=0.1),
    help="Print a line of statistics this often.",
)
@click.option(
    "--json-stats",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Keep statistics in this file: rewritten every second and at the end.",
)
@click.option("--verbose", "-v", is_flag=True, help="Log what the join service does.")
def switch(
    control: str,
    bind: str | None,
    port: int,
    threads: int,
    slots: int,
    mtu: int,
    lanes: int | None,
    spin_us: int,
    offload: bool,
    stats_interval_s: float | None,
    json_stats: Path | None,
    verbose: bool,
) -> None:
    """Run a software switch, with the service at which workers join it.

    It serves until SIGINT or SIGTERM, and then tells the workers of every job that it ends.
    """
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    control_host, control_port = _parse_control(control)
    lanes_max = lanes or min(lanes_for_mtu(mtu), LANES_MAX)
    with contextlib.ExitStack() as cleanup:
        stop = cleanup.enter_context(stop_on_signals())
        device = _start_switch(
            bind=bind or control_host,
            port=port,
            threads=threads,
            slots=slots,
            lanes_max=lanes_max,
            spin_us=spin_us,
            offload=offload,
        )
        cleanup.callback(device.close)
        reporter = _Reporter(device, stats_interval_s, json_stats)
        cleanup.callback(reporter.finish)
        service = JoinServer(device)
        try:
            control_port = service.start(control_host, control_port)
        except OSError as error:
            raise click.ClickException(str(error)) from error
        cleanup.callback(service.stop)
        first = device.endpoint.port
        click.echo(
            f"ready: control {control_host}:{control_port}, data {device.endpoint.address}:{first}-{first + PORTS - 1} "
            f"({device.stats().threads} threads, {slots} slots, {lanes_max} lanes)"
        )
        while not stop.wait(WAIT_S_MAX if reporter.idle else min(WAIT_S_MAX, reporter.due_in_s())):
            reporter.report_if_due()


def _parse_control(control: str) -> tuple[str, int]:
    """Host as a dotted IPv4 address, and port."""
    host, colon, port_text = control.rpartition(":")
    if not colon or not port_text.isascii() or not port_text.isdigit() or int(port_text) > 65535:
        raise click.BadParameter(f"'{control}' is not HOST:PORT", param_hint="--control")
    try:
        return socket.gethostbyname(host), int(port_text)
    except OSError as error:
        raise click.BadParameter(f"cannot find an IPv4 address of '{host}': {error}", param_hint="--control") from error


def _start_switch(
    *, bind: str, port: int, threads: int, slots: int, lanes_max: int, spin_us: int, offload: bool
) -> SoftwareSwitch:
    try:
        return SoftwareSwitch(
            bind=bind,
            port=port,
            threads=threads,
            slots=slots,
            lanes_max=lanes_max,
            spin_us=spin_us,
            offload=offload,
        )
    except ValueError as error:
        raise click.ClickException(f"cannot start the switch: {error}") from error
    except OSError as error:
        hints = {
            errno.EADDRINUSE: "Is another switch running there? Stop it, or choose another --port.",
            errno.EADDRNOTAVAIL: "This machine has no such address: choose another --bind.",
        }
        hint = hints.get(error.errno or 0, "")
        raise click.ClickException(f"{error.strerror or error}. {hint}".rstrip()) from error


class _Reporter:
    """Writes statistics as lines and as a file, each when its time has come."""

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
            click.echo(_line(stats, self._before, now - self._line_last_at))
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
        """Jobs run on the switch: a full disk is no reason to end them."""
        try:
            self._write_json(path)
        except OSError as error:
            log.warning("cannot write the statistics to %s: %s", path, error.strerror)

    def _write_json(self, path: Path) -> None:
        report = {"uptime_s": time.monotonic() - self._started, **dataclasses.asdict(self._device.stats())}
        # Readers never see half a file: it is written beside and moved into place.
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
