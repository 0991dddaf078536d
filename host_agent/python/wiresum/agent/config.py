"""The `WIRESUM_*` variables of the environment say how this worker should join.

Each setting is defined once, as a field of `AgentConfig`; its variable, its limits, `wiresum settings` and the table in
docs/torch.md follow from that. A few fields have no variable: only code chooses them, for one session.
"""

from __future__ import annotations

import difflib
import ipaddress
import logging
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from wiresum.join import addresses, name_problem, ranks_text
from wiresum.join.constants import (
    AGGREGATORS_MAX,
    CONTROL_PORT,
    JOB_NAME_BYTES_MAX,
    JOB_TOKEN_BYTES_MAX,
    LANES_MAX,
    LEASE_SLOTS_MAX,
    TENANT_BYTES_MAX,
    THREADS_MAX,
)

PORT_MAX = 65535
JOIN_TIMEOUT_S_MAX = 86_400.0
CONTROL_ENDPOINTS_MAX = 8
"""The most control endpoints of one aggregator."""
PRECISIONS = ("auto", "adaptive", "exact", "block")
TRANSPORTS = ("udp", "xdp", "dpdk")
PLAIN = "plain"
"""A device of udp: each datagram is sent and received by itself."""
AUTO, OFF = "auto", "off"
LOCAL = "local"
"""A value of `switch`: PyTorch's rank 0 starts a switch, and says where."""
DEVICE_BYTES_MAX = 4096


log = logging.getLogger(__name__)

PREFIX = "WIRESUM_"
_LIST = "`wiresum settings` lists all"
_LIKENESS_MIN = 0.75
"""The least likeness of a variable's name to a setting's to be taken for a misspelling (difflib's ratio)."""
OTHER_VARIABLES = {
    "WIRESUM_PYTHON": "the interpreter of libwiresum's sidecar",
    "WIRESUM_SIMD": "the instruction set for rounding and adding, for tests",
    "WIRESUM_SWITCH_OPTIONS": "options of the systemd unit of `wiresum switch`",
}
"""Variables that others than `AgentConfig` read."""
_warned_of: set[str] = set()
_OF_KUBERNETES = re.compile(r"_(SERVICE_HOST|(SERVICE_)?PORT(_.*)?)$")
"""Kubernetes sets such variables in every container, for each of its services: one may be called wiresum-switch."""


@dataclass(frozen=True)
class Setting:
    """Properties of a field of `AgentConfig` besides its name and type."""

    help: str
    """The help text, in Markdown, on one line. A field that only code chooses has no help, nor a variable."""
    default_shown: str = ""
    """The default as shown to people, if that is not the value itself."""
    problem: Callable[[Any], str] = lambda value: ""
    """Returns what is wrong with a value, or ""."""
    parse: Callable[[str], Any] = str
    """Parses the variable's text; raises a ValueError that says what is needed."""
    secret: bool = False
    """A secret value is left out of errors, which end up in logs."""
    agreed: bool = False
    """Sums come out wrong, or not at all, if workers of a job have different values."""
    variable: str = ""
    """The name of the variable; empty: only code chooses the field."""

    def named(self, field_name: str) -> str:
        """Returns the setting's name as people know it."""
        return f"{self.variable} ({field_name})" if self.variable else field_name


