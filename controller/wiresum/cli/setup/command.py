"""`wiresum setup`: says what it will do, does it, and checks it."""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from wiresum.cli.doctor.finding import Finding, passed
from wiresum.cli.options import ipv4
from wiresum.cli.setup import certificate, checks, plan
from wiresum.cli.setup.plan import (
    BUFFERS,
    CLUSTER_CONFIG,
    FOLDER,
    HOMES,
    RULES,
    UNITS,
    USER,
    Certificate,
    Common,
    HostPlan,
)
from wiresum.cli.setup.steps import File, Host, SetupError, Step
from wiresum.cli.text import visible
from wiresum.join import credentials
from wiresum.join.constants import CONTROL_PORT, P4RUNTIME_PORT
from wiresum.join.credentials import CredentialsError
from wiresum.join.installation import how_to_install

ENDPOINTS = re.compile(r"[A-Za-z0-9._-]+(:\d{1,5})?([,+][A-Za-z0-9._-]+(:\d{1,5})?)*")
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")

T = TypeVar("T")

EPILOG = """\b
Four hosts in five steps: an authority, and a line for each host.
  wiresum ca init pki --address 10.0.0.1 --address 10.0.0.5
  tar -C pki/switch -c . | ssh root@10.0.0.1 /opt/wiresum/bin/wiresum setup switch --address 10.0.0.1 --p4runtime --tls -
  tar -C pki/controller -c . | ssh root@10.0.0.5 /opt/wiresum/bin/wiresum setup controller --address 10.0.0.5 --switch soft1=10.0.0.1 --tls -
  tar -C pki/worker -c . | ssh root@10.0.0.11 /opt/wiresum/bin/wiresum setup worker --switch 10.0.0.5 --user alice --tls -
  tar -C pki/worker -c . | ssh root@10.0.0.12 /opt/wiresum/bin/wiresum setup worker --switch 10.0.0.5 --user alice --tls -
"""  # noqa: E501


@click.group(epilog=EPILOG)
def setup() -> None:
    """Make this host a worker, a switch, a controller or a standby.

    Run it as root, on Debian or a distribution like it. It says what it will do, does it, and checks it: user,
    certificate, configuration, kernel settings, systemd unit. A second run changes nothing that is right already. With
    --dry-run it only says what it would do.
    """


def _common(command: Callable[..., T]) -> Callable[..., T]:
    for option in (
        click.option("--dry-run", is_flag=True, help="Say what would be done, and change nothing."),
        click.option("--replace", is_flag=True, help="Overwrite a configuration that is there already and differs."),
        click.option(
            "--root",
            type=click.Path(file_okay=False, exists=True, path_type=Path),
            default=Path("/"),
            metavar="DIRECTORY",
            help="Set up the system in this folder, such as an image, and start nothing.",
        ),
        click.option("--insecure", is_flag=True, help="Use no certificates, in a network that is trusted."),
        click.option(
            "--tls",
            "source",
            default="",
            metavar="DIRECTORY|-",
            help="This host's certificate, made by `wiresum ca`: a folder, or - for a tar archive of it on standard "
            f"input.  [default: the one in {FOLDER}, if it is there]",
        ),
    ):
        command = option(command)

    @functools.wraps(command)
    def explained(**options: Any) -> T:
        try:
            return command(**options)
        except (SetupError, CredentialsError, OSError) as error:
            raise click.ClickException(str(error)) from error

    return explained


def _endpoints(_context: click.Context, _parameter: click.Parameter, text: str) -> str:
    if not ENDPOINTS.fullmatch(text):
        raise click.BadParameter(f"'{text}' is not HOST:PORT, or several with , or + between them")
    return text


