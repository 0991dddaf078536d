"""What belongs on a host of each role. Pure: from the wishes to steps, and to what nobody but its operator can do.

A configuration that is there already and differs may be somebody's work, and is kept unless `replace` is said. What
nobody should edit (units, which have drop-ins for that) is written anew.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

from wiresum.cli.setup.steps import File, Folder, Link, Member, Settings, SetupError, Step, User
from wiresum.join.constants import CONTROL_PORT, P4RUNTIME_PORT, SWITCH_PORT, THREADS_MAX
from wiresum.join.credentials import KEY_FILE

USER = "wiresum"
FOLDER = "/etc/wiresum"
STATE, LOGS = "/var/lib/wiresum", "/var/log/wiresum"
UNITS = "/etc/systemd/system"
PROFILE = "/etc/profile.d/wiresum.sh"
COMMAND = "/usr/local/bin/wiresum"
UNIT_PROGRAM = "/opt/wiresum/bin/wiresum"
"""As the units say it."""
DATA_PORTS = f"{SWITCH_PORT}-{SWITCH_PORT + THREADS_MAX - 1}"
BUFFERS = Settings("/etc/sysctl.d/60-wiresum.conf", {"net.core.rmem_max": 8388608, "net.core.wmem_max": 8388608})
"""Datagrams wait there while their thread is not on a core."""
HOMES = ("/home/", "/root/")
"""Which the units hide from their services."""

Certificate = Mapping[str, bytes]
"""The three files of a TLS directory, by name."""


@dataclass(frozen=True)
class HostPlan:
    role: str
    steps: Sequence[Step]
    firewall: str
    """What must be let through."""
    tls: str = ""
    """The folder with the certificate; empty: none."""
    unit: str = ""
    """The service's name; empty: there is none."""
    command: str = ""
    """The service, as its unit starts it, for a shell."""
    endpoint: str = ""
    """Of the service that is to be looked at in the end."""
    config: str = ""
    """What the service reads when it starts."""
    serves_joins: bool = True
    """Is `endpoint` a join service, and not only P4Runtime?"""


def worker(
    program: str, switch: str, certificate: Certificate, users: Sequence[str], *, insecure: bool, replace: bool
) -> HostPlan:
    """`program`: where the command is."""
    settings = {"WIRESUM_SWITCH": switch}
    settings |= {"WIRESUM_INSECURE": "1"} if insecure else {"WIRESUM_TLS": f"{FOLDER}/worker"}
    lines = [f"{name}={value}" for name, value in settings.items()]
    exports = [f"export {name}={shlex.quote(value)}" for name, value in settings.items()]
    steps: list[Step] = [
        User(USER),
        *(Member(user, USER) for user in users),
        Folder(FOLDER, 0o755, "root", USER),
        *_certificate("worker", certificate),
        _text(f"{FOLDER}/worker.env", lines, "For containers and units of trainings.", kept=not replace),
        _text(PROFILE, exports, "For those who train here.", kept=not replace),
        *_everywhere(program, replace=replace),
    ]
    at = "to this host, at any port (WIRESUM_PORTS keeps it to some)"
    firewall = f"UDP from the switches' ports {DATA_PORTS} {at}; out of it, those and TCP to {switch}"
    tls = "" if insecure else f"{FOLDER}/worker"
    return HostPlan("worker", steps, firewall, tls, endpoint=switch)


def switch(
    program: str,
    address: str,
    certificate: Certificate,
    *,
    p4runtime: bool,
    options: Sequence[str],
    insecure: bool,
    replace: bool,
) -> HostPlan:
    """`options`: of `wiresum switch`, besides."""
    tls = "" if insecure else f"{FOLDER}/switch"
    port = P4RUNTIME_PORT if p4runtime else CONTROL_PORT
    where = ["--p4runtime" if p4runtime else "--control", f"{address}:{port}"]
    words = [*where, *(["--insecure"] if insecure else ["--tls", tls]), *options]
    variable = f"WIRESUM_SWITCH_OPTIONS={shlex.join(words)}"
    unit = _unit("wiresum-switch.service", program)
    steps: list[Step] = [
        User(USER),
        Folder(FOLDER, 0o755, "root", USER),
        *_certificate("switch", certificate),
        _text(f"{FOLDER}/switch.env", [variable], "wiresum switch --help says what there is.", kept=not replace),
        *_everywhere(program, replace=replace),
        unit,
    ]
    who = "the controllers alone" if p4runtime else "workers and operators"
    firewall = f"TCP {port} from {who}; UDP {DATA_PORTS} from and to the workers"
    command = _command(unit).replace("$WIRESUM_SWITCH_OPTIONS", shlex.join(words))
    return HostPlan(
        "switch",
        steps,
        firewall,
        tls,
        unit="wiresum-switch",
        command=command,
        endpoint=f"{address}:{port}",
        config=f"{FOLDER}/switch.env",
        serves_joins=not p4runtime,
    )


