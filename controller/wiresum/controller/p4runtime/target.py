"""One switch as the configuration describes it: where it is, what it should run, who is at its ports."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

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
    """The machines at its ports, and the switches right above and below it, unless it is a software switch, which any
    machine reaches."""
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
    def has_ports(self) -> bool:
        """Is it known by which port a worker's packets come, and where its RESULTs must go?"""
        return self.kind != "software"


def target_of(config: SwitchConfig) -> Target:
    """Raises `PipelineError` if its program cannot be used."""
    return Target(
        name=config.name,
        kind=config.kind,
        p4runtime=config.p4runtime,
        device=config.device,
        pipeline=_pipeline(config),
        address=config.address,
        mac=config.mac or NO_MAC,
        hosts=config.hosts,
        port=config.port,
        tls=config.tls,
    )


def _pipeline(config: SwitchConfig) -> Pipeline:
    if config.kind == "software":
        return device_config.software(lanes=config.lanes, slots=config.slots)
    if config.kind == "tofino":
        assert config.program is not None
        assert config.p4info is not None
        return device_config.tofino(config.program, config.p4info)
    return device_config.bmv2()
