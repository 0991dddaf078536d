"""The laboratory of cluster_soak.py: whatever controllers, and workers, say to services goes through proxies, and
controllers that end are started again."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping
from pathlib import Path

import click

from wiresum.cli.service import ServiceError
from wiresum.controller.command import EXIT_DEMOTED
from wiresum.controller.security.front import FILES_A_CONNECTION, FrontLimits
from wiresum_lab.laboratory import CONTROLLERS, HOST, SWITCHES, Job, Laboratory
from wiresum_lab.patience import FACTOR
from wiresum_lab.processes import Program, SwitchAt, resident_kib
from wiresum_lab.proxies import Proxies, TcpProxy

TENANTS = """
[[tenant]]
name = "hostile"
slots = 128
waiting_jobs = 64
"""
"""Others may have what they want."""
LANES, SLOTS = 360, 1024
ANSWER_S_MAX = 1.0 * FACTOR
"""Of a controller to an operator: the soak looks after much else."""
RESIDENT_KIB_MAX = 256 << 10
CONTROLLER_FILES = 1024
"""That a controller may have. So it takes few hundred connections, and attackers make more than that."""
FILES_MAX = FILES_A_CONNECTION * FrontLimits().unproven_of_address + 1024
"""What one address gets at a switch for connections without a call, and all else."""
NAME_SERVER = "127.0.0.99"
"""Where names are looked up in a network namespace of the soak's own: it hears, and never answers."""


class SoakError(click.ClickException):
    """Something happened that must not."""


class SoakTimedOutError(SoakError):
    """Something that must happen did not come in time: a hang, or a machine that is busier than it was."""

    exit_code = 3


class ProxiedLaboratory(Laboratory):
    def __init__(self, folder: Path) -> None:
        self.proxies = Proxies()
        self.p4runtime_ways: dict[str, dict[str, TcpProxy]] = {name: {} for name in CONTROLLERS}
        """Of each controller, to each switch."""
        self.ways: dict[tuple[str, int], list[TcpProxy]] = {}
        """Of each job's ranks, to each controller."""
        self.state = folder / "state"
        self.controllers_wanted = True
        self.controllers_started = 0
        self.switches_restarted = 0
        self.draining: set[str] = set()
        """Switches that are to take no new jobs now."""
        self.disturbed_at = 0.0
        """When a fault last kept controllers from their work."""
        self._names: socket.socket | None = None
        super().__init__(folder, lanes=LANES, slots=SLOTS, tables=TENANTS, files_max=CONTROLLER_FILES)

    def seen_by(self, controller: str) -> list[SwitchAt]:
        ways = self.p4runtime_ways[controller]
        for name, at in self.at.items():
            if name not in ways:
                ways[name] = self.proxies.make(at.p4runtime)
        return [at._replace(p4runtime=ways[name].port) for name, at in self.at.items()]

    def targets_of(self, job: str, rank: int) -> str:
        ways = self.ways[job, rank] = [self.proxies.make(port) for port in self.ports.values()]
        return ",".join(f"{HOST}:{way.port}" for way in ways)

    def launch_controller(self, name: str) -> Program:
        self.controllers_started += 1
        return super().launch_controller(name)

    def tend_controllers(self, *, may_fail: bool = False) -> None:
        """Starts each controller that has ended, killed or after a takeover. `may_fail`: or for another reason."""
        for name, program in self.controllers.items():
            if self.controllers_wanted and program.exit_code is not None:
                if not may_fail and not program.was_stopped and program.exit_code != EXIT_DEMOTED:
                    raise SoakError(f"{name} has ended by itself, with status {program.exit_code}: {program.tail()}")
                self.launch_controller(name)

    def serve_names(self) -> None:
        """At NAME_SERVER, to say nothing."""
        self._names = self._cleanup.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self._names.bind((NAME_SERVER, 53))
        self._names.setblocking(False)

    def check_names(self) -> None:
        """Raises a `SoakError` if a name was looked up."""
        with contextlib.suppress(BlockingIOError):
            if self._names is not None:
                raise SoakError(f"a name was looked up: {self._names.recv(512)!r}")

    def tend_draining(self) -> None:
        """Switches drain if they are to, whatever an old copy of the state says. Nothing if no controller serves."""
        report = self.report(ANSWER_S_MAX)
        for switch in report.switches if report is not None else ():
            wanted = switch.name in self.draining
            if switch.state in ("ready", "draining") and wanted != (switch.state == "draining"):
                with contextlib.suppress(ServiceError):
                    self.drain(switch.name, resume=not wanted, patience_s=ANSWER_S_MAX)

    def takeovers(self) -> int:
        """How often a standby has become the controller."""
        return sum(self.log_of(name).read_text(errors="replace").count("takes over") for name in CONTROLLERS)

    def forget(self, job: Job) -> None:
        """A job that has ended."""
        for rank, program in enumerate(job.programs):
            program.kill()
            del self.ways[job.name, rank]
        self.jobs.remove(job)

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Of each service that runs: KiB of memory, at most since it began, and open files."""
        found = {}
        services: Mapping[str, Program] = self.controllers | self.switches
        for name, program in services.items():
            with contextlib.suppress(OSError, StopIteration):  # it has just ended
                if program.exit_code is None:
                    files = len(list(Path(f"/proc/{program.pid}/fd").iterdir()))
                    found[name] = resident_kib(program.pid, "VmHWM"), files
        return found

    def check_sizes(self) -> None:
        """Raises a `SoakError` if a service has grown beyond its bounds."""
        for name, (kib, files) in self.sizes().items():
            if kib > RESIDENT_KIB_MAX or files > FILES_MAX:
                raise SoakError(f"{name} has {kib} KiB of memory and {files} open files; see {self.folder}")

    def all_switches_are_empty(self) -> bool:
        report = self.report(ANSWER_S_MAX)
        free = [switch.slots_free for switch in report.switches] if report is not None and not report.jobs else []
        return free == [SLOTS] * len(SWITCHES)
