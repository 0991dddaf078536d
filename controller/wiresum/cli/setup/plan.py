"""Plans a host of each role: the steps of its setup, and what is left to its operator. Pure.

A configuration that exists and differs may have been edited: it is kept unless `replace` is set. Units are always
overwritten, since changes to them belong in drop-ins.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

from wiresum.cli.setup.steps import File, Folder, Link, Member, Settings, SetupError, Step, User
from wiresum.join.constants import CONTROL_PORT, P4RUNTIME_PORT, SOCKET_BUFFER_BYTES, SWITCH_PORT, THREADS_MAX
from wiresum.join.credentials import KEY_FILE

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

USER = "wiresum"
FOLDER = "/etc/wiresum"
CLUSTER_CONFIG, STANDBY_CONFIG = "cluster.toml", "standby.toml"
STATE, LOGS = "/var/lib/wiresum", "/var/log/wiresum"
UNITS = "/etc/systemd/system"
PROFILE = "/etc/profile.d/wiresum.sh"
COMMAND = "/usr/local/bin/wiresum"
UNIT_PROGRAM = "/opt/wiresum/bin/wiresum"
"""The program's path in the unit files."""
DATA_PORTS = f"{SWITCH_PORT}-{SWITCH_PORT + THREADS_MAX - 1}"
BUFFERS = Settings(
    "/etc/sysctl.d/60-wiresum.conf", dict.fromkeys(("net.core.rmem_max", "net.core.wmem_max"), SOCKET_BUFFER_BYTES)
)
"""Socket buffers, which hold datagrams while their thread is not on a core."""
TENANT_OF_SWITCH = {"slots": 2048, "jobs": 64, "worker_threads": 2048}
"""What a tenant may have for each switch, at all of them together: half of their slots and entries of table admit."""
TENANT = {"switch_percent": 50, "waiting_jobs": 128, "forming_s": 900, "priority_max": 0}
RULES = {
    "nftables.conf": "limits the connections of each address",
    "nftables-data.conf": "keeps a switch's data out of the kernel's table of connections",
}
"""Files with rules for the firewall, and what each does."""
LIMITS = ("nftables.conf",)
"""Those of them for a host without a switch, where a program may have one of its ports for something else."""
HOMES = ("/home/", "/root/")
"""The units hide these from their services."""

Certificate = Mapping[str, bytes]
"""The three files of a TLS directory, by name."""


@dataclass(frozen=True)
class Common:
    """The options that all roles have."""

    program: str
    """The path of the `wiresum` command."""
    certificate: Certificate
    """Empty: no certificate is written."""
    insecure: bool = False
    replace: bool = False

    def tls(self, role: str) -> str:
        """The folder of the role's certificate; empty: none."""
        return "" if self.insecure else f"{FOLDER}/{role}"


@dataclass(frozen=True)
class HostPlan:
    role: str
    steps: Sequence[Step]
    firewall: str
    """The traffic that must be let through."""
    tls: str
    """The folder with the certificate; empty: none."""
    endpoint: str
    """Where the last check asks the service."""
    unit: str = ""
    """The service's name; empty: none."""
    command: str = ""
    """The shell command that the unit runs."""
    config: str = ""
    """The file that the service reads when it starts."""
    rules: Sequence[str] = ()
    """The names in RULES of those that its operator may load."""
    serves_joins: bool = True
    """`endpoint` is a join service; else P4Runtime."""


def worker(common: Common, switch: str, users: Sequence[str]) -> HostPlan:
    settings = {"WIRESUM_SWITCH": switch}
    settings |= {"WIRESUM_INSECURE": "1"} if common.insecure else {"WIRESUM_TLS": common.tls("worker")}
    lines = [f"{name}={value}" for name, value in settings.items()]
    exports = [f"export {name}={shlex.quote(value)}" for name, value in settings.items()]
    steps = _steps(
        common,
        "worker",
        *(Member(user, USER) for user in users),
        _text(f"{FOLDER}/worker.env", lines, "For containers and units of trainings.", kept=not common.replace),
        _text(PROFILE, exports, "For those who train here.", kept=not common.replace),
    )
    at = "to this host, at any port (WIRESUM_PORTS keeps it to some)"
    firewall = f"UDP from the switches' ports {DATA_PORTS} {at}; out of it, those and TCP to {switch}"
    return HostPlan("worker", steps, firewall, common.tls("worker"), switch)


