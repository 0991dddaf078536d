"""The configuration file of `wiresum controller`, in TOML. `EXAMPLE` shows all tables.

Errors are `ConfigError`s that name file, table and key.
"""

from __future__ import annotations

import ipaddress
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from wiresum.controller import nodes, topology
from wiresum.controller.driver import KINDS, check_groups
from wiresum.controller.jobs.limits import Limits, Quota
from wiresum.controller.switches import DEVICE_CONFIGS, Host, SwitchConfig
from wiresum.controller.topology import TopologyError
from wiresum.join.constants import (
    CONTROL_PORT,
    LANES_MAX,
    LEASE_SLOTS_MAX,
    SWITCH_PORT,
    SWITCH_SLOTS_MAX,
    THREADS_MAX,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

EXAMPLE = """\
[controller]
listen = "0.0.0.0:43487"       # where workers join (TCP; this unless given)
state = "/var/lib/wiresum"     # the folder of its state; without it a restart forgets the jobs
metrics = "127.0.0.1:9487"     # where Prometheus reads; without it nowhere

[security]
tls = "/etc/wiresum/controller"  # what `wiresum ca` made: ca.crt, tls.crt, tls.key (instead: insecure = true)
audit = "/var/log/wiresum/audit.log"   # who asked for what; without it in the log

[jobs]
slots_default = 256            # what a job gets that does not say (this unless given)
waiting_per_host = 64          # jobs that one host's workers may have forming or waiting (this unless given)
idle_s = 3600                  # a job that sums nothing while others wait ends; 0: never (this unless given)
heartbeat_lost_s = 30          # a worker of which neither plane has heard for so long is lost (this unless given)
reattach_s = 600               # how long workers look for a controller that is away (this unless given)

[[tenant]]                     # what one may have at a time; each key may be left out
name = "vision"                # without a name: each tenant that is not named
slots = 1024                   # (any number unless given)
jobs = 8                       # (any number unless given)
switch_percent = 75            # of the slots, job numbers and table entries of each switch (50 unless given)
waiting_jobs = 16              # jobs that form or wait, and so hold their names (256 unless given)

[[switch]]
name = "leaf1"
kind = "bmv2"                  # or "tofino", or "software"
p4runtime = "127.0.0.1:9559"   # where its P4Runtime server listens
device = 0                     # its device id (0 unless given)
address = "10.0.0.1"           # the switch's own IPv4 address in the workers' network ...
mac = "02:00:0a:00:00:01"      # ... and the MAC it answers ARP requests with
parent = "spine"               # the switch above, where switches form a tree (docs/cluster.md, "Racks") ...
parent_port = 2                # ... this switch's port towards it ...
port_at_parent = 0             # ... and its port towards this one; software switches have no ports

[[switch.host]]                # one for each machine at the switch
name = "worker0"
address = "10.0.0.10"
mac = "02:00:0a:00:00:0a"
port = 0                       # of the switch

[[switch.host]]
name = "worker1"
address = "10.0.0.11"
mac = "02:00:0a:00:00:0b"
port = 1

[[switch]]
name = "spine"                 # for jobs whose hosts hang on several of the switches below it
kind = "bmv2"
p4runtime = "127.0.0.1:9560"
address = "10.0.0.3"
mac = "02:00:0a:00:00:03"

[[switch]]
name = "spare"
kind = "software"              # wiresum switch --p4runtime 10.0.0.2:9559
p4runtime = "10.0.0.2:9559"
tls = "/etc/wiresum/controller"  # for P4Runtime; needed unless it is on this machine (instead: insecure = true)
address = "10.0.0.2"           # where workers send ...
port = 43488                   # ... the first of 16 UDP ports (this unless given)
lanes = 360                    # 32-bit words of a packet (this unless given)
slots = 4096                   # (this unless given)
"""
"""Further keys: a Tofino has `program`, the compiler's folder; `p4info`, its P4Info; `device_config = "pi"`, if its
server is not Stratum; and `cables = [[60, 188]]`, if its pipes are to sum together (nodes.py). A software switch may
have hosts, with name and address, and then serves only these. In a tree it must have hosts, and next to a switch of
another kind it needs the `mac` of its machine. `multicast = "239.192.0.0"` is the group to which it sends RESULTs for
all workers of job 0 once; job j's is j addresses further."""

NAME_CHARACTERS_MAX = 64
METRICS_PORT = 9487
"""The port of the metrics in examples."""
PORT_MAX = 510
"""The largest port of a switch: ports have 9 bits, and 511 is where v1model sends what it drops."""

_MAC = re.compile(r"(?:[0-9a-f]{2}:){5}[0-9a-f]{2}")
_ENDPOINT = re.compile(r"(?P<host>[^\s:]+):(?P<port>\d{1,5})|unix:.+")

T = TypeVar("T")
UNSTATED = Quota("")
"""The quota of a tenant that the file does not mention: any number of slots and jobs while they are free."""

SWITCH_PERCENT = 50
"""The default share of each switch if the file has a table [[tenant]]: one tenant then leaves room for another
everywhere."""

Seen = dict[tuple[str, str], str]
"""The owner of each key and value; no pair may come twice."""


class ConfigError(ValueError):
    """Raised for a wrong configuration. The text says where, what is wrong, and what belongs there."""


@dataclass(frozen=True)
class SecurityConfig:
    tls: Path | None = None
    """A folder with ca.crt, tls.crt and tls.key. None: plaintext."""
    insecure: bool = False
    """True if plaintext is wanted, even beyond loopback."""
    audit: Path | None = None


@dataclass(frozen=True)
class Config:
    listen: tuple[str, int]
    """Host and TCP port of the join service."""
    state: Path | None
    """The folder of the state, made if needed. None: no state is kept."""
    metrics: tuple[str, int] | None
    security: SecurityConfig
    limits: Limits
    quotas: tuple[Quota, ...]
    """Quotas, one of them without a name."""
    switches: tuple[SwitchConfig, ...]


def load(path: Path) -> Config:
    """Raises `ConfigError`. Relative paths in the file begin at its folder."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: this is not TOML: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot read it: {error}") from error
    try:
        return _File(document, path.parent).config()
    except (ConfigError, TopologyError) as error:
        raise ConfigError(f"{path}: {error}") from None


class _Table:
    """One table of the file. A key that is never taken is an error."""

    def __init__(self, name: str, values: Mapping[str, Any]) -> None:
        """`name`: name of the table in errors."""
        self._name = name
        self._values = dict(values)

    def take(self, key: str, check: Callable[[Any], T], default: T | None = None) -> T:
        value = self.take_if_there(key, check)
        if value is not None:
            return value
        if default is None:
            raise self.error(f"{key} is missing")
        return default

    def take_if_there(self, key: str, check: Callable[[Any], T]) -> T | None:
        if key not in self._values:
            return None
        try:
            return check(self._values.pop(key))
        except ValueError as error:
            raise self.error(f"{key} {error}") from None

    def end(self) -> None:
        for key in self._values:
            raise self.error(f"nothing here is called {key}")

    def check_unique(self, owner: str, seen: Seen, **values: str) -> None:
        for key, value in values.items():
            if (key, value) in seen:
                raise self.error(f"{key} {value} is {seen[key, value]}'s already")
            seen[key, value] = owner

    def error(self, text: str) -> ConfigError:
        return ConfigError(f"{self._name}: {text}" if self._name else text)


class _File:
    def __init__(self, document: Mapping[str, Any], folder: Path) -> None:
        self._document, self._folder = document, folder

    def config(self) -> Config:
        for name in self._document:
            if name not in ("controller", "security", "jobs", "tenant", "switch"):
                tables = "[controller], [security], [jobs], [[tenant]] and [[switch]] are"
                raise ConfigError(f"{name}: there is no such table: {tables}")
        security = self._security()
        table = self._table("controller")
        config = Config(
            listen=table.take("listen", _listener, ("0.0.0.0", CONTROL_PORT)),
            state=table.take_if_there("state", self._path_of),
            metrics=table.take_if_there("metrics", _listener),
            security=security,
            limits=self._limits(),
            quotas=self._quotas(),
            switches=self._switches(),
        )
        table.end()
        _check_together(config)
        return config

    def _path_of(self, value: object) -> Path:
        return self._folder / Path(_text(value)).expanduser()

    def _security(self) -> SecurityConfig:
        table = self._table("security")
        tls, insecure = self._tls(table)
        config = SecurityConfig(tls=tls, insecure=insecure, audit=table.take_if_there("audit", self._path_of))
        table.end()
        return config

    def _tls(self, table: _Table) -> tuple[Path | None, bool]:
        tls = table.take_if_there("tls", self._path_of)
        insecure = table.take("insecure", _yes_or_no, False)
        if tls and insecure:
            raise table.error("insecure = true means without TLS, but tls is given too: choose one")
        return tls, insecure

    def _limits(self) -> Limits:
        table = self._table("jobs")
        usual = Limits()
        limits = replace(
            usual,
            slots_default=table.take("slots_default", _power_of_two, usual.slots_default),
            waiting_per_host_max=table.take("waiting_per_host", _whole(1, 1024), usual.waiting_per_host_max),
            idle_ms_max=table.take("idle_s", _ms(0, 7 * 86_400), usual.idle_ms_max),
            heartbeat_lost_ms=table.take("heartbeat_lost_s", _ms(5, 3600), usual.heartbeat_lost_ms),
            reattach_with_state_ms=table.take("reattach_s", _ms(5, 86_400), usual.reattach_with_state_ms),
        )
        if limits.slots_default < limits.slots_least:
            raise table.error(f"slots_default must be at least {limits.slots_least}, which every job takes")
        table.end()
        return limits

    def _quotas(self) -> tuple[Quota, ...]:
        quotas: dict[str, Quota] = {}
        for table in self._tables("tenant"):
            quota = Quota(
                name=table.take("name", _name, ""),
                slots=table.take_if_there("slots", _whole(0, 1 << 20)),
                jobs=table.take_if_there("jobs", _whole(0, 1 << 16)),
                switch_percent=table.take("switch_percent", _whole(1, 100), SWITCH_PERCENT),
                waiting_jobs=table.take("waiting_jobs", _whole(0, 1024), UNSTATED.waiting_jobs),
            )
            table.end()
            if quota.name in quotas:
                raise table.error(f"there is a [[tenant]] {quota.name or 'without a name'} already")
            quotas[quota.name] = quota
        quotas.setdefault("", replace(UNSTATED, switch_percent=SWITCH_PERCENT if quotas else UNSTATED.switch_percent))
        return tuple(quotas.values())

    def _switches(self) -> tuple[SwitchConfig, ...]:
        seen: Seen = {}
        switches = tuple(self._switch(table, seen) for table in self._tables("switch"))
        if not switches:
            raise ConfigError("no switch: say with [[switch]] which ones to drive")
        topology.check(switches)
        nodes.check(switches)
        return switches

    def _switch(self, table: _Table, seen: Seen) -> SwitchConfig:
        name = table.take("name", _name)
        hosts = table.take_if_there("host", _tables("host", "switch.host", f"switch {name}: ")) or []
        kind = table.take("kind", _one_of(KINDS))
        tls, insecure = self._tls(table)
        switch = SwitchConfig(
            name=name,
            kind=kind,
            p4runtime=table.take("p4runtime", _target),
            device=table.take("device", _whole(0, (1 << 64) - 1), 0),
            address=table.take("address", _address),
            port=table.take("port", _base_port, SWITCH_PORT) if kind == "software" else SWITCH_PORT,
            tls=tls,
            insecure=insecure,
            parent=table.take("parent", _name, ""),
            port_at_parent=table.take_if_there("port_at_parent", _whole(0, PORT_MAX)),
        )
        switch = self._of_kind(table, switch)
        table.end()
        table.check_unique(switch.name, seen, name=switch.name)
        table.check_unique(switch.name, seen, p4runtime=f"{switch.p4runtime}, device {switch.device},")
        table.check_unique(switch.name, seen, address=f"{switch.address}:{switch.port}")
        return replace(switch, hosts=_hosts(switch, hosts))

    def _of_kind(self, table: _Table, switch: SwitchConfig) -> SwitchConfig:
        """The configuration with the keys that only switches of this kind have."""
        match switch.kind:
            case "software":
                return replace(
                    switch,
                    lanes=table.take("lanes", _whole(1, LANES_MAX), 360),
                    slots=table.take("slots", _whole(1, SWITCH_SLOTS_MAX), 4096),
                    mac=table.take("mac", _mac, ""),
                    multicast=table.take("multicast", _groups, ""),
                )
            case "tofino":
                switch = replace(
                    switch,
                    program=table.take("program", self._path_of),
                    p4info=table.take("p4info", self._path_of),
                    cables=table.take("cables", _pairs_of_ports, ()),
                    device_config=table.take("device_config", _one_of(DEVICE_CONFIGS), DEVICE_CONFIGS[0]),
                )
        return replace(
            switch, mac=table.take("mac", _mac), parent_port=table.take_if_there("parent_port", _whole(0, PORT_MAX))
        )

    def _table(self, name: str) -> _Table:
        values = self._document.get(name, {})
        if not isinstance(values, dict):
            raise ConfigError(f"{name} must be a table, [{name}]")
        return _Table(name, values)

    def _tables(self, name: str) -> list[_Table]:
        return _Table("", self._document).take_if_there(name, _tables(name, name)) or []


def _check_together(config: Config) -> None:
    """Raises `ConfigError` for values that are in order separately but do not go together."""
    for quota in config.quotas:
        least = config.limits.slots_least
        if quota.slots and quota.slots < least:
            raise ConfigError(
                f"tenant {quota.name or 'without a name'}: slots must be 0, or at least {least}, which every job takes"
            )
    if config.metrics is None or not config.metrics[1] or config.metrics[1] != config.listen[1]:
        return
    hosts = {config.metrics[0], config.listen[0]}
    if len(hosts) == 1 or "0.0.0.0" in hosts:
        raise ConfigError(
            f"controller: metrics cannot be at {':'.join(map(str, config.metrics))}, where workers join (listen): give "
            f"it another port, like {METRICS_PORT}"
        )


def _tables(kind: str, header: str, where: str = "") -> Callable[[object], list[_Table]]:
    """Returns a check for a list of tables. In errors each table has its name, or else its number."""

    def check(value: object) -> list[_Table]:
        if not isinstance(value, list) or not all(isinstance(values, dict) for values in value):
            raise ValueError(f"must be tables, each under a [[{header}]] of its own")
        names = (values.get("name", number) for number, values in enumerate(value, start=1))
        return [_Table(f"{where}{kind} {name}", values) for name, values in zip(names, value, strict=True)]

    return check


def _hosts(switch: SwitchConfig, tables: list[_Table]) -> tuple[Host, ...]:
    seen: Seen = {}
    if switch.kind != "software":  # next to a software switch a worker may share the machine
        seen["address", switch.address] = seen["mac", switch.mac] = "the switch"
    hosts = []
    for table in tables:
        host = Host(name=table.take("name", _name), address=table.take("address", _address))
        if switch.kind != "software":
            host = replace(host, mac=table.take("mac", _mac), port=table.take("port", _whole(0, PORT_MAX)))
        table.end()
        table.check_unique(host.name, seen, name=host.name, address=host.address)
        if host.mac:
            table.check_unique(host.name, seen, mac=host.mac)
        hosts.append(host)
    return tuple(hosts)


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"must be a text in quotes, not {value!r}")
    return value


def _name(value: object) -> str:
    text = _text(value)
    if not text.isprintable() or len(text) > NAME_CHARACTERS_MAX:
        raise ValueError(f"must be printable, and at most {NAME_CHARACTERS_MAX} characters long, not {text!r}")
    return text


def _one_of(choices: tuple[str, ...]) -> Callable[[object], str]:
    def check(value: object) -> str:
        if value not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}, not {value!r}")
        return str(value)

    return check


def _yes_or_no(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, not {value!r}")
    return value


def _whole(least: int, most: int) -> Callable[[object], int]:
    def check(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise ValueError(f"must be a whole number from {least} to {most}, not {value!r}")
        return value

    return check


def _pairs_of_ports(value: object) -> tuple[tuple[int, int], ...]:
    port = _whole(0, PORT_MAX)
    if not isinstance(value, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in value):
        raise ValueError(f"must be pairs of ports, like [[60, 188]], not {value!r}")
    return tuple((port(one), port(other)) for one, other in value)


def _ms(seconds_least: float, seconds_most: float) -> Callable[[object], int]:
    """Returns a check that turns a number of seconds into milliseconds."""

    def check(value: object) -> int:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not seconds_least <= value <= seconds_most:  # type: ignore[operator]
            raise ValueError(f"must be {seconds_least} to {seconds_most} seconds, not {value!r}")
        return round(1000 * value)  # type: ignore[operator]

    return check


def _base_port(value: object) -> int:
    return _whole(1, 65536 - THREADS_MAX)(value)


def _power_of_two(value: object) -> int:
    count = _whole(1, LEASE_SLOTS_MAX)(value)
    if count & (count - 1):
        raise ValueError(f"must be a power of two, not {count}")
    return count


def _address(value: object) -> str:
    try:
        address = ipaddress.IPv4Address(_text(value))
    except ipaddress.AddressValueError:
        raise ValueError(f"must be an IPv4 address like 10.0.0.1, not {value!r}") from None
    if address.is_unspecified or address.is_multicast or address.is_reserved:
        raise ValueError(f"must be the address of one machine, not {address}")
    return str(address)


def _groups(value: object) -> str:
    return str(check_groups(_text(value)))


def _mac(value: object) -> str:
    mac = _text(value).lower().replace("-", ":")
    if not _MAC.fullmatch(mac):
        raise ValueError(f"must be a MAC address like 02:00:0a:00:00:01, not {value!r}")
    if int(mac[:2], 16) & 1:
        raise ValueError(f"must be the address of one machine, and {mac} is a multicast address")
    return mac


def _target(value: object) -> str:
    text = _text(value)
    match = _ENDPOINT.fullmatch(text)
    if not match or int(match["port"] or 1) not in range(1, 65536):
        raise ValueError(f"must be host:port, like 127.0.0.1:9559, not {value!r}")
    return text


def _listener(value: object) -> tuple[str, int]:
    match = _ENDPOINT.fullmatch(_text(value))
    if not match or match["host"] is None or int(match["port"]) > 65535:
        raise ValueError(f"must be host:port, like 0.0.0.0:{CONTROL_PORT} (port 0: a free one), not {value!r}")
    return match["host"], int(match["port"])
