"""The processes of cluster_soak.py: two software switches, two controllers with one state, and workers, with
certificates, and proxies between them."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from wiresum import join
from wiresum.cli.service import Service, ServiceError
from wiresum.join.constants import SWITCH_PORT, THREADS_MAX
from wiresum_lab.laboratory import WORKER, Certificates
from wiresum_lab.processes import Program, SwitchAt, controller_config, resident_kib, unused_port, wiresum
from wiresum_lab.proxies import HOST, Proxies, TcpProxy

SWITCHES = ("left", "right")
TENANTS = """
[[tenant]]
name = "hostile"
slots = 128
waiting_jobs = 64
forming_s = 60
"""
"""Others may have what they want."""
WORKERS = 2
"""Workers of each job."""
SLOTS = 1024
WAIT_S_MAX = 90.0
STEP_S_MAX = 120.0
"""A step's time-out, longer than any fault lasts."""
RESIDENT_KIB_MAX = 256 << 10
FILES_MAX = 3 * 2048 + 1024
"""A quarter of the connections that there may be, which is what one address gets, and all else."""


class SoakError(click.ClickException):
    """Something happened that must not."""


class Cluster:
    """The processes, from construction to `close`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.proxies = Proxies()
        self.pki = Certificates(folder / "pki")
        for role in ("controller", "operator", "worker"):
            self.pki.issue(role, role, addresses=(HOST,) * (role == "controller"))
        self.ports = [unused_port() for _ in range(2)]
        self.metrics = [unused_port() for _ in self.ports]
        self._started: list[subprocess.Popen[bytes]] = []
        self.switches: dict[str, SwitchAt] = {}
        self.switch_processes: dict[str, subprocess.Popen[bytes]] = {}
        self.p4runtime_ways: list[dict[str, TcpProxy]] = [{} for _ in self.ports]
        """Of each controller, to each switch."""
        for index, name in enumerate(SWITCHES):
            self.pki.issue(name, "switch", addresses=(HOST,))
            self.switches[name] = SwitchAt(name, unused_port(), SWITCH_PORT + index * THREADS_MAX)
            self.start_switch(name)
            for ways in self.p4runtime_ways:
                ways[name] = self.proxies.make(self.switches[name].p4runtime)
        self.controllers: list[subprocess.Popen[bytes] | None] = [None, None]
        self.service = Service(",".join(f"{HOST}:{port}" for port in self.ports), tls=str(self.pki.tls("operator")))
        self.state = folder / "state"
        self.controllers_wanted = True
        self.controllers_started = 0
        self.switches_restarted = 0
        self.draining: set[str] = set()
        """Switches that are to take no new jobs now."""
        self.stop = folder / "stop"
        self.workers: dict[tuple[str, int], subprocess.Popen[bytes]] = {}
        self.ways: dict[tuple[str, int], list[TcpProxy]] = {}

    def start_switch(self, name: str) -> None:
        at = self.switches[name]
        ends = ["--p4runtime", f"{HOST}:{at.p4runtime}", "--bind", HOST, "--port", str(at.data)]
        sizes = ["--slots", str(SLOTS), "--lanes", "360", "--threads", "1"]
        tls = ["--tls", str(self.pki.tls(name))]
        self.switch_processes[name] = self._start(name, wiresum("switch", *ends, *sizes, *tls))

    def start_controller(self, index: int, *, standby: bool) -> None:
        self.controllers_started += 1
        path = self.folder / f"cluster{index}.toml"
        ways = self.p4runtime_ways[index]
        path.write_text(
            controller_config(
                listen=self.ports[index],
                metrics=self.metrics[index],
                switches=[at._replace(p4runtime=ways[at.name].port) for at in self.switches.values()],
                slots=SLOTS,
                tls=str(self.pki.tls("controller")),
                audit=str(self.folder / f"audit{index}"),
                more=TENANTS,
            )
        )
        options = ["--standby"] * standby
        self.controllers[index] = self._start(
            f"controller{index}", wiresum("controller", "--config", str(path), "--verbose", *options)
        )

    def tend_controllers(self) -> None:
        """Starts each controller that has ended, killed or after a takeover, as a standby."""
        for index, process in enumerate(self.controllers):
            if self.controllers_wanted and process is not None and process.poll() is not None:
                self.start_controller(index, standby=True)

    def tend_draining(self) -> None:
        """Switches drain if they are to, whatever an old copy of the state says. Nothing if no controller serves."""
        report = self.report()
        for switch in report.switches if report is not None else ():
            wanted = switch.name in self.draining
            if switch.state in ("ready", "draining") and wanted != (switch.state == "draining"):
                self._drain(join.DrainRequest(switch_name=switch.name, resume=not wanted))

    def _drain(self, request: join.DrainRequest) -> None:
        with contextlib.suppress(ServiceError):
            self.service.tell(lambda stub: stub.Drain(request, timeout=1.0))

    def takeovers(self) -> int:
        """How often a standby has become the controller."""
        return sum((self.folder / f"controller{index}.log").read_text().count("takes over") for index in range(2))

    def start_worker(
        self, name: str, rank: int, salt: int, stop: Path, step_s_max: float = STEP_S_MAX, tls: str = "worker"
    ) -> None:
        ways = self.ways[name, rank] = [self.proxies.make(port) for port in self.ports]
        switch = ",".join(f"{HOST}:{way.port}" for way in ways)
        self.workers[name, rank] = self._start(
            f"{name}-{rank}",
            [sys.executable, str(WORKER), name, str(rank), str(WORKERS), str(salt), str(stop), str(step_s_max)],
            WIRESUM_SWITCH=switch, WIRESUM_ADDRESS=HOST, WIRESUM_LANES="360", WIRESUM_THREADS="1",
            WIRESUM_TLS=str(self.pki.tls(tls)), WIRESUM_SLOTS="64", OMP_NUM_THREADS="1",
        )  # fmt: skip

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Of each service that runs: KiB of memory, and open files."""
        running = {f"controller{index}": process for index, process in enumerate(self.controllers)}
        found = {}
        for name, process in (running | self.switch_processes).items():
            with contextlib.suppress(OSError, StopIteration):  # it has just ended
                if process is not None and process.poll() is None:
                    files = len(list(Path(f"/proc/{process.pid}/fd").iterdir()))
                    found[name] = resident_kib(process.pid), files
        return found

    def check_sizes(self) -> None:
        """Raises a `SoakError` if a service has grown beyond its bounds."""
        for name, (kib, files) in self.sizes().items():
            if kib > RESIDENT_KIB_MAX or files > FILES_MAX:
                raise SoakError(f"{name} has {kib} KiB of memory and {files} open files; see {self.folder}")

    def said(self, name: str, rank: int) -> dict[str, Any]:
        """The last line of JSON that a worker printed."""
        lines = (self.folder / f"{name}-{rank}.log").read_text().splitlines()
        said = [line for line in lines if line.startswith("{")]
        found: dict[str, Any] = json.loads(said[-1]) if said else {}
        return found

    def check(self, name: str) -> bool:
        """Do all workers of the job go on? Raises `SoakError` if one has summed wrongly, or ended without a word."""
        for rank in range(WORKERS):
            ended, said = self.workers[name, rank].poll() is not None, self.said(name, rank)
            if said.get("wrong") or (ended and not said.get("error")):
                raise SoakError(f"{name}, rank {rank}: {said or 'it said nothing'}; see {self.folder}")
        return not any(self.workers[name, rank].poll() is not None for rank in range(WORKERS))

    def steps(self, name: str, rank: int = 0) -> int:
        """How many steps a worker has made, by its last line."""
        lines = (self.folder / f"{name}-{rank}.log").read_text().splitlines()
        said = [json.loads(line).get("steps", 0) for line in lines if line.startswith("{")]
        return int(max(said, default=0))

    def report(self) -> join.Report | None:
        with contextlib.suppress(ServiceError):
            return self.service.report(1.0)
        return None

    def close(self) -> None:
        for process in reversed(self._started):
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()

    def _start(self, name: str, command: Sequence[str], **variables: str) -> subprocess.Popen[bytes]:
        program = Program(command, self.folder / f"{name}.log", variables, append=True)
        self._started.append(program.process)
        return program.process
