"""The switches of a configuration as nodes of trees. A switch is one node, but a Tofino has one for each pipe, since
each pipe has cells of its own. Pure.

A Tofino with all ports in use at one pipe is one node with the switch's name. Otherwise each pipe in use is a node:
"leaf1/0", "leaf1/1". `cables` join ports of two pipes, and so make a tree of pipes. Its root is the pipe that leads to
the parent switch, or else the pipe with the fewest levels below.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from wiresum.controller.switches import Host, SwitchConfig
from wiresum.controller.topology import TopologyError, children
from wiresum.join.constants import BELOW_ROOT_WORKERS_MAX, SWITCH_WORKERS_MAX

PIPE_PORTS = 128
"""Ports of each pipe of a Tofino; ports are numbered pipe first."""
PIPES_MAX = 4


@dataclass(frozen=True)
class Node:
    name: str
    switch: SwitchConfig
    hosts: tuple[Host, ...]
    """The switch's hosts at this node."""
    pipe: int | None = None
    """The pipe of a Tofino; None: the switch has no pipes."""
    siblings: tuple[int, ...] = ()
    """The switch's other pipes that are nodes."""
    parent: str = ""
    """Name of the parent node; empty: none."""
    parent_port: int | None = None
    """The port where the parent's packets come in; None: there are no ports, or no parent."""
    port_at_parent: int | None = None
    """The parent's port where this node's packets come in."""


def pipe_of(port: int) -> int:
    return port // PIPE_PORTS


def nodes(switches: Sequence[SwitchConfig]) -> list[Node]:
    """The nodes of a configuration that is in order."""
    pipes = {switch.name: _pipes(switch, switches) for switch in switches}
    return [node for switch in switches for node in _nodes(switch, switches, pipes)]


def check(switches: Sequence[SwitchConfig]) -> None:
    """Raises a `TopologyError` for errors that `topology.check` cannot see."""
    below = children(switches)
    for switch in switches:
        _check_joints(switch, below[switch.name])
    found = nodes(switches)
    named = {switch.name: switch for switch in switches}
    for node in found:
        if named.get(node.name, node.switch) is not node.switch:
            text = f"its name is that of a pipe of {node.switch.name} already: choose another"
            raise TopologyError(named[node.name], text)
    nodes_named = {node.name: node for node in found}
    counts: dict[str, int] = {}
    for node in found:
        counts[node.parent] = counts.get(node.parent, 0) + 1
        above = nodes_named.get(node.parent)
        most = BELOW_ROOT_WORKERS_MAX if above and above.parent else SWITCH_WORKERS_MAX
        if above and counts[node.parent] > most:
            why = f", since {above.name} has a parent itself" if above.parent else ""
            text = f"parent: at most {most} switches can hang right below {above.name}{why}"
            raise TopologyError(node.switch, text)


def _check_joints(switch: SwitchConfig, below: Sequence[SwitchConfig]) -> None:
    used: dict[int | None, str] = {host.port: host.name for host in switch.hosts}
    used |= {other.port_at_parent: other.name for other in below}
    if switch.parent:
        used[switch.parent_port] = switch.parent
    joined: dict[int, frozenset[int]] = {}
    for ports in switch.cables:
        one, other = map(pipe_of, ports)
        for port in ports:
            if port in used:
                raise TopologyError(switch, f"cables: port {port} leads to {used[port]} already")
            used[port] = f"pipe {other if pipe_of(port) == one else one}"
        if one == other:
            text = f"cables: ports {ports[0]} and {ports[1]} are both of pipe {one} (port // {PIPE_PORTS})"
            raise TopologyError(switch, f"{text}: it takes one of each of two")
        ends = [joined.get(pipe, frozenset({pipe})) for pipe in (one, other)]
        if ends[0] & ends[1]:
            text = f"cables: pipes {one} and {other} are joined already, and a tree has no rings"
            raise TopologyError(switch, text)
        joined |= dict.fromkeys(ends[0] | ends[1], ends[0] | ends[1])


def _pipes(switch: SwitchConfig, switches: Sequence[SwitchConfig]) -> list[int]:
    """The pipes in use of a Tofino; empty for other kinds."""
    if switch.kind != "tofino":
        return []
    ports = {host.port for host in switch.hosts} | {port for ports in switch.cables for port in ports}
    links = [switch.parent_port, *(other.port_at_parent for other in switches if other.parent == switch.name)]
    return sorted({pipe_of(port) for port in [*ports, *links] if port is not None}) or [0]


def _nodes(
    switch: SwitchConfig, switches: Sequence[SwitchConfig], pipes: Mapping[str, Sequence[int]]
) -> Iterator[Node]:
    above = ""
    if switch.parent:
        above = _name(switch.parent, pipes[switch.parent], switch.port_at_parent)
    uplink = (above, switch.parent_port, switch.port_at_parent)
    mine = pipes[switch.name]
    if len(mine) <= 1:
        yield Node(switch.name, switch, switch.hosts, mine[0] if mine else None, (), *uplink)
        return
    top = pipe_of(switch.parent_port) if switch.parent_port is not None else None
    links = _links_up(switch, mine, top)
    for pipe in mine:
        hosts = tuple(host for host in switch.hosts if pipe_of(host.port) == pipe)
        siblings = tuple(other for other in mine if other != pipe)
        link = uplink if pipe == top else ("", None, None)
        if pipe in links:
            port, port_above = links[pipe]
            link = _name(switch.name, mine, port_above), port, port_above
        yield Node(_name(switch.name, mine, pipe * PIPE_PORTS), switch, hosts, pipe, siblings, *link)


def _name(switch_name: str, pipes: Sequence[int], port: int | None) -> str:
    return switch_name if len(pipes) <= 1 else f"{switch_name}/{pipe_of(port or 0)}"


def _links_up(switch: SwitchConfig, pipes: Sequence[int], top: int | None) -> dict[int, tuple[int, int]]:
    """For each pipe with a parent pipe: its own port, and the parent's."""
    around: dict[int, list[tuple[int, int]]] = {pipe: [] for pipe in pipes}
    for one, other in switch.cables:
        around[pipe_of(one)].append((other, one))
        around[pipe_of(other)].append((one, other))
    links: dict[int, tuple[int, int]] = {}
    seen: set[int] = set()
    # The pipe with the uplink is the root of the pipes it is joined to; else the one with the fewest levels below.
    for root in sorted(pipes, key=lambda pipe: (pipe != top, max(_distances(pipe, around).values()), pipe)):
        if root in seen:
            continue
        found = _distances(root, around)
        for pipe, distance in found.items():
            for port_below, port in around[pipe]:
                if found[pipe_of(port_below)] > distance:
                    links[pipe_of(port_below)] = port_below, port
        seen |= found.keys()
    return links


def _distances(root: int, around: Mapping[int, Sequence[tuple[int, int]]]) -> dict[int, int]:
    """The distance, in links, of each pipe that is joined to this one."""
    found = {root: 0}
    reached = [root]
    for pipe in reached:
        for port_there, _ in around[pipe]:
            if (there := pipe_of(port_there)) not in found:
                found[there] = found[pipe] + 1
                reached.append(there)
    return found
