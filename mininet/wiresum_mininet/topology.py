"""Topologies, read from `topology.json`. Pure, but for reading the file.

    {
      "about": "a line for `make mininet ARGS=list`",
      "hosts":    {"h1": {"ip": "10.0.0.1/24", "mac": "02:00:0a:00:00:01"},
                   "c0": {..., "role": "controller"}},
      "switches": {"s1": {"ip": "10.0.0.101/24", "mac": "02:00:0a:00:00:65", "role": "aggregate"},
                   "l1": {..., "role": "aggregate", "parent": "s1"}},
      "links":    [["h1", "s1-p1"], ["s1-p2", "s2-p1", {"rate_mbit": 10, "delay": "2ms", "loss": 0.01}]]
    }

The form is that of p4lang's tutorials. A link's end is a host, or a switch and the number of its port. A switch's role:

    aggregate   sums what workers send to its address, and forwards everything else. Where there are several, all but
                one have a parent: the switch that they send their sums to, and of which they are a worker. Or none has
                one: then a job is at one of them, and goes on at another if that is lost.
    forward     runs the same program, and forwards alone. Has an address too, at which it answers pings.
    ethernet    an ordinary Ethernet switch

A switch that aggregates may also have a "kind", "bmv2" or "software", different from that of the others.

Switches and links form a tree: flooded frames would circulate in a loop for ever.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "topologies"
AGGREGATE, FORWARD, ETHERNET = ROLES = ("aggregate", "forward", "ethernet")
BMV2, SOFTWARE = KINDS = ("bmv2", "software")
PORTS_MAX = 64
LINKS_MAX = 256

# Mininet requires a number in a switch's name, and Linux limits the length of an interface's name.
_NAME = re.compile(r"[a-z]{1,3}[0-9]{1,3}")
_END = re.compile(r"(?P<node>[a-z]+[0-9]+)(?:-p(?P<port>[0-9]+))?")
_MAC = re.compile(r"0[26ae](?::[0-9a-f]{2}){5}")
_DELAY = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:us|ms|s)")


class TopologyError(ValueError):
    """Raised for an invalid topology; the text names the file, the mistake, and what is expected."""


@dataclass(frozen=True)
class HostPlan:
    """A machine with one interface."""

    name: str
    interface: ipaddress.IPv4Interface
    mac: str
    runs_controller: bool

    @property
    def address(self) -> str:
        return str(self.interface.ip)


@dataclass(frozen=True)
class SwitchPlan:
    """A switch; an Ethernet switch has no address."""

    name: str
    role: str
    interface: ipaddress.IPv4Interface | None
    mac: str
    parent: str = ""
    """Name of the switch that gets this switch's sums; empty for the root, and where each switch is alone."""
    kind: str = ""
    """One of `KINDS`; empty for the kind of all switches."""

    @property
    def address(self) -> str:
        return "" if self.interface is None else str(self.interface.ip)


@dataclass(frozen=True)
class End:
    """One end of a link: a host, whose port is 0, or a port of a switch."""

    node: str
    port: int


@dataclass(frozen=True)
class Shape:
    """The effect of a link on packets in each direction; None has no effect."""

    rate_mbit: float | None = None
    delay: str | None = None
    loss: float = 0.0

    def __post_init__(self) -> None:
        if self.rate_mbit is not None and not 0 < self.rate_mbit <= 1000:
            raise ValueError(f"rate_mbit must be above 0 and at most 1000, not {self.rate_mbit}")
        if self.delay is not None and not _DELAY.fullmatch(self.delay):
            raise ValueError(f'delay must be like "2ms" or "500us", not {self.delay!r}')
        if not 0.0 <= self.loss < 1.0:
            raise ValueError(f"loss is a fraction of packets, 0 <= loss < 1, not {self.loss}")


@dataclass(frozen=True)
class LinkPlan:
    ends: tuple[End, End]
    shape: Mapping[str, Any]
    """Properties from the file; links share all others."""


