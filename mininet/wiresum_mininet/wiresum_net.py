"""A whole network of a topology, with captures, logs, the controller, and workers that train.

    with WiresumNet(topology, kind="bmv2", workplace=Workplace(folder)) as net:
        net.pingAll()
        runs = net.start_workers(["python", "train.py"])

The controller is a program on one of the hosts, and workers join it over TCP through the switches. It programs over
P4Runtime all bmv2 switches, and the software switches that sum. bmv2 switches that only forward run the program too, so
they are drained (`wiresum jobs drain`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from mininet.log import output
from mininet.net import Mininet
from mininet.topo import Topo

from wiresum import compiled
from wiresum.join.constants import CONTROL_PORT
from wiresum_lab.processes import ProgramError, wiresum
from wiresum_mininet.nodes import Bmv2Switch, EthernetSwitch, SoftwareSwitch, WiresumHost, WiresumLink, Workplace
from wiresum_mininet.programs import Program
from wiresum_mininet.topology import (
    AGGREGATE,
    BMV2,
    ETHERNET,
    FORWARD,
    KINDS,
    SOFTWARE,
    HostPlan,
    Shape,
    SwitchPlan,
    Topology,
)

STORE_PORT = 29_500


class WiresumTopo(Topo):  # type: ignore[misc]
    """Mininet's form of a topology. `shape`: the default for links."""

    def build(self, *, topology: Topology, kind: str, workplace: Workplace, shape: Shape) -> None:
        for host in topology.hosts:
            variables = _variables(topology, host)
            self.addHost(host.name, cls=WiresumHost, ip=str(host.interface), mac=host.mac, variables=variables)
        for plan in topology.switches:
            if plan.role == ETHERNET:
                self.addSwitch(plan.name, cls=EthernetSwitch)
            else:
                cls = Bmv2Switch if (plan.kind or kind) == BMV2 else SoftwareSwitch
                self.addSwitch(plan.name, cls=cls, plan=plan, workplace=workplace)
        for link in topology.links:
            near, far = link.ends
            own = Shape(**{**vars(shape), **link.shape})
            self.addLink(near.node, far.node, port1=near.port, port2=far.port, cls=WiresumLink, shape=own)