def _integer(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise ValueError("a whole number is needed, like 4 or 0x10") from None


def _boolean(text: str) -> bool:
    value = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if text.lower() not in value:
        raise ValueError("1 or 0 is needed (or true, false, yes, no, on, off)")
    return value[text.lower()]


def _within(least: int, most: int) -> Callable[[int], str]:
    return lambda value: "" if least <= value <= most else f"it must be {least} to {most}"


def _endpoints_of(switch: str) -> list[list[str]]:
    """Returns for each aggregator the endpoints of its active service and standbys, with their ports."""
    if switch == LOCAL:
        return [[LOCAL]]
    parts = [[endpoint.strip() for endpoint in part.split(",")] for part in switch.split("+")]
    return [[endpoint if ":" in endpoint else f"{endpoint}:{CONTROL_PORT}" for endpoint in part] for part in parts]


def _switch_problem(switch: str) -> str:
    aggregators = switch.split("+")
    if len(aggregators) > AGGREGATORS_MAX:
        return f"there can be {AGGREGATORS_MAX} aggregators at most"
    for aggregator in aggregators:
        endpoints = [endpoint.strip() for endpoint in aggregator.split(",")]
        if len(endpoints) > CONTROL_ENDPOINTS_MAX:
            return f"there can be {CONTROL_ENDPOINTS_MAX} endpoints at most for an aggregator"
        if problem := next((problem for problem in map(_endpoint_problem, endpoints) if problem), ""):
            return problem
        if LOCAL in endpoints and switch != LOCAL:
            return f"{LOCAL} stands alone"
    seen: set[str] = set()
    for part in _endpoints_of(switch):
        if twice := seen.intersection(part):
            return f"it names {min(twice)} for two aggregators; each needs a join service of its own"
        seen.update(part)
    return ""


def _fallback_problem(fallback: str) -> str:
    if fallback in (AUTO, OFF):
        return ""
    return "it must be auto, off, or one host:port" if {",", "+"} & set(fallback) else _endpoint_problem(fallback)


def _endpoint_problem(endpoint: str) -> str:
    host, colon, port = endpoint.rpartition(":")
    if not colon:
        host, port = endpoint, str(CONTROL_PORT)
    if not host or ":" in host or any(c.isspace() for c in endpoint):
        return "it must be host:port, with a name or an IPv4 address, like 10.0.0.1:43487"
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        return "its port must be 1 to 65535"
    return ""


def _printable(bytes_max: int) -> Callable[[str], str]:
    def problem(text: str) -> str:
        if not text.isprintable() or len(text.encode()) > bytes_max:
            return f"it must be printable, and at most {bytes_max} bytes long"
        return ""

    return problem


def _name(bytes_max: int) -> Callable[[str], str]:
    return lambda name: f"it {problem}" if name and (problem := name_problem(name, bytes_max)) else ""


def _address_problem(address: str) -> str:
    if not address:
        return ""
    try:
        parsed = ipaddress.IPv4Address(address)
    except ValueError:
        return "it must be an IPv4 address of this host, like 10.0.0.1"
    if not addresses.can_send(parsed):
        return "it must be the address of one interface of this host"
    return ""


def _ports_of(text: str) -> tuple[int, int]:
    """Returns the first and the last port; (0, 0) for none. Raises a ValueError."""
    first, dash, last = text.partition("-")
    ports = [int(port) if port.isascii() and port.isdigit() else 0 for port in (first, last if dash else first)]
    if text and not 1 <= ports[0] <= ports[1] <= PORT_MAX:
        raise ValueError(f"it must be the first and the last of some UDP ports, like 45000-45063, up to {PORT_MAX}")
    return ports[0], ports[1]


def _ports_problem(text: str) -> str:
    try:
        _ports_of(text)
    except ValueError as error:
        return str(error)
    return ""


def _transport_problem(spec: str) -> str:
    kind, _, device = spec.partition(":")
    if kind not in TRANSPORTS:
        return f"it must be one of {', '.join(TRANSPORTS)}"
    if kind == "udp" and device not in ("", PLAIN):
        return f"udp uses the kernel's interfaces, and none is to be named ({device!r}); there is udp:{PLAIN}"
    return _printable(DEVICE_BYTES_MAX)(device)


def _one_of(*names: str) -> Callable[[str], str]:
    return lambda name: "" if name in names else f"it must be one of {', '.join(names)}"


def _setting(default: Any, help: str = "", **more: Any) -> Any:  # noqa: A002
    """Makes a field. Its variable follows from its name, and its parser from the default's type."""
    parse = {bool: _boolean, int: _integer}.get(type(default), str)
    setting = Setting(help, **{"parse": parse} | more)
    return field(default=default, repr=not setting.secret, metadata={"setting": setting})


@dataclass(frozen=True)
class AgentConfig:
    """The settings of one worker. Every value is checked, wherever it comes from: a `ValueError` names the field and
    its variable."""

    switch: str = _setting(
        f"127.0.0.1:{CONTROL_PORT}",
        "control endpoint of the switch or controller, `host:port`; without a port, 43487. Several, separated by "
        "commas, if a standby may take over; separated by `+`, if the job is spread over several aggregators: "
        "[software_switch.md](software_switch.md#several-aggregators). `local`: in PyTorch, where all workers are on "
        "one host, rank 0 starts a switch there",
        problem=_switch_problem,
    )
    tls: str = _setting(
        "",
        "folder with `ca.crt`, `tls.crt` and `tls.key`, made by `wiresum ca` ([security.md](security.md)); without it "
        "`WIRESUM_SWITCH` must be on this host",
        default_shown="none",
    )
    insecure: bool = _setting(False, "1 allows other hosts without certificates")
    job: str = _setting(
        "",
        "name of the job at the switch; only rank 0's counts",
        default_shown="generated by rank 0; under Slurm from the job's number",
        problem=_name(JOB_NAME_BYTES_MAX),
    )
    precision: str = _setting(
        "auto",
        "how sums of floats are rounded: `exact`, `block`, `auto` or `adaptive`: "
        "[numerics.md](numerics.md#exact-or-in-blocks-wiresum_precision)",
        parse=str.lower,
        problem=_one_of(*PRECISIONS),
        agreed=True,
    )
    bits: int = _setting(
        32,
        "bits on the wire for each float that is summed in blocks: 32, 16 or 8. Fewer are faster and coarser",
        problem=lambda bits: "" if bits in (32, 16, 8) else "it must be 32, 16 or 8",
        agreed=True,
    )
    check_word: str = _setting(
        AUTO,
        "1: the last word of each packet shows whether its sum has changed on the way or in the switch. 0: none does. "
        "`auto`: where a switch does not verify checksums: [numerics.md](numerics.md#sums-that-are-checked)",
        parse=str.lower,
        problem=_one_of(AUTO, "1", "0"),
        agreed=True,
    )
    address: str = _setting(
        "",
        "this worker's IPv4 address for data; different at each host",
        default_shown="by route to the switch",
        problem=_address_problem,
    )
    ports: str = _setting(
        "",
        "UDP ports for incoming data, `first-last`, for firewalls; each worker of a host needs as many as it has "
        "threads, for each aggregator: [cluster.md](cluster.md#firewalls)",
        default_shown="any free ones",
        problem=_ports_problem,
    )
    share: bool = _setting(
        True,
        "1: this worker shares one stream to the switch with the other workers of its job on this host. 0 is for "
        "measuring",
    )
    threads: int = _setting(
        0,
        "threads of the data path, for each aggregator; a job uses the smallest value of all workers",
        default_shown="from the number of cores, at most 4; over `xdp` and `dpdk` 1",
        problem=_within(0, THREADS_MAX),
    )
    lanes: int = _setting(
        0,
        "32-bit words in a packet; a job uses the smallest value of all workers",
        default_shown="from the MTU of the interface",
        problem=_within(0, LANES_MAX),
    )
    transport: str = _setting(
        "udp",
        "how packets reach the network: `udp`, or `udp:plain` without GSO and GRO; `xdp`, over the interface that has "
        "the local address, or `xdp:eth1`; `dpdk:` and the EAL's arguments: [transports.md](transports.md). May differ "
        "between workers",
        parse=lambda text: "".join((text.partition(":")[0].lower(), *text.partition(":")[1:])),
        problem=_transport_problem,
    )
    tenant: str = _setting(
        "",
        "the job's account, where there are quotas; a certificate takes precedence, and one that names no tenant is "
        "its own",
        default_shown="none",
        problem=_name(TENANT_BYTES_MAX),
    )
    job_token: str = _setting(
        "",
        "the token of a job that an operator created (`wiresum jobs create`)",
        default_shown="none",
        problem=_printable(JOB_TOKEN_BYTES_MAX),
        secret=True,
    )
    fallback: str = _setting(
        AUTO,
        "where the job goes on while no switch of `WIRESUM_SWITCH` serves: `auto`: at a software switch that rank 0 "
        "starts on its host; `host:port`: the same, there; `off`. In PyTorch only rank 0's counts; elsewhere `auto` is "
        "`off`: [operations.md](operations.md#without-any-switch)",
        problem=_fallback_problem,
    )
    slots: int = _setting(0, problem=_within(0, LEASE_SLOTS_MAX))
    """Chunks in flight, at each aggregator; 0: the service decides."""
    sparse: bool = _setting(True, agreed=True)
    """All-reduces find blocks of zeros, and do not send them."""
    global_rank: int = _setting(-1)
    """This worker's rank in its whole program, for messages to people, if its job is of a subgroup; -1: the same."""
    join_timeout_s: float = _setting(
        300.0, problem=lambda s: "" if 0 < s <= JOIN_TIMEOUT_S_MAX else f"it must be over 0, to {JOIN_TIMEOUT_S_MAX}"
    )

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ, **overrides: Any) -> AgentConfig:
        """Reads the variables; an override that is not None wins, an empty variable counts as unset."""
        settings = _fields_of(cls)
        unknown = overrides.keys() - settings.keys()
        if unknown:
            raise TypeError(f"no such setting: {', '.join(sorted(unknown))}; there are {', '.join(settings)}")
        _refuse_misspelt(environ)
        values: dict[str, Any] = {}
        for name, setting in settings.items():
            text = environ.get(setting.variable, "").strip()
            if overrides.get(name) is not None:
                values[name] = overrides[name]
            elif text:
                try:
                    values[name] = setting.parse(text)
                except ValueError as error:
                    raise ValueError(f"{setting.variable}={_shown(setting, text)}: {error}") from None
        return cls(**values)

    def __post_init__(self) -> None:
        for name, setting in _fields_of(type(self)).items():
            if problem := setting.problem(getattr(self, name)):
                shown = _shown(setting, getattr(self, name))
                raise ValueError(f"{setting.named(name)} is {shown}: {problem}")
        if self.transport_kind != "udp" and (problem := self._device_problem()):
            raise ValueError(f"WIRESUM_TRANSPORT (transport) is '{self.transport}': {problem}")
        object.__setattr__(self, "switch", "+".join(map(",".join, _endpoints_of(self.switch))))
        if self.fallback not in (AUTO, OFF):
            object.__setattr__(self, "fallback", _endpoints_of(self.fallback)[0][0])
            if not self.may_fall_back:
                raise ValueError(
                    f"WIRESUM_FALLBACK (fallback) is '{self.fallback}': a job goes on there only with WIRESUM_TRANSPORT"
                    "=udp and one aggregator in WIRESUM_SWITCH"
                )

    def _device_problem(self) -> str:
        """Returns a requirement that a transport over a device cannot meet, or ""."""
        if "+" in self.switch:
            return "it serves one aggregator, and WIRESUM_SWITCH names several"
        if self.transport_kind == "dpdk" and not self.device:
            return "it must have the EAL's arguments, like 'dpdk:-a 0000:01:00.0'"
        if self.transport_kind == "dpdk" and not self.address:
            return "WIRESUM_ADDRESS must be the IPv4 address that this worker is to have; the kernel knows of none"
        return ""

    @property
    def transport_kind(self) -> str:
        """The kind of transport: udp, xdp or dpdk."""
        return self.transport.partition(":")[0]

    @property
    def device(self) -> str:
        """The interface of xdp, "" for the one that has the address; the arguments of dpdk's EAL; PLAIN, or ""."""
        return self.transport.partition(":")[2]

    @property
    def agreed(self) -> dict[str, str]:
        """Values that the service compares between the workers of a job, by the names that people know."""
        values = {
            setting.variable or name: f"{value:d}" if isinstance(value := getattr(self, name), bool) else str(value)
            for name, setting in _fields_of(type(self)).items()
            if setting.agreed
        }
        return values | {"the number of aggregators in WIRESUM_SWITCH": str(len(self.aggregators))}

    def named(self, rank: int) -> str:
        """Names this worker, which has this rank in a job, for people."""
        return ranks_text([rank], [self.global_rank] if self.global_rank >= 0 else [])

    @property
    def may_fall_back(self) -> bool:
        """True if a job with these settings can go on at a fallback switch, and none is refused."""
        return self.fallback != OFF and self.transport_kind == "udp" and "+" not in self.switch

    @property
    def aggregators(self) -> tuple[AgentConfig, ...]:
        """The same settings for each aggregator alone, in an order that depends on the names only."""
        return tuple(replace(self, switch=part) for part in sorted(self.switch.split("+")))

    @property
    def port_range(self) -> tuple[int, int]:
        """The first and the last UDP port for data; (0, 0): any."""
        return _ports_of(self.ports)

    @property
    def control_endpoints(self) -> tuple[str, ...]:
        """Endpoints of the first aggregator, each as host:port, in the order in which they are tried."""
        return tuple(_endpoints_of(self.switch)[0])

    @property
    def switch_host(self) -> str:
        """The host of the first endpoint."""
        return self.control_endpoints[0].rpartition(":")[0]

    @property
    def switch_port(self) -> int:
        """The port of the first endpoint."""
        return int(self.control_endpoints[0].rpartition(":")[2])