@dataclass(frozen=True)
class Topology:
    """A valid network."""

    name: str
    about: str
    hosts: tuple[HostPlan, ...]
    switches: tuple[SwitchPlan, ...]
    links: tuple[LinkPlan, ...]

    @property
    def workers(self) -> tuple[HostPlan, ...]:
        """The workers in the order of ranks."""
        return tuple(host for host in self.hosts if not host.runs_controller)

    @property
    def controller(self) -> HostPlan:
        return next(host for host in self.hosts if host.runs_controller)

    @property
    def aggregators(self) -> tuple[SwitchPlan, ...]:
        """The switches that sum."""
        return tuple(switch for switch in self.switches if switch.role == AGGREGATE)

    @property
    def root(self) -> SwitchPlan:
        """The first switch without a parent. In a tree it is the only one."""
        return next(switch for switch in self.aggregators if not switch.parent)

    @property
    def is_tree(self) -> bool:
        """True if the switches that sum form a tree."""
        return any(switch.parent for switch in self.aggregators)

    def switch(self, name: str) -> SwitchPlan:
        """The switch with this name, which must exist."""
        return next(switch for switch in self.switches if switch.name == name)

    def aggregator_of(self, host: str) -> SwitchPlan:
        """The first aggregator on a host's way to the root, in a tree."""
        path = self.path(host, self.root.name)
        return next(switch for node in path for switch in self.aggregators if switch.name == node)

    def neighbours(self, node: str) -> Iterator[tuple[int, str]]:
        """The node at the other end of each port."""
        for link in self.links:
            for near, far in (link.ends, link.ends[::-1]):
                if near.node == node:
                    yield near.port, far.node

    def ports(self, switch: str) -> list[int]:
        return sorted(port for port, _ in self.neighbours(switch))

    def port_towards(self, switch: str, target: str) -> int:
        """The port of a switch on the only path to a node."""
        for port, neighbour in self.neighbours(switch):
            if self._is_behind(target, neighbour, before=switch):
                return port
        raise ValueError(f"nothing called {target} is behind {switch}")

    def path(self, start: str, target: str) -> list[str]:
        """The nodes on the path between two nodes, both included."""
        at, path = start, [start]
        while at != target:
            at = next(far for _, far in self.neighbours(at) if self._is_behind(target, far, before=at))
            path.append(at)
        return path

    def _is_behind(self, target: str, node: str, *, before: str) -> bool:
        if node == target:
            return True
        onwards = (neighbour for _, neighbour in self.neighbours(node) if neighbour != before)
        return any(self._is_behind(target, neighbour, before=node) for neighbour in onwards)


def names() -> list[str]:
    """Names of the topologies in the folder `FOLDER`."""
    return sorted(path.parent.name for path in FOLDER.glob("*/topology.json"))


def find(wanted: str) -> Topology:
    """Finds a topology by name, or by the path of a file. Raises `TopologyError`."""
    if wanted in names():
        return load(FOLDER / wanted / "topology.json")
    if not wanted.endswith(".json"):
        raise TopologyError(f"no topology is called {wanted}: choose one of {', '.join(names())}, or name a .json file")
    return load(Path(wanted))


def load(path: Path) -> Topology:
    """Loads a topology. Raises `TopologyError`, also if the file cannot be read."""
    name = path.parent.name if path.name == "topology.json" else path.stem
    try:
        return _checked(_parsed(name, json.loads(path.read_text())))
    except OSError as error:
        raise TopologyError(f"{path}: cannot read it: {error.strerror}") from error
    except json.JSONDecodeError as error:
        raise TopologyError(f"{path}: this is not JSON: {error}") from error
    except ValueError as error:
        raise TopologyError(f"{path}: {error}") from error


def _parsed(name: str, document: Any) -> Topology:
    fields = _fields(document, "the file", ("hosts", "switches", "links"), ("about",))
    hosts = [_host(name, values) for name, values in _fields(fields["hosts"], "hosts").items()]
    switches = [_switch(name, values) for name, values in _fields(fields["switches"], "switches").items()]
    links = fields["links"]
    if not isinstance(links, list) or len(links) > LINKS_MAX:
        raise ValueError(f"links must be a list of at most {LINKS_MAX}")
    host_names = {host.name for host in hosts}
    return Topology(
        name,
        str(fields.get("about", "")),
        tuple(hosts),
        tuple(switches),
        tuple(_link(row, host_names) for row in links),
    )


def _fields(value: Any, what: str, needed: tuple[str, ...] = (), possible: tuple[str, ...] | None = None) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{what} must be an object, not {value!r}")
    for key in needed:
        if key not in value:
            raise ValueError(f"{what}: {key} is missing")
    if needed or possible is not None:
        for key in value.keys() - {*needed, *(possible or ())}:
            raise ValueError(f"{what}: nothing here is called {key}")
    return value


def _host(name: str, value: Any) -> HostPlan:
    fields = _fields(value, name, ("ip", "mac"), ("role",))
    if fields.get("role", "worker") not in ("worker", "controller"):
        raise ValueError(f'{name}: the role of a host is "worker" or "controller", not {fields["role"]!r}')
    return HostPlan(
        _name(name), _interface(name, fields["ip"]), _mac(name, fields["mac"]), fields.get("role") == "controller"
    )


def _switch(name: str, value: Any) -> SwitchPlan:
    role = _fields(value, name).get("role")
    if role not in ROLES:
        raise ValueError(f"{name}: the role of a switch is one of {', '.join(ROLES)}, not {role!r}")
    if role == ETHERNET:
        _fields(value, name, ("role",), ())
        return SwitchPlan(_name(name), role, None, "")
    fields = _fields(value, name, ("role", "ip", "mac"), ("parent", "kind") if role == AGGREGATE else ())
    if fields.get("kind", BMV2) not in KINDS:
        raise ValueError(f"{name}: the kind of a switch is {' or '.join(KINDS)}, not {fields['kind']!r}")
    interface, mac = _interface(name, fields["ip"]), _mac(name, fields["mac"])
    return SwitchPlan(_name(name), role, interface, mac, str(fields.get("parent", "")), fields.get("kind", ""))