def switch(common: Common, address: str, *, p4runtime: bool, options: Sequence[str]) -> HostPlan:
    """`options`: further options for `wiresum switch`."""
    tls, config = common.tls("switch"), f"{FOLDER}/switch.env"
    endpoint = f"{address}:{P4RUNTIME_PORT if p4runtime else CONTROL_PORT}"
    where = ["--p4runtime" if p4runtime else "--control", endpoint]
    words = shlex.join([*where, *(["--tls", tls] if tls else ["--insecure"]), *options])
    variables = [f"WIRESUM_SWITCH_OPTIONS={words}"]
    unit = _unit("wiresum-switch.service", common.program)
    environment = _text(config, variables, "wiresum switch --help says what there is.", kept=not common.replace)
    who = "the controllers alone" if p4runtime else "workers and operators"
    return HostPlan(
        "switch",
        _steps(common, "switch", environment, *_rules(common, RULES), unit),
        f"TCP {endpoint.rpartition(':')[2]} from {who}; UDP {DATA_PORTS} from and to the workers",
        tls,
        endpoint,
        unit="wiresum-switch",
        command=_command(unit).replace("$WIRESUM_SWITCH_OPTIONS", words),
        config=config,
        rules=tuple(RULES),
        serves_joins=not p4runtime,
    )


def controller(
    common: Common, address: str, switches: Mapping[str, str], *, metrics: str, config: bytes = b""
) -> HostPlan:
    """`switches`: the software switches' addresses by name. `config`: a whole configuration instead."""
    tls, path = common.tls("controller"), f"{FOLDER}/{CLUSTER_CONFIG}"
    content = config or _cluster(address, switches, tls, metrics).encode()
    unit = _unit("wiresum-controller.service", common.program)
    return HostPlan(
        "controller",
        _steps(
            common,
            "controller",
            Folder(STATE, 0o700, USER, USER),
            Folder(LOGS, 0o750, USER, USER),
            File(path, content, 0o640, "root", USER, kept=not common.replace, shown=True),
            *_rules(common, LIMITS),
            unit,
        ),
        f"TCP {CONTROL_PORT} from workers and operators; out of this host, TCP to the switches' P4Runtime ports",
        tls,
        f"{address}:{CONTROL_PORT}",
        unit="wiresum-controller",
        command=_command(unit),
        config=path,
        rules=LIMITS,
    )


def tenant_table(switches: int) -> str:
    """The part of a controller's configuration that says what each tenant may have."""
    quota = {name: switches * count for name, count in TENANT_OF_SWITCH.items()} | TENANT
    lines = "".join(f"{name} = {count}\n" for name, count in quota.items())
    return f"# Each tenant: half of each switch. One with a name has a table of its own.\n[[tenant]]\n{lines}"