def _fields_of(config: type[AgentConfig]) -> dict[str, Setting]:
    made = {each.name: each.metadata["setting"] for each in fields(config)}
    return {name: replace(each, variable=(PREFIX + name.upper()) * bool(each.help)) for name, each in made.items()}


def settings_of(config: type[AgentConfig] = AgentConfig) -> dict[str, Setting]:
    """Returns the settings that have a variable, by field, in the order in which people should read them."""
    return {name: setting for name, setting in _fields_of(config).items() if setting.variable}


def _shown(setting: Setting, value: object) -> str:
    return "(not shown)" if setting.secret else repr(value)


def refuse_unknown(settings: Mapping[str, str]) -> None:
    """Raises a `ValueError` if one of these settings, given for a session, is unknown."""
    for variable in sorted(settings.keys() - (_known() - OTHER_VARIABLES.keys())):
        if variable in OTHER_VARIABLES:
            raise ValueError(f"{variable} is for the environment, and has no effect as the setting of one session")
        likely = _likely(variable)
        raise ValueError(f"{variable} is no setting{f': is {likely} meant?' if likely else '.'} {_LIST}")


def _known() -> set[str]:
    return {setting.variable for setting in settings_of().values()} | OTHER_VARIABLES.keys()


def _refuse_misspelt(environ: Mapping[str, str]) -> None:
    """A variable that is nearly a setting's is refused as a misspelling. Any other may belong to another program: a
    warning says, once in a process, that the variable has no effect."""
    for variable in sorted(environ.keys() - _known()):
        if not variable.startswith(PREFIX) or _OF_KUBERNETES.search(variable):
            continue
        if likely := _likely(variable):
            raise ValueError(f"{variable} is no setting: is {likely} meant? {_LIST}")
        if variable not in _warned_of:
            _warned_of.add(variable)
            log.warning("%s is no setting, and has no effect. %s", variable, _LIST)


def _likely(variable: str) -> str:
    """Returns the variable that a nearly right name means; empty: there is none."""
    names = [name.removeprefix(PREFIX) for name in _known()]
    found = difflib.get_close_matches(variable.removeprefix(PREFIX).upper(), names, n=1, cutoff=_LIKENESS_MIN)
    return PREFIX + found[0] if found else ""