def _link(row: Any, hosts: set[str]) -> LinkPlan:
    if not isinstance(row, list) or len(row) not in (2, 3):
        raise ValueError(f'a link is ["h1", "s1-p1"], or has {{"rate_mbit": ...}} behind that, not {row!r}')
    shape = _fields(row[2], f"link {row[:2]}", (), ("rate_mbit", "delay", "loss")) if len(row) == 3 else {}
    for key, types in (("rate_mbit", (int, float)), ("loss", (int, float)), ("delay", str)):
        if key in shape and (not isinstance(shape[key], types) or isinstance(shape[key], bool)):
            raise ValueError(f"link {row[:2]}: {key} cannot be {shape[key]!r}")
    Shape(**shape)
    return LinkPlan((_end(row[0], hosts), _end(row[1], hosts)), shape)


def _end(text: Any, hosts: set[str]) -> End:
    match = _END.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"a link's end is a host or a switch's port, like h1 or s1-p1, not {text!r}")
    if match["node"] in hosts:
        if match["port"]:
            raise ValueError(f"{text}: a host has one interface: write {match['node']}")
        return End(match["node"], 0)
    if not match["port"] or not 1 <= int(match["port"]) <= PORTS_MAX:
        raise ValueError(f"{text}: write a switch's port like {match['node']}-p1, from 1 to {PORTS_MAX}")
    return End(match["node"], int(match["port"]))


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError(f"{text!r} is no name: letters and then a number, like h1")
    return text


def _interface(name: str, text: Any) -> ipaddress.IPv4Interface:
    try:
        return ipaddress.IPv4Interface(text)
    except ValueError:
        raise ValueError(f'{name}: ip must be like "10.0.0.1/24", not {text!r}') from None


def _mac(name: str, text: Any) -> str:
    if not isinstance(text, str) or not _MAC.fullmatch(text):
        raise ValueError(f'{name}: mac must be a local address like "02:00:0a:00:00:01", not {text!r}')
    return text


def _checked(topology: Topology) -> Topology:
    """Checks a topology. Raises `ValueError`."""
    nodes: list[HostPlan | SwitchPlan] = [*topology.hosts, *topology.switches]
    for what, values in (
        ("name", [node.name for node in nodes]),
        ("ip", [node.address for node in nodes if node.address]),
        ("mac", [node.mac for node in nodes if node.mac]),
        ("end", [f"{end.node}-p{end.port}" for link in topology.links for end in link.ends]),
    ):
        for value in values:
            if values.count(value) > 1:
                raise ValueError(f"the {what} {value} is there twice")
    if len({node.interface.network for node in nodes if node.interface}) > 1:
        raise ValueError("all addresses must be in one network: nothing routes here")
    if sum(host.runs_controller for host in topology.hosts) != 1:
        raise ValueError('one host must have "role": "controller"')
    roots = [switch.name for switch in topology.aggregators if not switch.parent]
    if not roots:
        raise ValueError('one switch must have "role": "aggregate" and no "parent"')
    if topology.is_tree and len(roots) > 1:
        raise ValueError(f"{', '.join(roots)} have no parent: in a tree only one has none, and otherwise all")
    if len(topology.workers) < 2:
        raise ValueError("at least two hosts must be workers")
    _check_tree(topology, {node.name for node in nodes})
    _check_parents(topology)
    return topology


def _check_parents(topology: Topology) -> None:
    names = {switch.name for switch in topology.aggregators}
    for switch in topology.aggregators:
        if not switch.parent:
            continue
        if switch.parent not in names:
            raise ValueError(f'{switch.name}: its parent {switch.parent} is no switch with "role": "aggregate"')
        root = topology.root.name
        above = [node for node in topology.path(switch.name, root)[1:] if node in names]
        if above[0] != switch.parent:
            raise ValueError(f"{switch.name}: its parent must be {above[0]}, the next on the way to {root}")


def _check_tree(topology: Topology, nodes: set[str]) -> None:
    for link in topology.links:
        for end in link.ends:
            if end.node not in nodes:
                raise ValueError(f"a link ends at {end.node}, which is neither a host nor a switch")
        if link.ends[0].node == link.ends[1].node:
            raise ValueError(f"there is a loop through {link.ends[0].node}: a link has the same node at both ends")
    reached, waiting = set[str](), [topology.root.name]
    while waiting:
        node = waiting.pop()
        if node in reached:
            raise ValueError(f"there is a loop through {node}: leave a link out, since floods would go round it")
        reached.add(node)
        behind = [neighbour for _, neighbour in topology.neighbours(node)]
        waiting += [neighbour for neighbour in behind if neighbour not in reached]
    if lonely := sorted(nodes - reached):
        raise ValueError(f"no link joins {', '.join(lonely)} to {topology.root.name}")
