"""`wiresum switch`: a software switch, with the service at which workers join it or with a P4Runtime server."""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wiresum.controller.driver import Endpoint
from wiresum.controller.logs import log_options, say
from wiresum.controller.serving import raise_file_limit, stop_on_signals
from wiresum.controller.supervisor import Supervisor
from wiresum.join import hosts
from wiresum.join.constants import (
    CONTROL_PORT,
    LANES_MAX,
    SWITCH_PORT,
    SWITCH_SLOTS_MAX,
    THREADS_MAX,
)
from wiresum.join.installation import how_to_install
from wiresum.join.lanes import lanes_of_mtu
from wiresum.switch.parent import Parent
from wiresum.switch.software_switch import SoftwareSwitch

if TYPE_CHECKING:
    from wiresum.controller import JoinServer
    from wiresum.switch.p4runtime import P4RuntimeServer

DEFAULT_CONTROL = f"127.0.0.1:{CONTROL_PORT}"
WAIT_S_MAX = 0.5
"""The main thread's longest sleep between heartbeats."""

EPILOG = """\
\b
Examples:
  wiresum switch --control 10.0.0.1:43487 --tls /etc/wiresum/controller
      one switch for the workers of a network, at its UDP ports 43488-43503
  wiresum switch --control 10.0.0.1:43487 --insecure --metrics 127.0.0.1:9464
      the same without certificates, in a network that is trusted; with figures for Prometheus
  wiresum switch --p4runtime 10.0.0.1:9559 --tls /etc/wiresum/switch
      a switch without a service: `wiresum controller` programs it, beside others
"""


@click.command(epilog=EPILOG)
@click.option(
    "--control",
    metavar="HOST:PORT",
    help=f"Where workers join (TCP). Port 0 takes a free one.  [default: {DEFAULT_CONTROL}]",
)
@click.option(
    "--p4runtime",
    metavar="HOST:PORT",
    help="Serve P4Runtime here (TCP), and no joins: a controller programs this switch and serves the joins.",
)
@click.option(
    "--tls",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder with ca.crt, tls.crt and tls.key, made by `wiresum ca`: only clients with a certificate may connect.",
)
@click.option("--insecure", is_flag=True, help="Use no certificates, although other machines can connect.")
@click.option("--metrics", metavar="HOST:PORT", help="Serve figures for Prometheus here, over HTTP at /metrics.")
@click.option("--bind", metavar="IPV4", help="Address of the data ports.  [default: the host of --control]")
@click.option(
    "--port",
    type=click.IntRange(0, 65536 - THREADS_MAX),
    default=SWITCH_PORT,
    show_default=True,
    help=f"First of {THREADS_MAX} consecutive UDP data ports. 0 takes some free block.",
)
@click.option(
    "--threads",
    type=click.IntRange(0, THREADS_MAX),
    default=0,
    help="Data threads.  [default: half of the cores, at most 4; over AF_XDP and DPDK 1]",
)
@click.option(
    "--slots", type=click.IntRange(1, SWITCH_SLOTS_MAX), default=4096, show_default=True, help="Slots for all jobs."
)
@click.option(
    "--lanes",
    type=click.IntRange(1, LANES_MAX),
    default=lanes_of_mtu(1500),
    show_default=True,
    help=f"32-bit words of the largest packet; {lanes_of_mtu(9000)} fit an MTU of 9000 bytes, the default one of 1500.",
)
@click.option(
    "--multicast",
    metavar="IPV4",
    help="Send each result once, to a multicast group, and let the network copy it. This is the group of job 0, like "
    "239.192.0.0; that of job j is j addresses further.  [default: a copy to each worker]",
)
@click.option(
    "--transport",
    metavar="SPEC",
    default="udp",
    show_default=True,
    help="How packets reach the network, as WIRESUM_TRANSPORT says it for workers: udp, udp:plain, xdp, xdp:eth1, or "
    "'dpdk:-a 0000:01:00.0' (docs/transports.md).",
)
@click.option("--fallback", type=click.IntRange(1), hidden=True)  # for a worker that has this number: parent.py
@log_options
def switch(
    control: str | None,
    p4runtime: str | None,
    tls: Path | None,
    insecure: bool,
    metrics: str | None,
    bind: str | None,
    lanes: int,
    fallback: int | None,
    **settings: Any,
) -> None:
    """Run a software switch, which sums the packets of workers.

    The switch serves the workers' joins too: start it, and then the workers, with WIRESUM_SWITCH set to what --control
    says. With --p4runtime the switch serves no joins, and does what a controller writes into its tables, as bmv2 and a
    Tofino do: `wiresum controller` then serves the joins, for any number of switches.

    It has no quotas: a tenant may have all slots and jobs that are free, as at a controller whose
    configuration does not say how many under [[tenant]]. Serve tenants that do not trust each other with a controller.

    The switch serves until SIGINT or SIGTERM. With the join service, the workers of every job are then told that it
    ends; with P4Runtime, the controller finds out that the switch is gone.
    """
    _check_modes(control, p4runtime, settings["multicast"])
    parent = None if fallback is None else Parent.at_stdin(fallback)
    if settings["transport"].startswith("dpdk") and bind is None:
        raise click.UsageError("--transport dpdk needs --bind, the IPv4 address that the switch is to have there")
    if p4runtime is not None:
        serves = _endpoint("--p4runtime", p4runtime)
    else:
        serves = _endpoint("--control", DEFAULT_CONTROL if control is None else control)
    metrics_at = None if metrics is None else _endpoint("--metrics", metrics)
    with contextlib.ExitStack() as cleanup:
        raise_file_limit()
        supervisor = Supervisor()
        cleanup.callback(supervisor.stopping)
        stop = cleanup.enter_context(stop_on_signals())
        running = _start_switch(bind=bind or serves.address, lanes_max=lanes, **settings)
        cleanup.callback(running.close)
        try:
            service: JoinServer | P4RuntimeServer
            if p4runtime is None:
                service, where = _serve_joins(cleanup, running, serves, tls, parent, insecure=insecure)
            else:
                service, where = _serve_p4runtime(cleanup, running, serves, tls, insecure=insecure)
            if metrics_at is not None:
                where += _serve_metrics(cleanup, running, service, tls, metrics_at)
        # ValueError: certificates that are missing, or cannot be used.
        except (OSError, ValueError) as error:
            raise click.ClickException(str(error)) from error
        first = running.endpoint.port
        ready = (
            f"ready: {where}, data {running.endpoint.address}:{first}-{first + THREADS_MAX - 1} "
            f"({running.stats().threads} threads, {running.sizes.slots} slots, {running.sizes.lanes_max} lanes, "
            f"{running.stats().transport})"
        )
        say(ready)
        supervisor.ready(ready)
        while not stop.wait(WAIT_S_MAX):
            if parent is not None and parent.is_over(running, time.monotonic()):
                break
            if service.is_alive:
                supervisor.beat()


