"""A star whose switch is bmv2, the P4 reference switch, with the switch program.

    with Bmv2Star(workers=4) as star:
        with star.controller() as control:
            ranks = [worker.popen(command, environment={"WIRESUM_SWITCH": control}) for worker in star.workers]

Theory of operation. A `Star` makes the namespaces, links and addresses; then its bridge is removed, and the switch's
ends of the links become the ports of a `simple_switch_grpc` in the switch's namespace: port i is worker i's. From then
on only the P4 program has the switch's address, and all packets between hosts pass through it.

bmv2 sees frames as they are in memory, through packet sockets. So the hosts must not leave work to their interfaces:
they compute checksums and cut trains before they send.

P4Runtime uses a socket in a folder of the star's own, which any namespace reaches; a real switch has a management port
for it. The controller is a program on one more host of the star, and workers join it *through* the switch, like any
other TCP connection: so a job that trains shows that the switch lets other traffic pass.

Loss. A packet socket gets a frame before the kernel's filters on arrival do. So frames to the switch must be dropped as
they leave their host (`lose_upstream`), and frames from the switch as they arrive at a host (`lose_downstream`).
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from wiresum.controller.p4runtime import Host as SwitchHost
from wiresum.controller.p4runtime import Pipeline, Target, device_config
from wiresum.join.constants import CONTROL_PORT
from wiresum_lab.namespaces.bmv2 import bmv2_command, bmv2_missing, next_device
from wiresum_lab.namespaces.links import loss_program
from wiresum_lab.namespaces.star import STAR_DEVICE, Host, Star, StarError
from wiresum_lab.processes import Program, cpu_seconds, wiresum


class Bmv2Star:
    """The star, from construction to `close`. Raises `StarError` if something is missing. `pipeline` is the switch
    program's unless given."""

    def __init__(self, workers: int, *, pipeline: Pipeline | None = None) -> None:
        if missing := bmv2_missing():
            raise StarError(missing)
        self._pipeline = pipeline or device_config.bmv2()
        self._star = Star(workers + 1)
        self.device = next_device()
        self._folder = Path(tempfile.mkdtemp(prefix="wiresum-bmv2-"))
        self._socket = self._folder / "p4runtime.socket"
        self._bmv2: Program | None = None
        try:
            self._prepare_links()
            self.mac = self._device(self._star.switch, STAR_DEVICE)["address"]
            self._star.switch.run(["ip", "link", "del", STAR_DEVICE])
            self._boot()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Bmv2Star:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def workers(self) -> list[Host]:
        return self._star.workers[:-1]

    @property
    def control_host(self) -> Host:
        """The host of the controller, at the last port."""
        return self._star.workers[-1]

    @property
    def switch(self) -> Host:
        """The host on which bmv2 runs."""
        return self._star.switch

    @property
    def address(self) -> str:
        """The switch's address."""
        return self._star.switch.address

    @property
    def p4runtime(self) -> str:
        return f"unix:{self._socket}"

    @property
    def hosts(self) -> list[SwitchHost]:
        """The hosts for the controller's configuration: the workers, then the controller's own host."""
        found = []
        for port, host in enumerate(self._star.workers):
            name = "controller" if host is self.control_host else f"worker{port}"
            found.append(SwitchHost(name, host.address, self._device(host, STAR_DEVICE)["address"], port))
        return found

    def target(self, hosts: Sequence[SwitchHost] | None = None) -> Target:
        """The switch for the controller's configuration, with its own hosts or others."""
        return Target(
            name="bmv2 in the star",
            kind="bmv2",
            p4runtime=self.p4runtime,
            device=self.device,
            pipeline=self._pipeline,
            address=self.address,
            mac=self.mac,
            hosts=tuple(self.hosts if hosts is None else hosts),
        )

    def cpu_s(self) -> float:
        """Processor time that bmv2 has used so far."""
        assert self._bmv2 is not None
        return cpu_seconds(self._bmv2.pid)

    def lose_upstream(self, fraction: float) -> None:
        """Drops this fraction of the packets that workers send, at random; 0 ends the loss."""
        self._lose(fraction, "egress")

    def lose_downstream(self, fraction: float) -> None:
        """Drops this fraction of the packets that are sent to workers, at random; 0 ends the loss."""
        self._lose(fraction, "ingress")

    def frames(self) -> tuple[int, int]:
        """How many frames the switch has received and sent so far, at all ports."""
        links = json.loads(self._star.switch.run(["ip", "-j", "-s", "link", "show", "type", "veth"]))
        counts = [link["stats64"] for link in links if link["ifname"].startswith("port")]
        return sum(count["rx"]["packets"] for count in counts), sum(count["tx"]["packets"] for count in counts)

    @contextlib.contextmanager
    def controller(self) -> Iterator[str]:
        """Runs a `wiresum controller` on its host until the block ends. Gives the endpoint for workers, host:port."""
        config = self._folder / "cluster.toml"
        config.write_text(self._config())
        command = wiresum("controller", "--config", str(config))
        with Program(command, self._folder / "controller.log", at=self.control_host.popen) as controller:
            controller.await_text("ready: ")
            yield f"{self.control_host.address}:{CONTROL_PORT}"

    def close(self) -> None:
        """Stops bmv2 and removes the star. Idempotent."""
        if self._bmv2 is not None:
            self._bmv2.stop()
        self._star.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _config(self) -> str:
        lines = [
            "[controller]",
            f'listen = "{self.control_host.address}:{CONTROL_PORT}"',
            "[security]",
            "insecure = true",
            "[[switch]]",
            'name = "bmv2"',
            'kind = "bmv2"',
            f'p4runtime = "{self.p4runtime}"',
            f"device = {self.device}",
            f'address = "{self.address}"',
            f'mac = "{self.mac}"',
        ]
        for host in self.hosts:
            lines += ["[[switch.host]]", f'name = "{host.name}"', f'address = "{host.address}"', f'mac = "{host.mac}"']
            lines.append(f"port = {host.port}")
        return "\n".join(lines) + "\n"

    def _prepare_links(self) -> None:
        for host, device in self._star.ports():
            host.run(["ethtool", "-K", device, "tx", "off", "tso", "off", "gso", "off", "gro", "off"])

    def _boot(self) -> None:
        ports = {port: f"port{port}" for port in range(len(self._star.workers))}
        logging = ["--log-file", str(self._folder / "packets"), "-L", "warn"]
        command = bmv2_command(self.p4runtime, self.device, *logging, ports=ports)
        self._bmv2 = Program(command, self._folder / "bmv2.log", at=self._star.switch.popen)
        self._bmv2.await_ready(self._socket.exists)

    def _lose(self, fraction: float, side: str) -> None:
        for worker in self.workers:
            self._clear_filters(worker, side)
            if fraction:
                line = f"tc filter add dev {STAR_DEVICE} {side} protocol all bpf direct-action bytecode"
                worker.run([*line.split(), loss_program(fraction)])

    def _clear_filters(self, host: Host, side: str) -> None:
        qdiscs = json.loads(host.run(["tc", "-j", "qdisc", "show", "dev", STAR_DEVICE]))
        if any(qdisc["kind"] == "clsact" for qdisc in qdiscs):
            host.run(["tc", "filter", "del", "dev", STAR_DEVICE, side])
        else:
            host.run(["tc", "qdisc", "add", "dev", STAR_DEVICE, "clsact"])

    @staticmethod
    def _device(host: Host, device: str) -> dict[str, str]:
        (found,) = json.loads(host.run(["ip", "-j", "link", "show", "dev", device]))
        return dict(found)
