"""The switches of a configuration as trees, and their checks. Pure. A switch without `parent` is the root of a tree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from wiresum.controller.switches import Host, SwitchConfig


class TopologyError(ValueError):
    def __init__(self, switch: SwitchConfig, text: str) -> None:
        """`text`: what is wrong with the switch, and what belongs there."""
        super().__init__(f"switch {switch.name}: {text}")


def check(switches: Sequence[SwitchConfig]) -> None:
    """Raises a `TopologyError` if the switches form no trees, or a link or host is wrong."""
    named = {switch.name: switch for switch in switches}
    for switch in switches:
        _check_parent(switch, named)
    below = children(switches)
    for switch in switches:
        _check_link(switch, named, below)
        if not switch.hosts and not below[switch.name] and (switch.parent or switch.kind != "software"):
            at_port = " and at which port" if switch.kind != "software" else ""
            raise TopologyError(switch, f"no host: say with [[switch.host]] which machines hang on it{at_port}")
    _check_hosts(switches)


def children(switches: Iterable[SwitchConfig]) -> dict[str, list[SwitchConfig]]:
    """The switches right below each switch, by its name, in the order of the file."""
    switches = list(switches)
    return {switch.name: [other for other in switches if other.parent == switch.name] for switch in switches}


def above(name: str, parents: Mapping[str, str]) -> Iterator[str]:
    """The switches above this one, from its parent to the root. `parents`: parents of all switches, empty for a
    root."""
    while name := parents[name]:
        yield name


def elsewhere(switch: SwitchConfig, switches: Sequence[SwitchConfig]) -> Iterator[Host]:
    """The machines with MACs at other switches of the tree, each with the port of this switch that leads there."""
    parents = {other.name: other.parent for other in switches}
    ports = {other.name: other.port_at_parent for other in switches}
    top = [switch.name, *above(switch.name, parents)][-1]
    for other in switches:
        way = [other.name, *above(other.name, parents)]
        if other.name == switch.name or way[-1] != top:
            continue
        port = ports[way[way.index(switch.name) - 1]] if switch.name in way else switch.parent_port
        assert port is not None, "both ends of each link are known"
        yield from (replace(host, port=port) for host in other.hosts if host.mac)


def _check_parent(switch: SwitchConfig, named: Mapping[str, SwitchConfig]) -> None:
    if not switch.parent:
        for key, port in (("parent_port", switch.parent_port), ("port_at_parent", switch.port_at_parent)):
            if port is not None:
                raise TopologyError(switch, f"{key} is of a switch that has a parent: say parent too")
        return
    if switch.parent not in named:
        others = ", ".join(name for name in named if name != switch.name) or "none"
        raise TopologyError(switch, f"parent: there is no switch {switch.parent!r} to be above; there are: {others}")
    way = [switch.name]
    while parent := named[way[-1]].parent:
        if parent in way:
            ring = " below ".join([*way[way.index(parent) :], parent])
            text = f"parent makes a ring: {ring}. A tree has a switch at its top, which has no parent"
            raise TopologyError(switch, text)
        if parent not in named:
            return  # its own check reports this error
        way.append(parent)


def _check_link(
    switch: SwitchConfig, named: Mapping[str, SwitchConfig], below: Mapping[str, list[SwitchConfig]]
) -> None:
    if not switch.parent:
        return
    parent, siblings = named[switch.parent], below[switch.parent]
    if switch.kind != "software":
        if switch.parent_port is None:
            raise TopologyError(switch, f"parent_port is missing: its port that leads to {parent.name}")
        _check_free(switch, "parent_port", switch, switch.parent_port, below[switch.name])
    if parent.kind != "software":
        if switch.port_at_parent is None:
            raise TopologyError(switch, f"port_at_parent is missing: the port of {parent.name} that leads to it")
        before = siblings[: siblings.index(switch)]
        _check_free(switch, "port_at_parent", parent, switch.port_at_parent, before)
    elif switch.port_at_parent is not None:
        text = f"port_at_parent: {parent.name} is a software switch, which has no ports: leave it out"
        raise TopologyError(switch, text)
    for one, other in ((switch, parent), (parent, switch)):
        if one.kind == "software" != other.kind and not one.mac:
            text = f"mac is missing: {other.name} addresses its packets to it with that of the machine where it runs"
            raise TopologyError(one, text)


def _check_free(about: SwitchConfig, key: str, switch: SwitchConfig, port: int, others: Iterable[SwitchConfig]) -> None:
    """Raises if another neighbour is at this port of the switch. `others`: switches below it. `about`: the switch whose
    configuration has the key."""
    used: dict[int | None, str] = {host.port: host.name for host in switch.hosts}
    used |= {other.port_at_parent: other.name for other in others}
    if key == "port_at_parent" and switch.parent_port is not None:
        used[switch.parent_port] = switch.parent
    if port in used:
        raise TopologyError(about, f"{key}: port {port} of {switch.name} leads to {used[port]} already")


def _check_hosts(switches: Sequence[SwitchConfig]) -> None:
    """Raises if a host is at two switches of one tree."""
    parents = {switch.name: switch.parent for switch in switches}
    seen: dict[tuple[str, str, str], str] = {}
    for switch in switches:
        top = [switch.name, *above(switch.name, parents)][-1]
        for host in switch.hosts:
            for key, value in (("address", host.address), ("mac", host.mac), ("name", host.name)):
                other = seen.setdefault((top, key, value), switch.name)
                if value and other != switch.name:
                    text = f"host {host.name}: {key} {value} is at {other} already, and both are switches of one tree"
                    raise TopologyError(switch, f"{text}: a host hangs on one of them")