def controller(
    program: str,
    address: str,
    switches: Mapping[str, str],
    certificate: Certificate,
    *,
    config: bytes = b"",
    metrics: str,
    insecure: bool,
    replace: bool,
) -> HostPlan:
    """`switches`: the software switches' addresses by name. `config`: instead of what follows from these."""
    tls = "" if insecure else f"{FOLDER}/controller"
    wanted = config or _cluster(address, switches, tls, metrics).encode()
    unit = _unit("wiresum-controller.service", program)
    steps: list[Step] = [
        User(USER),
        Folder(FOLDER, 0o755, "root", USER),
        Folder(STATE, 0o700, USER, USER),
        Folder(LOGS, 0o750, USER, USER),
        *_certificate("controller", certificate),
        File(f"{FOLDER}/cluster.toml", wanted, 0o640, "root", USER, kept=not replace, shown=True),
        *_everywhere(program, replace=replace),
        unit,
    ]
    firewall = f"TCP {CONTROL_PORT} from workers and operators; out of this host, TCP to the switches' P4Runtime ports"
    return HostPlan(
        "controller",
        steps,
        firewall,
        tls,
        unit="wiresum-controller",
        command=_command(unit),
        endpoint=f"{address}:{CONTROL_PORT}",
        config=f"{FOLDER}/cluster.toml",
    )


def _certificate(role: str, files: Certificate) -> list[Step]:
    """Root's, so that a service that is broken into cannot change it; and for the service's group to read."""
    if not files:
        return []
    folder = f"{FOLDER}/{role}"
    modes = {name: 0o640 if name == KEY_FILE else 0o644 for name in files}
    return [
        Folder(folder, 0o750, "root", USER),
        *(File(f"{folder}/{name}", content, modes[name], "root", USER) for name, content in files.items()),
    ]


def _everywhere(program: str, *, replace: bool) -> list[Step]:
    steps: list[Step] = [BUFFERS]
    if program.rpartition("/")[0] not in ("/usr/bin", "/usr/local/bin"):
        steps.append(Link(COMMAND, program, kept=not replace))
    return steps


def _text(path: str, lines: Sequence[str], comment: str, *, kept: bool = False) -> File:
    content = "".join(f"{line}\n" for line in (f"# {comment} Made by `wiresum setup`.", *lines))
    return File(path, content.encode(), 0o644, kept=kept, shown=True)


def _unit(name: str, program: str) -> File:
    if re.search(r"[\s%\"'\\$]", program):
        raise SetupError(f"{program!r} cannot stand in a unit: install wiresum where the path has no such characters")
    text = (resources.files("wiresum.cli.setup") / name).read_text()
    return File(f"{UNITS}/{name}", text.replace(UNIT_PROGRAM, program).encode(), 0o644)


def _command(unit: File) -> str:
    """Of a unit, what it starts."""
    (line,) = re.findall(r"^ExecStart=(.+)$", unit.content.decode(), re.MULTILINE)
    return str(line)


def _cluster(address: str, switches: Mapping[str, str], tls: str, metrics: str) -> str:
    trust = f'tls = "{tls}"' if tls else "insecure = true"
    parts = [
        "# Made by `wiresum setup`; `wiresum controller --help` explains every key there is.\n"
        "[controller]\n"
        f'listen = "{address}:{CONTROL_PORT}"\n'
        f'state = "{STATE}"\n' + (f'metrics = "{metrics}"\n' if metrics else ""),
        f'[security]\n{trust}\naudit = "{LOGS}/audit.log"\n',
    ]
    parts += [
        f'[[switch]]\nname = "{name}"\nkind = "software"\np4runtime = "{at}:{P4RUNTIME_PORT}"\n{trust}\n'
        f'address = "{at}"\n'
        for name, at in switches.items()
    ]
    return "\n".join(parts)