def _switches(context: click.Context, parameter: click.Parameter, texts: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, equals, address = text.partition("=")
        if not equals or not NAME.fullmatch(name) or name in found:
            raise click.BadParameter(f"'{text}' is not NAME=ADDRESS, with a name of its own, like soft1=10.0.0.1")
        found[name] = ipv4(context, parameter, address)
    return found


def _users(_context: click.Context, _parameter: click.Parameter, names: Sequence[str]) -> Sequence[str]:
    for name in names:
        if not NAME.fullmatch(name):
            raise click.BadParameter(f"'{name}' is no user's name")
    return names


@setup.command(epilog="\b\nExample:\n  wiresum setup worker --switch 10.0.0.5 --tls pki/worker --user alice")
@click.option(
    "--switch",
    "endpoint",
    required=True,
    callback=_endpoints,
    metavar="HOST:PORT[,...][+...]",
    help="Where it joins: the controller's or the switch's control endpoint, as in WIRESUM_SWITCH.",
)
@click.option(
    "--user",
    "users",
    multiple=True,
    callback=_users,
    help="A user who trains here, and may read the certificate. Repeatable.",
)
@_common
def worker(endpoint: str, users: Sequence[str], **given: Any) -> None:
    """Set up a worker: certificate, environment, socket buffers. Then sum a tensor through the switch."""
    host, common = _begin("worker", "", **given)
    _carry_out(plan.worker(common, endpoint, users), host, dry_run=given["dry_run"])


@setup.command(
    epilog="""\b
Examples:
  wiresum setup switch --address 10.0.0.1 --tls pki/controller       with a join service of its own
  wiresum setup switch --address 10.0.0.1 --p4runtime --tls pki/switch
"""
)
@click.option("--address", required=True, callback=ipv4, metavar="IPV4", help="This host's address for workers.")
@click.option("--p4runtime", is_flag=True, help="Serve no joins: a controller does, and programs this switch.")
@click.option("--option", "options", multiple=True, help="For `wiresum switch`, like --option=--mtu=9000. Repeatable.")
@_common
def switch(address: str, p4runtime: bool, options: Sequence[str], **given: Any) -> None:
    """Set up a software switch as a systemd service."""
    # To those who join, a switch with its own join service is a controller.
    _check_homes()
    host, common = _begin("switch" if p4runtime else "controller", address, folder="switch", **given)
    wanted = plan.switch(common, address, p4runtime=p4runtime, options=options)
    _carry_out(wanted, host, dry_run=given["dry_run"])


@setup.command(
    epilog="""\b
Examples:
  wiresum setup controller --address 10.0.0.5 --switch soft1=10.0.0.1 --tls pki/controller
  wiresum setup controller --address 10.0.0.5 --config cluster.toml --tls pki/controller
"""
)
@click.option("--address", required=True, callback=ipv4, metavar="IPV4", help="This host's address for workers.")
@click.option(
    "--switch",
    "switches",
    multiple=True,
    callback=_switches,
    metavar="NAME=IPV4",
    help=f"A software switch that serves P4Runtime at port {P4RUNTIME_PORT}. Repeatable.",
)
@click.option(
    "--config",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    help="A configuration of your own instead, for other kinds of switches.",
)
@click.option(
    "--metrics", default="127.0.0.1:9487", show_default=True, callback=_endpoints, metavar="HOST:PORT",
    help="Where it serves figures for Prometheus.",
)  # fmt: skip
@_common
def controller(address: str, switches: dict[str, str], config: Path | None, metrics: str, **given: Any) -> None:
    """Set up the controller of one switch or several as a systemd service."""
    if bool(switches) == bool(config):
        raise click.UsageError("give either --switch, once for each switch, or --config")
    _check_homes()
    host, common = _begin("controller", address, **given)
    content = config.read_bytes() if config else b""
    wanted = plan.controller(common, address, switches, metrics=metrics, config=content)
    _carry_out(wanted, host, dry_run=given["dry_run"])


@setup.command(
    epilog="""\b
Examples:
  wiresum setup standby --address 10.0.0.6 --tls pki/standby
  wiresum setup standby --address 10.0.0.5 --port 43486 --tls pki/controller
"""
)
@click.option("--address", required=True, callback=ipv4, metavar="IPV4", help="This host's address for workers.")
@click.option(
    "--port", default=CONTROL_PORT, show_default=True, type=click.IntRange(1, 65535),
    help="Where it listens: another port than the controller's, if it has the same address.",
)  # fmt: skip
@click.option(
    "--metrics", default="127.0.0.1:9488", show_default=True, callback=_endpoints, metavar="HOST:PORT",
    help="Where it serves figures for Prometheus.",
)  # fmt: skip
@_common
def standby(address: str, port: int, metrics: str, **given: Any) -> None:
    """Set up a second controller on the controller's host, which takes over when the first one ends.

    It has the controller's configuration and state, and a certificate for its own address.
    """
    _check_homes()
    host, common = _begin("controller", address, folder="standby", **given)
    cluster = host.path(f"{FOLDER}/{CLUSTER_CONFIG}")
    if not cluster.is_file():
        raise SetupError(f"there is no {cluster}: set up the controller of this host first (wiresum setup controller)")
    wanted = plan.standby(common, address, port, cluster.read_text(), metrics=metrics)
    _carry_out(wanted, host, dry_run=given["dry_run"])


def _begin(
    role: str, address: str, *, root: Path, source: str, insecure: bool, replace: bool, dry_run: bool, folder: str = ""
) -> tuple[Host, Common]:
    """`address`: of a host that serves. `folder`: the name of the certificate's folder, if it is not the role."""
    host = Host(root.resolve())
    if os.geteuid() != 0 and not dry_run:
        raise SetupError("this makes a user and writes to /etc: run it as root (sudo), or try it with --dry-run")
    if insecure and source:
        raise click.UsageError("--insecure means no certificates: leave out --tls or --insecure")
    files: Certificate = {}
    if source:
        files = certificate.read(source, role, address)
    elif not insecure:
        there = host.path(f"{FOLDER}/{folder or role}")
        if not there.is_dir():
            raise SetupError(
                f"--tls names this host's certificate, which `wiresum ca init` makes (its folder {role}), or "
                f"`wiresum ca issue {role}`; without any: --insecure, in a network that you trust"
            )
        certificate.check(credentials.load(there, serving=bool(address)), role, address)
    return host, Common(_program(), files, insecure, replace)


def _program() -> str:
    """The `wiresum` command of this installation."""
    return str(Path(sys.executable).with_name("wiresum"))


def _check_homes() -> None:
    """Raises a `SetupError` if services cannot see this installation, or its interpreter."""
    for path in (_program(), str(Path(sys.executable).resolve())):
        if path.startswith(HOMES):
            raise SetupError(
                f"{path} is in a home directory, which services cannot read: install wiresum elsewhere, with a Python "
                "that is elsewhere, like `/usr/bin/python3 -m venv /opt/wiresum`, and then `/opt/wiresum/bin/"
                f"{how_to_install('controller')}`"
            )


def _carry_out(wanted: HostPlan, host: Host, *, dry_run: bool) -> None:
    made = [step for step in wanted.steps if _take(step, host, dry_run=dry_run)]
    click.echo(f"\n  let through: {wanted.firewall}")
    if dry_run:
        return
    left = list(_small_buffers()) if host.runs else []
    of_service = (wanted.config, f"{UNITS}/{wanted.unit}.service")
    changed = any(isinstance(step, File) and step.path in of_service for step in made)
    found = list(_check(wanted, host, changed=changed)) if host.runs else []
    for finding in found:
        click.echo(finding.text())
    if wanted.unit and not host.has_systemd:
        left.append(_by_hand(wanted, host))
    if wanted.role == "worker" and not host.runs:
        left.append("wiresum doctor, once that system runs")
    left += [
        f"nft -f {FOLDER}/{name}, which {RULES[name]}; include it in /etc/nftables.conf, to have it after a restart"
        for name in wanted.rules
    ]
    for line in left:
        click.echo(f"  left to you: {line}")
    is_up = host.runs and (not wanted.unit or host.has_systemd)
    if not passed(found) or (is_up and not checks.from_outside(wanted)):
        raise click.exceptions.Exit(1)


def _take(step: Step, host: Host, *, dry_run: bool) -> bool:
    """Carries out the step unless it is done already. Returns whether it changes something."""
    if step.is_so(host):
        _say("is so", step.what)
        return False
    if step.kept and step.is_there(host):
        _say("kept", f"{step.what}, which differs from what would be written (--replace writes it anew)")
        _show(step)
        return False
    if dry_run:
        _say("would be", step.what)
    else:
        step.do(host)
        _say("made", step.what)
    _show(step)
    return True


def _say(verb: str, what: str) -> None:
    click.echo(f"  {verb:<9} {visible(what)}")


def _show(step: Step) -> None:
    if isinstance(step, File) and step.shown:
        for line in step.content.decode(errors="replace").splitlines():
            click.echo(f"              | {visible(line)}")


def _small_buffers() -> Iterator[str]:
    for name, value in BUFFERS.lacking().items():
        why = (
            "cannot be set from here, as in a container"
            if value is None
            else f"is {value}, and could not be raised here"
        )
        yield f"{name} = {BUFFERS.least[name]}, on the machine itself: it {why}"


def _check(wanted: HostPlan, host: Host, *, changed: bool) -> Iterator[Finding]:
    found = list(checks.before_start(wanted, host))
    yield from found
    if wanted.unit and host.has_systemd and passed(found):
        yield from checks.start(wanted, changed=changed)


def _by_hand(wanted: HostPlan, host: Host) -> str:
    if not host.runs:
        return f"systemctl enable --now {wanted.unit}, once that system runs"
    user = f"setpriv --reuid={USER} --regid={USER} --clear-groups"
    return f"there is no systemd here, so nothing starts the service. It is\n    {user} {wanted.command}"
