"""Checks whether a host works once it is set up: first as the service's user, then from outside."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import click

from wiresum.cli.doctor import switch
from wiresum.cli.doctor.finding import Finding, ok, passed, problem, warning
from wiresum.cli.service import Service
from wiresum.cli.setup.plan import USER, HostPlan
from wiresum.cli.setup.steps import COMMAND_S_MAX, Host, SetupError, run

_LOAD = "import sys; from wiresum.join.credentials import load; load(sys.argv[1], serving=True)"


def before_start(plan: HostPlan, host: Host) -> Iterator[Finding]:
    """Can the service's user read its key and its configuration, and does the program accept them?"""
    if plan.tls and plan.unit:
        yield _as_user(host, [sys.executable, "-c", _LOAD, plan.tls], "certificate", f"{USER} can use {plan.tls}")
    if plan.role in ("controller", "standby"):
        check, ask = (
            [sys.executable, "-m", "wiresum.cli", "controller", command, "--config", plan.config]
            for command in ("check", "plan")
        )
        yield _as_user(host, check, "configuration", f"{plan.config} is in order")
        yield from _switches(host, ask)


def start(plan: HostPlan, *, changed: bool) -> Iterator[Finding]:
    """Starts the service by systemd, which waits until it says that it is ready. `changed`: its unit or its
    configuration was written."""
    run(["systemctl", "daemon-reload"])
    run(["systemctl", "enable", plan.unit])
    runs = _is_active(plan.unit)
    if runs and changed and plan.role == "switch":
        what, advice = (
            f"{plan.unit} still runs with its old settings",
            f"wiresum jobs drain, and then systemctl restart {plan.unit}",
        )
        why = "jobs stand still while a switch is started again, and end if that takes 30 s"
        yield warning("service", what, why, advice)
        return
    try:
        if not runs or changed:
            run(["systemctl", "restart", plan.unit])
    except SetupError as error:
        advice = f"its log says why: journalctl -u {plan.unit}"
        yield problem("service", str(error), "nobody can use it before it runs", advice)
    else:
        yield ok("service", f"{plan.unit} runs, and starts with this host")


def _is_active(unit: str) -> bool:
    try:
        run(["systemctl", "is-active", "--quiet", unit])
    except SetupError:
        return False
    return True


def from_outside(plan: HostPlan) -> bool:
    """Prints what it finds, and returns whether it works."""
    if plan.serves_joins:
        return _doctor(plan) == 0
    with Service(plan.endpoint, tls=plan.tls, insecure=not plan.tls) as service:
        reached, found = switch.endpoints(service)
    for finding in found:
        click.echo(finding.text())
    return bool(reached) and passed(found)


def _doctor(plan: HostPlan) -> int:
    """Runs `wiresum doctor`, and returns its exit status."""
    arguments = ["--switch", plan.endpoint, *(["--tls", plan.tls] if plan.tls else ["--insecure"])]
    if plan.role != "worker":
        arguments += ["--check", "switch"]
    click.echo(f"\nwiresum doctor {' '.join(arguments)}")
    command = [sys.executable, "-m", "wiresum.cli", "doctor", *arguments]
    return subprocess.run(command, check=False, timeout=COMMAND_S_MAX).returncode


def _as_user(host: Host, command: list[str], check: str, what: str) -> Finding:
    """Does the command succeed if the service's user runs it?"""
    complaints = _complaints(host, command)
    if not complaints:
        return ok(check, what)
    advice = f"{USER} must be able to read it, and to run {sys.executable}: are its folders for everybody to read?"
    return problem(check, complaints[-1], "the service would end with that at once", advice)


def _switches(host: Host, command: list[str]) -> Iterator[Finding]:
    """About each switch that does not answer. `command`: says which in its errors."""
    complaints = _complaints(host, command)
    if not complaints:
        yield ok("switches", "its switches answer")
    errors = [line for line in complaints if line.startswith("Error: ")]
    for complaint in errors or complaints[-1:]:
        why = "the service begins without it, and uses it when it is there"
        yield warning("switches", complaint.removeprefix("Error: "), why, "set that host up too, if it is not yet")


def _complaints(host: Host, command: list[str]) -> list[str]:
    """What the command says if the service's user runs it and it fails; none: it succeeds."""
    user_id, group_id = host.id_of("passwd", USER), host.id_of("group", USER)
    assert user_id is not None and group_id is not None, "a step made it"
    environment = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "PYTHONPATH")}
    try:
        tried = subprocess.run(
            command, user=user_id, group=group_id, extra_groups=[], capture_output=True, text=True, check=False,
            timeout=COMMAND_S_MAX, cwd="/", env=environment,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return [f"{USER} cannot run wiresum: {error}"]
    if tried.returncode == 0:
        return []
    return (tried.stderr or tried.stdout).strip().splitlines() or ["it says nothing"]
