"""Mininet's node and link classes for our networks: hosts that can train, and switches that sum.

    WiresumHost (Host)    Bmv2Switch (Switch)    SoftwareSwitch, EthernetSwitch (LinuxBridge)    WiresumLink (TCLink)

Use them as `cls` in any `Topo`; `wiresum_net.py` makes a whole network of a topology file. Every node, switches
included, has its own namespace: the interface `s1-eth1` is in `s1`, and two networks on one machine do not interfere.

Offloads are off, so that checksums are computed and segments are cut before a frame is sent: bmv2 needs complete
frames, and a link must lose single packets.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mininet.link import TCIntf, TCLink
from mininet.node import Host, Node, Switch
from mininet.nodelib import LinuxBridge

from wiresum import compiled
from wiresum.join.constants import P4RUNTIME_PORT
from wiresum_lab.namespaces.bmv2 import bmv2_command, next_device
from wiresum_lab.namespaces.links import BPF_DROP, loss_program
from wiresum_lab.processes import wait_until, wiresum
from wiresum_mininet.programs import Program
from wiresum_mininet.topology import AGGREGATE, Shape, SwitchPlan

THRIFT_PORT = 9090
OFFLOADS = ("tx", "tso", "gso", "gro", "sg")
COIN_PREFERENCE, DOWN_PREFERENCE = 2, 3
DROP_ALL = f"1,6 0 0 {BPF_DROP}"
"""A filter program of one instruction, which returns."""


@dataclass(frozen=True)
class Workplace:
    """The output folder, with logs, captures and sockets."""

    folder: Path
    bmv2_log_level: str = "warn"
    keeps_packets: bool = True
    """True to capture the traffic at the switches' ports."""

    def make(self) -> None:
        for folder in (self.logs, self.captures):
            folder.mkdir(parents=True, exist_ok=True)

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def captures(self) -> Path:
        return self.folder / "pcaps"

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def socket(self, name: str) -> Path:
        """The path of a P4Runtime socket. The limit is about 100 bytes, so the relative path is used if it is
        shorter."""
        path = (self.folder / f"{name}.p4runtime").absolute()
        return min(path, Path(os.path.relpath(path)), key=lambda choice: len(str(choice)))


class PortIntf(TCIntf):  # type: ignore[misc]
    """One end of a link, with Mininet's rate and delay, and random loss by a filter that every kernel has."""

    def config(self, loss_fraction: float = 0.0, **params: Any) -> Any:
        result = super().config(gro=False, txo=False, **params)
        self.cmd("ethtool -K", self.name, *(f"{feature} off" for feature in OFFLOADS))
        if loss_fraction:
            self.lose(loss_fraction)
        return result

    def ifconfig(self, *args: str) -> Any:
        """Replaces Mininet's method, by which `link s1 h1 down` takes both ends down. bmv2 receives from all of its
        ports in one thread, which waits in libpcap for ever at a port that is down. So a switch's port stays up, and
        frames that leave the port are dropped; the other end drops as well, or is a host's and does go down."""
        if not isinstance(self.node, Switch) or args not in (("down",), ("up",)):
            return super().ifconfig(*args)
        if args == ("up",):
            self.unfilter(DOWN_PREFERENCE)
            return super().ifconfig("up")
        self.filter(DOWN_PREFERENCE, DROP_ALL)
        return ""

    def await_carrier(self) -> None:
        """Returns when packets pass: the kernel learns up to a second late that the other end is up, too."""
        wait_until(lambda: "state UP" in self.cmd("ip link show", self.name), f"{self.name} was up")

    def lose(self, fraction: float) -> None:
        """Loses this fraction of the packets that leave the interface. (Packet sockets such as bmv2's get frames before
        ingress filters, so packets are dropped at the sender.)"""
        self.filter(COIN_PREFERENCE, loss_program(fraction))

    def filter(self, preference: int, program: str) -> None:
        """Runs a classic BPF program on each packet that leaves; the program decides whether the packet passes."""
        self.cmd(f"tc qdisc add dev {self.name} clsact 2>/dev/null")
        self.unfilter(preference)
        line = f"tc filter add dev {self.name} egress pref {preference} protocol all bpf direct-action bytecode"
        if complaint := self.cmd(f"{line} '{program}'"):
            raise RuntimeError(f"{self.name}: the kernel takes no filter: {complaint.strip()}")

    def unfilter(self, preference: int) -> None:
        self.cmd(f"tc filter del dev {self.name} egress pref {preference} 2>/dev/null")


class WiresumLink(TCLink):  # type: ignore[misc]
    """A veth pair whose ends are `PortIntf`s."""

    def __init__(self, *ends: Any, shape: Shape | None = None, **params: Any) -> None:
        shape = shape or Shape()
        params |= {"cls1": PortIntf, "cls2": PortIntf}
        super().__init__(*ends, bw=shape.rate_mbit, delay=shape.delay, loss_fraction=shape.loss, **params)


