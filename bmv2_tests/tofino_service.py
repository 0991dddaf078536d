"""A join service whose switch is the interpreted Tofino program, at interfaces of this network namespace:

    python -m bmv2_tests.tofino_service CONFIG LISTEN PORT=INTERFACE...

CONFIG is the [[switch]] table of one switch with one pipe, named rack. The process ends at the first frame that the
interpreter refuses.
"""

from __future__ import annotations

import select
import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import click

from bmv2_tests.tna_interpreter.switch import Switch
from bmv2_tests.tofino_cluster import Cluster, node_of
from bmv2_tests.tofino_network import MAIN
from wiresum.controller import JobEntry, JoinServer
from wiresum.controller.config import SecurityConfig
from wiresum.controller.security import Security
from wiresum_lab.doubles.controller import RecordingDriver

FRAME_BYTES_MAX = 65_536
_ETH_P_ALL, _SOL_PACKET, _PACKET_IGNORE_OUTGOING = 3, 263, 23  # packet(7)


class InterpretedSwitch(RecordingDriver):
    """The switch as its service sees it; only its counters are made up."""

    def __init__(self, config: Path) -> None:
        self._switch = Switch(MAIN)
        self._cluster = Cluster(config.read_text(), {"rack": self._switch}, config.parent)
        (target,) = self._cluster.targets.values()
        node = node_of(target)
        super().__init__(node.sizes, node.name, [host.address for host in target.hosts])
        self.kind, self.endpoint = node.kind, node.endpoint
        self._lock = threading.Lock()

    def admit(self, entry: JobEntry) -> None:
        super().admit(entry)
        with self._lock:
            self._cluster.admit(self.name, entry)

    def evict(self, job: int) -> None:
        if job in self.admitted:
            with self._lock:
                self._cluster.evict(self.name, job)
        super().evict(job)

    def forward(self, ports: Mapping[int, socket.socket]) -> None:
        """Takes frames in at all ports, and sends what comes of them, for ever."""
        numbers = {interface: number for number, interface in ports.items()}
        while True:
            for interface in select.select(numbers, [], [])[0]:
                frame = interface.recv(FRAME_BYTES_MAX)
                with self._lock:
                    copies = self._switch.receive(numbers[interface], frame)
                for copy in copies:
                    ports[copy.port].send(copy.frame)


def opened(interface: str) -> socket.socket:
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
    made.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    made.bind((interface, 0))
    return made


def main() -> None:
    config, listen, *words = sys.argv[1:]
    switch = InterpretedSwitch(Path(config))
    ports = {int(number): opened(interface) for number, _, interface in (word.partition("=") for word in words)}
    address, _, port = listen.partition(":")
    JoinServer(switch, security=Security(SecurityConfig(insecure=True))).start(address, int(port))
    click.echo("ready: ")
    switch.forward(ports)


if __name__ == "__main__":
    main()
