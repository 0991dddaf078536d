"""The configuration file of `wiresum controller`, in TOML. `EXAMPLE` shows all of it.

Whatever is wrong is a `ConfigError` that names file, line and key.
"""

from __future__ import annotations

import ipaddress
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from wiresum.controller.p4runtime.host import PORT_MAX, Host
from wiresum.join import DEFAULT_CONTROL_PORT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

EXAMPLE = """\
[switch]
p4runtime = "127.0.0.1:9559"   # where its P4Runtime server listens
device = 0                     # its device id (0 unless given)
address = "10.0.0.1"           # the switch's own IPv4 address in the workers' network ...
mac = "02:00:0a:00:00:01"      # ... and the MAC it answers ARP requests with

[join]
listen = "0.0.0.0:43487"       # where workers join (TCP; this unless given)

[[host]]                       # one for each machine at the switch
name = "worker0"
address = "10.0.0.10"
mac = "02:00:0a:00:00:0a"
port = 0                       # of the switch

[[host]]
name = "worker1"
address = "10.0.0.11"
mac = "02:00:0a:00:00:0b"
port = 1
"""

_MAC = re.compile(r"(?:[0-9a-f]{2}:){5}[0-9a-f]{2}")
_ENDPOINT = re.compile(r"(?P<host>[^\s:]+):(?P<port>\d{1,5})|unix:.+")
_TABLE = re.compile(r"\s*\[\[?\s*(\w+)\s*\]\]?\s*(?:#.*)?")
_KEY = re.compile(r"\s*\"?([\w-]+)\"?\s*=")

T = TypeVar("T")


class ConfigError(ValueError):
    """The text says where, what is wrong, and what belongs there."""


@dataclass(frozen=True)
class SwitchConfig:
    p4runtime: str
    """A gRPC target: host:port, or unix:PATH."""
    device: int
    address: str
    mac: str


@dataclass(frozen=True)
class Config:
    switch: SwitchConfig
    hosts: tuple[Host, ...]
    listen: tuple[str, int]
    """Host and TCP port of the join service."""


def load(path: Path) -> Config:
    """Raises `ConfigError`, also if the file cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot read it: {error}") from error
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: this is not TOML: {error}") from error
    return _Reader(path, text, document).config()


class _Section:
    """One table of the file; each key must be taken, so that a misspelt one is an error."""

    def __init__(self, reader: _Reader, name: str, index: int, values: Mapping[str, Any]) -> None:
        self._reader, self._name, self._index = reader, name, index
        self._values = dict(values)

    def take(self, key: str, check: Callable[[Any], T], default: T | None = None) -> T:
        if key not in self._values:
            if default is None:
                raise self.error(None, f"{key} is missing")
            return default
        try:
            return check(self._values.pop(key))
        except ValueError as error:
            raise self.error(key, f"{key} {error}") from None

    def end(self) -> None:
        for key in self._values:
            raise self.error(key, f"nothing here is called {key}")

    def error(self, key: str | None, text: str) -> ConfigError:
        return self._reader.error(self._name, self._index, key, text)


class _Reader:
    def __init__(self, path: Path, text: str, document: Mapping[str, Any]) -> None:
        self._path, self._document = path, document
        self._lines = _line_numbers(text)

    def config(self) -> Config:
        for name in self._document:
            if name not in ("switch", "join", "host"):
                raise self.error(name, 0, None, "there is no such table: [switch], [join] and [[host]] are")
        switch = self._switch()
        return Config(switch, self._hosts(switch), self._listen())

    def error(self, table: str, index: int, key: str | None, text: str) -> ConfigError:
        line = self._lines.get((table, index, key)) or self._lines.get((table, index, None))
        place = f"{self._path}:{line}" if line else f"{self._path}"
        return ConfigError(f"{place}: {table}: {text}")

    def _switch(self) -> SwitchConfig:
        section = self._section("switch", required=True)
        config = SwitchConfig(
            p4runtime=section.take("p4runtime", _target),
            device=section.take("device", _whole(0, (1 << 64) - 1), 0),
            address=section.take("address", _address),
            mac=section.take("mac", _mac),
        )
        section.end()
        return config

    def _listen(self) -> tuple[str, int]:
        section = self._section("join", required=False)
        listen = section.take("listen", _listener, ("0.0.0.0", DEFAULT_CONTROL_PORT))
        section.end()
        return listen

    def _section(self, name: str, *, required: bool) -> _Section:
        values = self._document.get(name)
        if values is None and required:
            raise ConfigError(f"{self._path}: the table [{name}] is missing")
        if not isinstance(values or {}, dict):
            raise self.error(name, 0, None, f"must be a table, [{name}]")
        return _Section(self, name, 0, values or {})

    def _hosts(self, switch: SwitchConfig) -> tuple[Host, ...]:
        tables = self._document.get("host", [])
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            raise self.error("host", 0, None, "each host is a table of its own, [[host]]")
        if not tables:
            raise ConfigError(f"{self._path}: no host: say with [[host]] which machines are at which port")
        seen = {"address": {switch.address: "the switch"}, "mac": {switch.mac: "the switch"}, "name": {}}
        return tuple(self._host(index, table, seen) for index, table in enumerate(tables))

    def _host(self, index: int, table: Mapping[str, Any], seen: dict[str, dict[str, str]]) -> Host:
        section = _Section(self, "host", index, table)
        host = Host(
            name=section.take("name", _name),
            address=section.take("address", _address),
            mac=section.take("mac", _mac),
            port=section.take("port", _whole(0, PORT_MAX)),
        )
        section.end()
        for key, owners in seen.items():
            value = getattr(host, key)
            if value in owners:
                raise section.error(key, f"{key} {value} is {owners[value]}'s already")
            owners[value] = host.name
        return host


def _line_numbers(text: str) -> dict[tuple[str, int, str | None], int]:
    """Where tables and their keys stand, by table, index of its kind, and key (None: the table's own line). Good enough
    for a message: a file written in another of TOML's many ways gets one without a line."""
    lines: dict[tuple[str, int, str | None], int] = {}
    counts: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if match := _TABLE.fullmatch(line):
            table = match[1]
            counts[table] = counts.get(table, -1) + 1
            lines[table, counts[table], None] = number
        elif match := _KEY.match(line):
            lines[(table, counts[table], match[1]) if table else (match[1], 0, None)] = number
    return lines


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"must be a text in quotes, not {value!r}")
    return value


def _name(value: object) -> str:
    text = _text(value)
    if not text.isprintable():
        raise ValueError(f"must be printable, not {text!r}")
    return text


def _whole(least: int, most: int) -> Callable[[object], int]:
    def check(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise ValueError(f"must be a whole number from {least} to {most}, not {value!r}")
        return value

    return check


def _address(value: object) -> str:
    try:
        address = ipaddress.IPv4Address(_text(value))
    except ipaddress.AddressValueError:
        raise ValueError(f"must be an IPv4 address like 10.0.0.1, not {value!r}") from None
    if address.is_unspecified or address.is_multicast or address.is_reserved:
        raise ValueError(f"must be the address of one machine, not {address}")
    return str(address)


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
        raise ValueError(f"must be host:port, like 0.0.0.0:{DEFAULT_CONTROL_PORT} (port 0: a free one), not {value!r}")
    return match["host"], int(match["port"])