class WiresumNet(Mininet):  # type: ignore[misc]
    """A network, built by the constructor, started and stopped by `with`. Raises `ProgramError`."""

    # Prevents Mininet from raising limits of the whole machine, which these small networks do not need.
    inited = True

    def __init__(self, topology: Topology, *, kind: str, workplace: Workplace, shape: Shape | None = None) -> None:
        """`kind`: kind of the switches for which the file gives none."""
        if kind not in KINDS:
            raise ValueError(f"a switch is of the kind {' or '.join(KINDS)}, not {kind!r}")
        self.topology, self.kind, self.workplace = topology, kind, workplace
        self.hosts: list[Any] = []
        self.switches: list[Any] = []
        self.links: list[Any] = []
        self._captures: list[Program] = []
        self._controller: Program | None = None
        workplace.make()
        topo = WiresumTopo(topology=topology, kind=kind, workplace=workplace, shape=shape or Shape())
        try:
            super().__init__(topo=topo, controller=None, link=WiresumLink)
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> WiresumNet:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def workers(self) -> list[WiresumHost]:
        """The workers' hosts in the order of ranks."""
        return [self[host.name] for host in self.topology.workers]

    @property
    def control(self) -> str:
        """The endpoint of the join service."""
        return f"{self.topology.controller.address}:{CONTROL_PORT}"

    def start(self) -> None:
        self._start_captures()
        super().start()
        self._start_controller()

    def stop(self) -> None:
        """Stops everything. Idempotent."""
        if self._controller is not None:
            self._controller.stop()
            self._controller = None
        for capture in self._captures:
            capture.stop()
        self._captures = []
        if self.hosts or self.switches:
            super().stop()
        self.hosts, self.switches, self.links = [], [], []

    def programmed(self) -> list[SwitchPlan]:
        """The switches that the controller drives."""
        return [
            plan
            for plan in self.topology.switches
            if plan.role == AGGREGATE or (plan.role == FORWARD and self.kind_of(plan) == BMV2)
        ]

    def kind_of(self, plan: SwitchPlan) -> str:
        return plan.kind or self.kind

    def start_workers(
        self, argv: Sequence[str], variables: Mapping[str, str] | None = None, *, log: str = "{host}"
    ) -> list[Program]:
        """Runs a command at every worker's host, with its rank in the environment."""
        started: list[Program] = []
        for host in self.workers:
            environment = {**host.variables, **(variables or {})}
            started.append(Program(host, argv, self.workplace.log(log.format(host=host.name)), environment))
        return started

    def configLinkStatus(self, src: str, dst: str, status: str) -> None:  # noqa: N802 - Mininet's name
        """Extends Mininet's method, which returns before a link that goes up carries packets."""
        super().configLinkStatus(src, dst, status)
        if status == "up" and src in self and dst in self:
            for ends in self[src].connectionsTo(self[dst]):
                for end in ends:
                    end.await_carrier()

    def iperf(
        self,
        hosts: Sequence[Any] | None = None,
        l4Type: str = "TCP",  # noqa: N803 - Mininet's name, as the next
        udpBw: str = "10M",  # noqa: N803
        **options: Any,
    ) -> list[str]:
        """Replaces Mininet's method, which waits for ever for a line that iperf 2.1 does not print."""
        client, server = hosts or (self.workers[0], self.workers[-1])
        udp = ["-u"] if l4Type == "UDP" else []
        seconds, log = options.get("seconds", 5), self.workplace.log(f"iperf-{server.name}")
        output(f"*** Iperf: testing {l4Type} bandwidth between {client.name} and {server.name}\n")
        listening = Program(server, ["iperf", "-s", *udp], log)
        try:
            listening.await_text("Server listening")
            command = ["iperf", "-c", server.IP(), "-t", str(seconds), *udp, *(["-b", udpBw] if udp else [])]
            result = [self._parseIperf(self.command(client, command))]
        finally:
            listening.stop()
        result.insert(0, self._parseIperf(log.read_text()))
        output(f"*** Results: {result}\n")
        return ([udpBw] if udp else []) + result

    def port_bytes(self) -> dict[str, tuple[int, int]]:
        """Bytes in and out so far, by switch port."""
        found = {}
        for switch in self.switches:
            links = json.loads(switch.cmd("ip -j -s link show type veth"))
            counts = {link["ifname"]: link["stats64"] for link in links}
            for name in sorted(counts):
                found[name] = counts[name]["rx"]["bytes"], counts[name]["tx"]["bytes"]
        return found

    def _start_captures(self) -> None:
        if not self.workplace.keeps_packets:
            return
        for switch in self.switches:
            for interface in switch.intfList():
                file = self.workplace.captures / f"{interface.name}.pcap"
                # -U writes each packet at once. -Z root keeps the file ours instead of a user of tcpdump's.
                command = ["tcpdump", "-i", interface.name, "-n", "-U", "-Z", "root", "-B", "8192", "-w", str(file)]
                self._captures.append(Program(switch, command, self.workplace.log(f"{interface.name}-capture")))
        for capture in self._captures:
            capture.await_text("listening on")

    def _start_controller(self) -> None:
        config = self.workplace.folder / "controller.toml"
        config.write_text(self._config())
        host = self[self.topology.controller.name]
        command = wiresum("controller", "--config", str(config))
        self._controller = Program(host, command, self.workplace.log(host.name), host.variables)
        self._controller.await_text("ready: ")
        for plan in self.programmed():
            if plan.role == FORWARD:
                self.command(host, ["wiresum", "jobs", "drain", plan.name])

    def command(self, host: WiresumHost, argv: Sequence[str]) -> str:
        """Runs a command at a host to its end, and returns its output. Raises `ProgramError`."""
        out, errors, code = host.pexec(list(argv), env=_environment(host))
        if code != 0:
            raise ProgramError(f"{' '.join(argv)} at {host.name} ended with exit code {code}: {out}{errors}")
        return str(out)

    def _config(self) -> str:
        lines = ["[controller]", f'listen = "{self.control}"', "[security]", "insecure = true"]
        for plan in self.programmed():
            lines += self._switch_config(plan)
        return "\n".join(lines) + "\n"

    def _switch_config(self, plan: SwitchPlan) -> list[str]:
        switch = self[plan.name]
        lines = [
            "",
            "[[switch]]",
            f'name = "{plan.name}"',
            f'kind = "{self.kind_of(plan)}"',
            f'p4runtime = "{switch.p4runtime}"',
            f"device = {switch.device}",
            f'address = "{plan.address}"',
            f'mac = "{plan.mac}"',
        ]
        has_ports = self.kind_of(plan) == BMV2
        if not has_ports:
            lines += ["insecure = true", f"lanes = {compiled.load('v1model').lanes}"]
        if plan.parent:
            lines.append(f'parent = "{plan.parent}"')
            if has_ports:
                lines.append(f"parent_port = {self.topology.port_towards(plan.name, plan.parent)}")
            if self.kind_of(self.topology.switch(plan.parent)) == BMV2:
                lines.append(f"port_at_parent = {self.topology.port_towards(plan.parent, plan.name)}")
        for other in self._at(plan):
            lines += ["[[switch.host]]", f'name = "{other.name}"', f'address = "{other.address}"']
            if has_ports:
                port = self.topology.port_towards(plan.name, other.name)
                lines += [f'mac = "{other.mac}"', f"port = {port}"]
        return lines

    def _at(self, plan: SwitchPlan) -> list[HostPlan | SwitchPlan]:
        """The nodes that the configuration must list at a switch. In a tree each node is at one switch; otherwise a
        software switch serves all nodes, and lists none."""
        nodes: list[HostPlan | SwitchPlan] = [*self.topology.hosts, *self.topology.switches]
        others = [node for node in nodes if node.address and node is not plan]
        if plan.role == AGGREGATE and self.topology.is_tree:
            hosts = [node for node in others if node not in self.topology.aggregators]
            return [node for node in hosts if self.topology.aggregator_of(node.name) is plan]
        return [] if self.kind_of(plan) == SOFTWARE else others


def _variables(topology: Topology, host: HostPlan) -> dict[str, str]:
    """The environment of workers and of our commands."""
    variables = {
        "WIRESUM_SWITCH": f"{topology.controller.address}:{CONTROL_PORT}",
        "WIRESUM_INSECURE": "1",
        "OMP_NUM_THREADS": "1",
    }
    if host.runs_controller:
        return variables
    return variables | {
        "RANK": str(topology.workers.index(host)),
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(len(topology.workers)),
        "MASTER_ADDR": topology.workers[0].address,
        "MASTER_PORT": str(STORE_PORT),
        "GLOO_SOCKET_IFNAME": f"{host.name}-eth0",
        "WIRESUM_ADDRESS": host.address,
        "WIRESUM_TRANSPORT": "udp:plain",  # a lost packet on a link is a single packet
    }


def _environment(host: WiresumHost) -> dict[str, str]:
    return os.environ | host.variables