class OwnNode(Node):  # type: ignore[misc]
    """A node without IPv6, so that only the experiment sends. Its shell and all processes in it end when Mininet
    ends, even under nohup: the node resets an ignored SIGHUP."""

    def __init__(self, name: str, **params: Any) -> None:
        super().__init__(name, **params)
        self.cmd("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1")

    def _popen(self, cmd: Sequence[str], **params: Any) -> Any:
        return super()._popen(["env", "--default-signal=HUP", *cmd], **params)


class WiresumHost(OwnNode, Host):  # type: ignore[misc]
    """A host whose shell has the environment of workers and commands."""

    def __init__(self, name: str, variables: Mapping[str, str] | None = None, **params: Any) -> None:
        super().__init__(name, **params)
        self.variables = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **(variables or {})}
        for variable, value in self.variables.items():
            self.cmd(f"export {variable}='{value}'")


class OwnAddress:
    """Gives Mininet the address of a switch that has no interface with one, so that `h1 ping s1` works."""

    def __init__(self, address: str) -> None:
        self._address = address

    def updateIP(self) -> str:  # noqa: N802 - Mininet's name
        return self._address


class Bmv2Switch(OwnNode, Switch):  # type: ignore[misc]
    """`simple_switch_grpc` with port N at the interface `NAME-ethN`; the controller loads the program.

    P4Runtime is at a socket in the workplace, which is reachable from every namespace. Thrift, for `simple_switch_CLI`
    and `register`, is at its usual port in the switch's own namespace.
    """

    def __init__(self, name: str, plan: SwitchPlan, workplace: Workplace, **params: Any) -> None:
        super().__init__(name, **params | {"inNamespace": True})
        self._plan, self._workplace = plan, workplace
        self.program: Program | None = None
        self.device = next_device()
        self.socket = workplace.socket(name)

    @property
    def p4runtime(self) -> str:
        return f"unix:{self.socket}"

    def defaultIntf(self) -> OwnAddress:  # noqa: N802 - Mininet's name
        return OwnAddress(self._plan.address)

    def start(self, controllers: object) -> None:
        """Starts the process. Has no effect while it runs. Raises `ProgramError`."""
        if self.program is not None:
            return
        self.cmd("ip link set lo up")
        self.socket.unlink(missing_ok=True)
        ports = {port: interface.name for port, interface in self.intfs.items()}
        logging = ["--log-console", "-L", self._workplace.bmv2_log_level]
        command = bmv2_command(self.p4runtime, self.device, *logging, ports=ports, thrift_port=THRIFT_PORT)
        self.program = Program(self, command, self._workplace.log(self.name))
        self.program.await_ready(self.socket.exists)

    def stop(self, deleteIntfs: bool = True) -> None:  # noqa: N803 - Mininet's name
        if self.program is not None:
            self.program.stop()
            self.program = None
        self.socket.unlink(missing_ok=True)
        super().stop(deleteIntfs)


class EthernetSwitch(OwnNode, LinuxBridge):  # type: ignore[misc]
    """Mininet's Linux bridge in a namespace of its own."""

    controlIntf = None  # noqa: N815 - Mininet does not set this for a switch in a namespace

    @classmethod
    def setup(cls) -> None:
        """Does nothing: Mininet would warn about firewalls in the machine's own namespace, where no bridge of ours
        is."""

    def __init__(self, name: str, **params: Any) -> None:
        super().__init__(name, **params | {"inNamespace": True})
        for table in ("ip", "ip6", "arp"):
            # The machine's firewall must not filter bridged packets.
            self.cmd(f"sysctl -qw net.bridge.bridge-nf-call-{table}tables=0 2>/dev/null")


class SoftwareSwitch(EthernetSwitch):
    """A bridge; if the switch sums, also `wiresum switch --p4runtime` at the bridge's own address."""

    device = 0

    def __init__(self, name: str, plan: SwitchPlan, workplace: Workplace, **params: Any) -> None:
        super().__init__(name, **params)
        self._plan, self._workplace = plan, workplace
        self.program: Program | None = None

    def defaultIntf(self) -> OwnAddress:  # noqa: N802 - Mininet's name
        return OwnAddress(self._plan.address)

    @property
    def p4runtime(self) -> str:
        return f"{self._plan.address}:{P4RUNTIME_PORT}"

    def start(self, controllers: object) -> None:
        """Starts the bridge and the switch. Has no effect while they run. Raises `ProgramError`."""
        if self.program is not None:
            return
        self.cmd("ip link set lo up")
        super().start(controllers)
        self.cmd(f"ip link set dev {self.name} address {self._plan.mac}")
        self.cmd(f"ip address add {self._plan.interface} dev {self.name}")
        self.cmd("ethtool -K", self.name, *(f"{feature} off" for feature in OFFLOADS))
        if self._plan.role == AGGREGATE:
            command = wiresum("switch", "--p4runtime", self.p4runtime, "--insecure", "--transport", "udp:plain")
            command += ["--bind", self._plan.address, "--lanes", str(compiled.load("v1model").lanes)]
            self.program = Program(self, command, self._workplace.log(self.name))
            self.program.await_text("ready: ")

    def stop(self, deleteIntfs: bool = True) -> None:  # noqa: N803 - Mininet's name
        if self.program is not None:
            self.program.stop()
            self.program = None
        super().stop(deleteIntfs)
