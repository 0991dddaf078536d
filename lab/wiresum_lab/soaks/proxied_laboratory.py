"""The laboratory of cluster_soak.py: controllers and workers reach services through proxies, and controllers that end
are started again."""

from __future__ import annotations

import contextlib
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
"""A limit for the hostile tenant; others have none."""
LANES, SLOTS = 360, 1024
ANSWER_S_MAX = 1.0 * FACTOR
"""Time-out of an operator's call, short so that the soak can go on with other tasks."""
RESIDENT_KIB_MAX = 256 << 10
CONTROLLER_FILES = 1024
"""Limit of a controller's open files, so low that attackers make more connections than it allows."""
FILES_MAX = FILES_A_CONNECTION * FrontLimits().unproven_of_address + 1024
"""Most open files of a service: connections without a call that an address may have at a switch, and other files."""


class SoakError(click.ClickException):
    """Something happened that must not happen."""


class SoakTimedOutError(SoakError):
    """Something that must happen did not happen in time: a hang, or a machine that has become busier."""

    exit_code = 3


class ProxiedLaboratory(Laboratory):
    def __init__(self, folder: Path) -> None:
        self.proxies = Proxies()
        self.p4runtime_ways: dict[str, dict[str, TcpProxy]] = {name: {} for name in CONTROLLERS}
        """Proxies from each controller to each switch, by their names."""
        self.ways: dict[tuple[str, int], list[TcpProxy]] = {}
        """Proxies to each controller, by the job and rank that use them."""
        self.state = folder / "state"
        self.controllers_wanted = True
        self.controllers_started = 0
        self.switches_restarted = 0
        self.draining: set[str] = set()
        """Switches that must not take new jobs now."""
        self.disturbed_at = 0.0
        """Time at which a fault last kept controllers from their work."""
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
        """Restarts controllers that have been killed or have ended after a takeover. SoakError if a controller has
        ended for another reason, unless `may_fail`."""
        for name, program in self.controllers.items():
            if self.controllers_wanted and program.exit_code is not None:
                if not may_fail and not program.was_stopped and program.exit_code != EXIT_DEMOTED:
                    raise SoakError(f"{name} has ended by itself, with status {program.exit_code}: {program.tail()}")
                self.launch_controller(name)

    def tend_draining(self) -> None:
        """Drains the switches in `draining`, and resumes the others, since an old copy of the state may say otherwise.
        Does nothing if no controller serves."""
        report = self.report(ANSWER_S_MAX)
        for switch in report.switches if report is not None else ():
            wanted = switch.name in self.draining
            if switch.state in ("ready", "draining") and wanted != (switch.state == "draining"):
                with contextlib.suppress(ServiceError):
                    self.drain(switch.name, resume=not wanted, patience_s=ANSWER_S_MAX)

    def takeovers(self) -> int:
        """How often a standby has taken over."""
        return sum(self.log_of(name).read_text(errors="replace").count("takes over") for name in CONTROLLERS)

    def forget(self, job: Job) -> None:
        """Forgets a job that has ended."""
        for rank, program in enumerate(job.programs):
            program.kill()
            del self.ways[job.name, rank]
        self.jobs.remove(job)

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Peak memory, in KiB, and number of open files of each running service."""
        found = {}
        services: Mapping[str, Program] = self.controllers | self.switches
        for name, program in services.items():
            with contextlib.suppress(OSError, StopIteration):  # the service has just ended
                if program.exit_code is None:
                    files = len(list(Path(f"/proc/{program.pid}/fd").iterdir()))
                    found[name] = resident_kib(program.pid, "VmHWM"), files
        return found

    def check_sizes(self) -> None:
        """Raises a `SoakError` if a service exceeds its limits of memory and files."""
        for name, (kib, files) in self.sizes().items():
            if kib > RESIDENT_KIB_MAX or files > FILES_MAX:
                raise SoakError(f"{name} has {kib} KiB of memory and {files} open files; see {self.folder}")

    def all_switches_are_empty(self) -> bool:
        report = self.report(ANSWER_S_MAX)
        free = [switch.slots_free for switch in report.switches] if report is not None and not report.jobs else []
        return free == [SLOTS] * len(SWITCHES)
