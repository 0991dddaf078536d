"""The processes of cluster_soak.py: a software switch, two controllers with one state, and workers, with proxies
between them."""

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
from wiresum.join.constants import SWITCH_PORT
from wiresum_lab.processes import Program, SwitchAt, controller_config, unused_port, wiresum
from wiresum_lab.proxies import HOST, Proxies, TcpProxy

WORKER = Path(__file__).parents[1] / "laboratory_worker.py"
WORKERS = 2
"""Workers of each job."""
SLOTS = 1024
WAIT_S_MAX = 90.0
STEP_S_MAX = 120.0
"""A step's time-out, longer than any fault lasts."""


class SoakError(click.ClickException):
    """Something happened that must not."""


class Cluster:
    """The processes, from construction to `close`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.proxies = Proxies()
        self.ports = [unused_port() for _ in range(2)]
        self.p4runtime, self.data = unused_port(), SWITCH_PORT
        self._started: list[subprocess.Popen[bytes]] = []
        ends = ["--p4runtime", f"{HOST}:{self.p4runtime}", "--bind", HOST, "--port", str(self.data)]
        self._start("switch", wiresum("switch", *ends, "--slots", str(SLOTS), "--lanes", "360", "--threads", "1"))
        self.p4runtime_ways = [self.proxies.make(self.p4runtime) for _ in self.ports]
        self.controllers: list[subprocess.Popen[bytes] | None] = [None, None]
        self.service = Service(",".join(f"{HOST}:{port}" for port in self.ports))
        self.state = folder / "state"
        self.controllers_wanted = True
        self.controllers_started = 0
        self.stop = folder / "stop"
        self.workers: dict[tuple[str, int], subprocess.Popen[bytes]] = {}
        self.ways: dict[tuple[str, int], list[TcpProxy]] = {}

    def start_controller(self, index: int, *, standby: bool) -> None:
        self.controllers_started += 1
        path = self.folder / f"cluster{index}.toml"
        leaf = SwitchAt("leaf", self.p4runtime_ways[index].port, self.data)
        path.write_text(controller_config(listen=self.ports[index], switches=[leaf], slots=SLOTS))
        options = ["--standby"] * standby
        self.controllers[index] = self._start(
            f"controller{index}", wiresum("controller", "--config", str(path), "--verbose", *options)
        )

    def tend_controllers(self) -> None:
        """Starts each controller that has ended, killed or after a takeover, as a standby."""
        for index, process in enumerate(self.controllers):
            if self.controllers_wanted and process is not None and process.poll() is not None:
                self.start_controller(index, standby=True)

    def takeovers(self) -> int:
        """How often a standby has become the controller."""
        return sum((self.folder / f"controller{index}.log").read_text().count("takes over") for index in range(2))

    def start_worker(self, name: str, rank: int, salt: int, stop: Path, step_s_max: float = STEP_S_MAX) -> None:
        ways = self.ways[name, rank] = [self.proxies.make(port) for port in self.ports]
        switch = ",".join(f"{HOST}:{way.port}" for way in ways)
        self.workers[name, rank] = self._start(
            f"{name}-{rank}",
            [sys.executable, str(WORKER), name, str(rank), str(WORKERS), str(salt), str(stop), str(step_s_max)],
            WIRESUM_SWITCH=switch, WIRESUM_ADDRESS=HOST, WIRESUM_LANES="360", WIRESUM_THREADS="1",
            WIRESUM_SLOTS="64", OMP_NUM_THREADS="1",
        )  # fmt: skip

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
