"""A switch, or a pipe of one, as the configuration describes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Address
from pathlib import Path

from wiresum.controller import topology
from wiresum.controller.driver import Endpoint
from wiresum.controller.nodes import PIPES_MAX, Node, nodes
from wiresum.controller.p4runtime import device_config
from wiresum.controller.p4runtime.device_config import Pipeline
from wiresum.controller.p4runtime.sizes import PipelineError
from wiresum.controller.switches import Host, SwitchConfig
from wiresum.join.constants import SWITCH_PORT

NO_MAC = "00:00:00:00:00:00"


@dataclass(frozen=True)
class Target:
    name: str
    """Name of the switch or pipe, for people."""
    kind: str
    """One of `driver.KINDS`."""
    p4runtime: str
    """The address of its P4Runtime server: host:port, or unix:PATH."""
    device: int
    pipeline: Pipeline
    address: str
    """IPv4 address of the switch in the workers' network."""
    mac: str = NO_MAC
    """MAC address for ARP; a software switch has none."""
    hosts: tuple[Host, ...] = ()
    """Machines at the switch; empty at a software switch that any machine reaches."""
    parent: Host | None = None
    """The parent switch or pipe, with this one's port towards it; None: there is none. A pipe has the switch's
    address."""
    children: tuple[Host, ...] = ()
    """The switches and pipes right below, each with this one's port towards it."""
    elsewhere: tuple[Host, ...] = ()
    """The machines at other switches of the tree, each with the port of this switch that leads there."""
    pipe: int | None = None
    """The pipe of a Tofino: this pipe, or the only one in use. None: the switch has no pipes."""
    part_of: str = ""
    """Name of the switch, if other pipes of the switch are nodes too; empty: this is a whole switch."""
    siblings: tuple[int, ...] = ()
    """The other pipes that are nodes, which share program, tables and addresses with this one."""
    beside: tuple[Host, ...] = ()
    """Machines and switches at the siblings."""
    port: int = SWITCH_PORT
    """Base UDP port; fixed in the P4 program."""
    multicast: str = ""
    """First of the multicast groups for RESULTs, as in `SwitchConfig`; empty: none."""
    tls: Path | None = None

    def with_keys(self, identity: bytes) -> Target:
        """This target with cells for keys of the sequence with this identity."""
        return replace(self, pipeline=replace(self.pipeline, keys=identity))

    @property
    def neighbours(self) -> tuple[Host, ...]:
        """Machines, switches, and pipes behind the node's ports."""
        return (*self.hosts, *self.children, *((self.parent,) if self.parent else ()))

    @property
    def around(self) -> tuple[Host, ...]:
        """Machines and switches behind the ports of the whole switch."""
        return (*(host for host in self.neighbours if host.address != self.address), *self.beside)

    @property
    def is_first(self) -> bool:
        """True if this is the first of the switch's nodes, which reports what the nodes share."""
        return all(self.pipe is not None and self.pipe < other for other in self.siblings)

    @property
    def jobs_max(self) -> int:
        """How many jobs there may be. Row 0 is for packets of no job."""
        return (self.pipeline.job_rows - 1) // (PIPES_MAX if self.siblings else 1)

    def results_group(self, job: int) -> Endpoint | None:
        return Endpoint(str(IPv4Address(self.multicast) + job), SWITCH_PORT) if self.multicast else None

    def row(self, job: int) -> int:
        """Row of the job's counters, and id of its multicast group; the pipes of a switch share the rows."""
        return 1 + job if not self.siblings else 1 + PIPES_MAX * job + (self.pipe or 0)

    def pipe_of_row(self, row: int) -> int | None:
        """The pipe of a row; None: this is not a job's row, or the switch is one node."""
        return (row - 1) % PIPES_MAX if self.siblings and 0 < row < self.pipeline.job_rows else None

    @property
    def has_ports(self) -> bool:
        return self.kind != "software"

    def reaches(self, address: str) -> bool:
        """True if a machine with this address can be a worker at this switch or pipe."""
        anywhere = not (self.has_ports or self.hosts or self.parent or self.children)
        return anywhere or any(host.address == address for host in self.hosts)