def _check_modes(control: str | None, p4runtime: str | None, multicast: str | None) -> None:
    if p4runtime is not None and control is not None:
        raise click.UsageError(
            "--control and --p4runtime exclude each other: with P4Runtime the controller serves joins"
        )
    if p4runtime is not None and multicast is not None:
        raise click.UsageError(
            "--multicast is for a switch that serves joins itself: give the controller's configuration multicast = "
            f"{multicast!r}, under this [[switch]], in place of it"
        )


def _endpoint(option: str, text: str) -> Endpoint:
    host, colon, port_text = text.rpartition(":")
    if not colon or not port_text.isascii() or not port_text.isdigit() or int(port_text) > 65535:
        raise click.BadParameter(f"'{text}' is not HOST:PORT", param_hint=option)
    try:
        address = hosts.addresses_of(host, socket.AF_INET)[0]
    except OSError as error:
        raise click.BadParameter(f"cannot find an IPv4 address of '{host}': {error}", param_hint=option) from error
    hosts.warn_if_only_here(option, host)
    return Endpoint(address, int(port_text))


def _start_switch(**settings: Any) -> SoftwareSwitch:
    try:
        return SoftwareSwitch(**settings)
    except (ValueError, RuntimeError) as error:
        raise click.ClickException(f"cannot start the switch: {error}") from error
    except OSError as error:
        hints = {
            errno.EADDRINUSE: "Is another switch running there? Stop it, or choose another --port.",
            errno.EADDRNOTAVAIL: "This machine has no such address: choose another --control (--p4runtime), or --bind.",
        }
        hint = hints.get(error.errno or 0, "")
        raise click.ClickException(f"{error.strerror or error}. {hint}".rstrip()) from error


def _serve_joins(
    cleanup: contextlib.ExitStack,
    device: SoftwareSwitch,
    at: Endpoint,
    tls: Path | None,
    parent: Parent | None,
    *,
    insecure: bool,
) -> tuple[JoinServer, str]:
    """Starts the join service. Returns the service, and its address as a text. Raises `OSError` or `ValueError`; so do
    the functions below."""
    from wiresum.controller import JoinServer
    from wiresum.controller.config import SecurityConfig
    from wiresum.controller.security import Security

    security = Security(SecurityConfig(tls=tls, insecure=insecure), None if parent is None else parent.listener)
    cleanup.callback(security.close)
    served = None if parent is None else parent.served(tls)
    service = JoinServer(device, security=security, served=served)
    port = service.start(*at)
    cleanup.callback(service.stop)
    return service, f"control {at.address}:{port}"


def _serve_p4runtime(
    cleanup: contextlib.ExitStack,
    device: SoftwareSwitch,
    at: Endpoint,
    tls: Path | None,
    *,
    insecure: bool,
) -> tuple[P4RuntimeServer, str]:
    try:
        from wiresum.switch.p4runtime import P4RuntimeServer
    except ImportError as error:
        raise ValueError(f"--p4runtime needs {error.name}: {how_to_install('controller')}") from error
    server = P4RuntimeServer(device, tls=tls, insecure=insecure)
    cleanup.callback(server.stop)
    port = server.start(*at)
    return server, f"P4Runtime {at.address}:{port}"


def _serve_metrics(
    cleanup: contextlib.ExitStack,
    device: SoftwareSwitch,
    service: JoinServer | P4RuntimeServer,
    tls: Path | None,
    at: Endpoint,
) -> str:
    """Serves metrics of the data plane, and of jobs if the service knows them. Returns their address as a text."""
    try:
        from wiresum.controller import JoinServer, metrics
        from wiresum.switch.metrics import DataplaneCollector
    except ImportError as error:
        raise ValueError(f"--metrics needs {error.name}: {how_to_install('controller')}") from error
    collectors = [DataplaneCollector(device.stats), metrics.CertificateCollector({"service": tls})]
    if isinstance(service, JoinServer):
        collectors += [metrics.LoopCollector(service), metrics.ReportCollector(service.report)]
    server = metrics.serve(*at, *collectors)
    cleanup.callback(server.close)
    return f", metrics {at.address}:{server.port}"