def standby(common: Common, address: str, port: int, cluster: str, *, metrics: str) -> HostPlan:
    """Beside the controller of this host, and with its state. `cluster`: the controller's configuration."""
    tls, path = common.tls("standby"), f"{FOLDER}/{STANDBY_CONFIG}"
    listen, trust = f"{address}:{port}", f'tls = "{tls}"' if tls else "insecure = true"
    theirs = tomllib.loads(cluster).get("controller", {})
    active = theirs.get("listen", f"0.0.0.0:{CONTROL_PORT}")
    if active in (listen, f"0.0.0.0:{port}"):
        raise SetupError(
            f"the controller of this host listens at {active}, so its standby cannot listen at {listen}: give it "
            f"another address of this host, or another --port"
        )
    if metrics and metrics == theirs.get("metrics"):
        raise SetupError(f"the controller serves its figures at {metrics}, so its standby needs other --metrics")
    lines = {"listen": f'listen = "{listen}"', "metrics": f'metrics = "{metrics}"' if metrics else ""}
    content = _changed(_changed(cluster, "controller", lines), "security", {"tls": trust, "insecure": ""})
    unit = _unit("wiresum-controller.service", common.program)
    text = unit.content.decode().replace("/cluster.toml", f"/{STANDBY_CONFIG}")
    unit = File(f"{UNITS}/wiresum-standby.service", text.encode(), unit.mode)
    wanted = File(path, content.encode(), 0o640, "root", USER, kept=not common.replace, shown=True)
    return HostPlan(
        "standby",
        _steps(common, "standby", wanted, *_rules(common, LIMITS), unit),
        f"TCP {port} from workers and operators, who name both: WIRESUM_SWITCH={active},{listen}",
        tls,
        f"{active.replace('0.0.0.0', address)},{listen}",
        unit="wiresum-standby",
        command=_command(unit),
        config=path,
        rules=LIMITS,
    )


def _changed(document: str, table: str, lines: Mapping[str, str]) -> str:
    """A configuration in which one table has these lines in place of its own. `lines`: by key; empty: none."""
    found, inside, there = [], False, False
    for line in document.splitlines():
        header = re.match(r"\s*\[+\s*([A-Za-z_.]+)\s*\]", line)
        key = re.match(r"\s*([A-Za-z_]+)\s*=", line)
        if header:
            inside = header[1] == table
        if not (inside and key and key[1] in lines):
            found.append(line)
        if header and inside:
            there = True
            found += [added for added in lines.values() if added]
    if not there:
        found += ["", f"[{table}]", *(added for added in lines.values() if added)]
    return "".join(f"{line}\n" for line in found)


def _steps(common: Common, role: str, *own: Step) -> list[Step]:
    """The steps that all roles have, and those of this role."""
    steps: list[Step] = [User(USER), Folder(FOLDER, 0o755, "root", USER)]
    steps += [*_certificate(role, common.certificate), *own, BUFFERS]
    if common.program.rpartition("/")[0] not in ("/usr/bin", "/usr/local/bin"):
        steps.append(Link(COMMAND, common.program, kept=not common.replace))
    return steps


def _certificate(role: str, files: Certificate) -> list[Step]:
    """Owned by root, so that a compromised service cannot change it; its group may read it."""
    if not files:
        return []
    folder = f"{FOLDER}/{role}"
    modes = {name: 0o640 if name == KEY_FILE else 0o644 for name in files}
    return [
        Folder(folder, 0o750, "root", USER),
        *(File(f"{folder}/{name}", content, modes[name], "root", USER) for name, content in files.items()),
    ]


def _text(path: str, lines: Sequence[str], comment: str, *, kept: bool = False) -> File:
    content = "".join(f"{line}\n" for line in (f"# {comment} Made by `wiresum setup`.", *lines))
    return File(path, content.encode(), 0o644, kept=kept, shown=True)


def _unit(name: str, program: str) -> File:
    if re.search(r"[\s%\"'\\$]", program):
        raise SetupError(f"{program!r} cannot stand in a unit: install wiresum where the path has no such characters")
    text = (resources.files("wiresum.cli.setup") / name).read_text()
    return File(f"{UNITS}/{name}", text.replace(UNIT_PROGRAM, program).encode(), 0o644)


def _rules(common: Common, names: Iterable[str]) -> Iterator[File]:
    for name in names:
        content = (resources.files("wiresum.cli.setup") / name).read_bytes()
        yield File(f"{FOLDER}/{name}", content, 0o644, kept=not common.replace)


def _command(unit: File) -> str:
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
        tenant_table(len(switches)),
    ]
    parts += [
        f'[[switch]]\nname = "{name}"\nkind = "software"\np4runtime = "{at}:{P4RUNTIME_PORT}"\n{trust}\n'
        f'address = "{at}"\n'
        for name, at in switches.items()
    ]
    return "\n".join(parts)