def targets_of(switches: Sequence[SwitchConfig]) -> list[Target]:
    """All nodes of a configuration. Raises `PipelineError` if a switch's program cannot be used."""
    pipelines = {switch.name: _pipeline(switch) for switch in switches}
    found = nodes(switches)
    targets = [_target(node, found, pipelines[node.switch.name], switches) for node in found]
    for target in targets:
        _check_room(target)
    return targets


def _target(node: Node, found: Sequence[Node], pipeline: Pipeline, switches: Sequence[SwitchConfig]) -> Target:
    config = node.switch
    above, below = _above(node, found), _below(node, found)
    siblings = [other for other in found if other.switch is config and other is not node]
    return Target(
        name=node.name,
        kind=config.kind,
        p4runtime=config.p4runtime,
        device=config.device,
        pipeline=pipeline,
        address=config.address,
        mac=config.mac or NO_MAC,
        hosts=node.hosts,
        parent=_neighbour(above, node.parent_port) if above else None,
        children=tuple(_neighbour(other, other.port_at_parent) for other in below),
        elsewhere=tuple(topology.elsewhere(config, switches)) if config.kind != "software" else (),
        pipe=node.pipe,
        part_of=config.name if node.siblings else "",
        siblings=node.siblings,
        beside=tuple(host for sibling in siblings for host in _outside(sibling, found)),
        port=config.port,
        multicast=config.multicast,
        tls=config.tls,
    )


def _above(node: Node, found: Sequence[Node]) -> Node | None:
    return next((other for other in found if other.name == node.parent), None)


def _below(node: Node, found: Sequence[Node]) -> list[Node]:
    return [other for other in found if other.parent == node.name]


def _outside(pipe: Node, found: Sequence[Node]) -> Iterator[Host]:
    """Machines and switches at a pipe."""
    yield from pipe.hosts
    yield from (_neighbour(node, node.port_at_parent) for node in _below(pipe, found) if node.switch is not pipe.switch)
    above = _above(pipe, found)
    if above is not None and above.switch is not pipe.switch:
        yield _neighbour(above, pipe.parent_port)


def _neighbour(node: Node, port: int | None) -> Host:
    """A node as its neighbour sees it. `port`: the neighbour's port towards this node."""
    return Host(node.name, node.switch.address, node.switch.mac or NO_MAC, port or 0)


def _check_room(target: Target) -> None:
    """Raises `PipelineError` if the switch lacks entries for what the configuration needs without jobs."""
    if not target.has_ports:
        return
    sizes = {table.preamble.name: table.size for table in target.pipeline.p4info.tables}
    around = len(target.around) + len(target.elsewhere)
    for table, wanted, what in (
        ("own", 3, "its two addresses and the number of keys"),
        ("forward", around, "one for each host"),
    ):
        if wanted > sizes[table]:
            raise PipelineError(
                f"{target.name}: table '{table}' has room for {sizes[table]} entries, and the configuration needs "
                f"{wanted}, {what}: list fewer hosts in the tree, or compile the program with more "
                f"{table.upper()}_ENTRIES (p4src/common/sizes.p4)"
            )


def _pipeline(config: SwitchConfig) -> Pipeline:
    try:
        return _pipeline_of_kind(config)
    except PipelineError as error:
        raise PipelineError(f"{config.name}: {error}") from error


def _pipeline_of_kind(config: SwitchConfig) -> Pipeline:
    if config.kind == "software":
        return device_config.software(lanes=config.lanes, slots=config.slots)
    if config.kind == "tofino":
        assert config.program is not None
        assert config.p4info is not None
        return device_config.tofino(config.program, config.p4info, form=config.device_config)
    return device_config.bmv2()
