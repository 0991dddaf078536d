"""The laboratory of cluster_soak.py: whatever controllers, and workers, say to services goes through proxies, and
controllers that end are started again."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

import click

from wiresum.cli.service import ServiceError
from wiresum_lab.laboratory import CONTROLLERS, HOST, SWITCHES, Job, Laboratory
from wiresum_lab.processes import Program, SwitchAt, resident_kib
from wiresum_lab.proxies import Proxies, TcpProxy

TENANTS = """
[[tenant]]
name = "hostile"
slots = 128
waiting_jobs = 64
forming_s = 60
"""
"""Others may have what they want."""
LANES, SLOTS = 360, 1024
ANSWER_S_MAX = 1.0
"""Of a controller to an operator: the soak looks after much else."""
RESIDENT_KIB_MAX = 256 << 10
FILES_MAX = 3 * 2048 + 1024
"""A quarter of the connections that there may be, which is what one address gets, and all else."""


class SoakError(click.ClickException):
    """Something happened that must not."""


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
        super().__init__(folder, lanes=LANES, slots=SLOTS, tables=TENANTS)

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

    def tend_controllers(self) -> None:
        """Starts each controller that has ended, killed or after a takeover."""
        for name, program in self.controllers.items():
            if self.controllers_wanted and program.exit_code is not None:
                self.launch_controller(name)

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
        """Of each service that runs: KiB of memory, and open files."""
        found = {}
        services: Mapping[str, Program] = self.controllers | self.switches
        for name, program in services.items():
            with contextlib.suppress(OSError, StopIteration):  # it has just ended
                if program.exit_code is None:
                    files = len(list(Path(f"/proc/{program.pid}/fd").iterdir()))
                    found[name] = resident_kib(program.pid), files
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
