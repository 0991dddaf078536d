"""One switch as the configuration describes it: where it is, what it should run, who is at its ports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from wiresum.controller import topology
from wiresum.controller.config import Host, SwitchConfig
from wiresum.controller.p4runtime import device_config
from wiresum.controller.p4runtime.device_config import Pipeline
from wiresum.controller.p4runtime.own import DATA_PORT

PIPE_PORTS = 128
"""Of a Tofino, whose ports are numbered pipe first."""
NO_MAC = "00:00:00:00:00:00"


@dataclass(frozen=True)
class Target:
    name: str
    """For people."""
    kind: str
    """One of `driver.KINDS`."""
    p4runtime: str
    """Where its P4Runtime server listens: host:port, or unix:PATH."""
    device: int
    pipeline: Pipeline
    address: str
    """The switch's own in the workers' network, IPv4."""
    mac: str = NO_MAC
    """The MAC it answers ARP requests with. A software switch has none of its own."""
    hosts: tuple[Host, ...] = ()
    """The machines that hang on it. None at a software switch outside a tree: any machine reaches it."""
    parent: Host | None = None
    """The switch above in a tree, at this one's port towards it."""
    children: tuple[Host, ...] = ()
    """The switches right below, likewise."""
    elsewhere: tuple[Host, ...] = ()
    """Of a switch that has ports: the machines that hang on other switches of the tree, each at the port that leads
    towards it."""
    port: int = DATA_PORT
    """Base UDP port; fixed in the P4 program."""
    tls: Path | None = None
    """A folder with ca.crt, tls.crt and tls.key: mutual TLS. None: plaintext."""

    def with_keys(self, identity: bytes) -> Target:
        """The same, for a controller that draws its jobs' keys from the sequence of this identity."""
        return replace(self, pipeline=replace(self.pipeline, keys=identity))

    def pipe(self, port: int) -> int:
        """Which of the switch's pipes, each with registers of its own, the port leads to."""
        return port // PIPE_PORTS if self.kind == "tofino" else 0

    @property
    def neighbours(self) -> tuple[Host, ...]:
        """Whoever is behind its ports, machines and switches."""
        return (*self.hosts, *self.children, *((self.parent,) if self.parent else ()))

    @property
    def has_ports(self) -> bool:
        """Is it known by which port a worker's packets come, and where its RESULTs must go?"""
        return self.kind != "software"

    def reaches(self, address: str) -> bool:
        """Does a machine with this address hang on it?"""
        anywhere = not (self.has_ports or self.hosts or self.parent or self.children)
        return anywhere or any(host.address == address for host in self.hosts)


def target_of(config: SwitchConfig, switches: Sequence[SwitchConfig] = ()) -> Target:
    """`switches`: all of the configuration, if it has others. Raises `PipelineError` if its program cannot be used."""
    named = {switch.name: switch for switch in switches}
    parent, has_ports = named.get(config.parent), config.kind != "software"
    return Target(
        name=config.name,
        kind=config.kind,
        p4runtime=config.p4runtime,
        device=config.device,
        pipeline=_pipeline(config),
        address=config.address,
        mac=config.mac or NO_MAC,
        hosts=config.hosts,
        parent=_neighbour(parent, config.parent_port) if parent else None,
        children=tuple(_neighbour(below, below.port_at_parent) for below in switches if below.parent == config.name),
        elsewhere=tuple(topology.elsewhere(config, switches)) if has_ports and named else (),
        port=config.port,
        tls=config.tls,
    )


def _neighbour(switch: SwitchConfig, port: int | None) -> Host:
    """As it is seen through this port of another."""
    return Host(switch.name, switch.address, switch.mac or NO_MAC, port or 0)


def _pipeline(config: SwitchConfig) -> Pipeline:
    if config.kind == "software":
        return device_config.software(lanes=config.lanes, slots=config.slots)
    if config.kind == "tofino":
        assert config.program is not None
        assert config.p4info is not None
        return device_config.tofino(config.program, config.p4info, form=config.device_config)
    return device_config.bmv2()
