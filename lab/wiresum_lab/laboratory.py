"""A cluster for tests of faults and attacks: a controller and its standby, two software switches, and jobs whose
workers check every element of every sum. Each is a process, as hosts run it, with certificates, on loopback; a hostile
host has an address of its own.

    with Laboratory(folder) as laboratory:
        job = laboratory.job("night")
        laboratory.controllers["active"].kill()
        job.goes_on()
        job.finish()
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from wiresum import join
from wiresum.cli.service import Service, ServiceError
from wiresum.controller.security import authority as authority_module
from wiresum.controller.security.authority import Authority, Holder
from wiresum.controller.security.names import Claims
from wiresum_lab.processes import PATIENCE_S, Program, SwitchAt, controller_config, stop_all, unused_port, wait_until
from wiresum_lab.processes import wiresum as command

WORKER = Path(__file__).with_name("laboratory_worker.py")
HOST, HOSTILE = "127.0.0.1", "127.0.0.66"
SWITCHES = ("left", "right")
CONTROLLERS = ("active", "standby")
"""By the role in which each begins."""
LANES, SLOTS = 64, 256
CERTIFIED_DAYS = 10
STEPS_MORE = 3
SOON_S = 40.0
"""For what needs a controller to take over, or a limit of the controller to pass."""


class Job:
    """Workers of one job, one process each."""

    def __init__(self, name: str, programs: Sequence[Program], stop: Path) -> None:
        self.name, self.programs, self._stop = name, programs, stop

    def lines(self, rank: int) -> list[dict[str, Any]]:
        """What a worker has printed, in JSON."""
        said = self.programs[rank].said()
        return [json.loads(line) for line in said.splitlines() if line.startswith("{") and line.endswith("}")]

    def steps(self) -> int:
        """Of the slowest worker."""
        return min(max((line.get("steps", 0) for line in self.lines(r)), default=0) for r in range(len(self.programs)))

    def check(self) -> None:
        """Raises an `AssertionError` if a worker has ended, or has got a wrong sum."""
        for rank, program in enumerate(self.programs):
            wrong = [line for line in self.lines(rank) if line.get("wrong")]
            assert not wrong, f"{self.name}, rank {rank} got wrong sums: {wrong[0]}"
            assert program.exit_code is None, f"{self.name}, rank {rank} has ended: {program.tail()}"

    def goes_on(self, patience_s: float = SOON_S) -> None:
        """Waits until each worker has made a few more steps."""
        before = self.steps()
        wait_until(lambda: self.steps() >= before + STEPS_MORE, f"{self.name} makes more steps", patience_s, self.check)

    def for_seconds(self, seconds: float) -> None:
        """It goes on for so long."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.check()
            time.sleep(0.1)
        self.goes_on()

    def finish(self) -> None:
        """All stop at the same step, and leave; every sum was right."""
        self.check()
        self._stop.touch()
        for rank, program in enumerate(self.programs):
            program.process.wait(SOON_S)
            assert program.exit_code == 0, program.tail()
            assert self.lines(rank)[-1] == self.lines(rank)[-1] | {"wrong": 0, "done": True}

    def error(self, rank: int, patience_s: float = SOON_S) -> str:
        """What a worker said when its job ended, which must come to that."""
        program = self.programs[rank]
        wait_until(lambda: program.exit_code is not None, f"rank {rank} of {self.name} has ended", patience_s)
        said = self.lines(rank)[-1] if self.lines(rank) else {}
        assert not any(line.get("wrong") for line in self.lines(rank)), program.tail()
        assert "error" in said, program.tail()
        return str(said["error"])


class Certificates:
    """An authority, and a TLS directory for each holder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.authority = Authority.create(folder / "ca", "laboratory")

    def tls(self, name: str) -> Path:
        return self._folder / name

    def issue(self, name: str, role: str, *, tenants: tuple[str, ...] = (), addresses: tuple[str, ...] = ()) -> Path:
        claims = Claims(frozenset({role}), (), tenants)
        self.authority.issue(Holder(name, claims, addresses), self.tls(name), CERTIFIED_DAYS)
        return self.tls(name)

    def renew(self, name: str) -> None:
        self.authority.renew(self.tls(name))

    def revoke(self, name: str) -> None:
        """At all controllers, which share a folder."""
        self.authority.revoke(self.authority.issued(name))
        listed = self.tls("controller") / "ca.crl"
        fresh = listed.with_name("fresh.crl")
        fresh.write_bytes((self.authority.directory / "ca.crl").read_bytes())
        fresh.replace(listed)


class Laboratory:
    def __init__(
        self,
        folder: Path,
        *,
        lanes: int = LANES,
        slots: int = SLOTS,
        tables: str = "",
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """`tables`: more of the controllers' configuration. `variables`: of the controllers and switches."""
        self.folder, self.lanes, self.slots, self._tables = folder, lanes, slots, tables
        self.variables = dict(variables or {})
        self.pki = Certificates(folder / "pki")
        self.ports = {name: unused_port() for name in CONTROLLERS}
        self.metrics = {name: unused_port() for name in CONTROLLERS}
        self.at: dict[str, SwitchAt] = {}
        self.switches: dict[str, Program] = {}
        self.controllers: dict[str, Program] = {}
        self.jobs: list[Job] = []
        self._salts = itertools.count(1)
        for role in ("controller", "operator", "worker"):
            self.pki.issue(role, role, addresses=(HOST,) * (role == "controller"))
        self._cleanup = contextlib.ExitStack()
        self._cleanup.callback(self._stop_all)
        with self._cleanup:
            for name in SWITCHES:
                self.pki.issue(name, "switch", addresses=(HOST,))
                self.start_switch(name)
            for name in CONTROLLERS:
                self.start_controller(name)
            self.operator = self.service("operator")
            self.await_switches("ready")
            self._cleanup = self._cleanup.pop_all()

    def __enter__(self) -> Laboratory:
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    @property
    def targets(self) -> str:
        """As in WIRESUM_SWITCH."""
        return ",".join(f"{HOST}:{port}" for port in self.ports.values())

    # Services.

    def start_switch(self, name: str) -> Program:
        """At the ports that it had before."""
        before = self.at.get(name) or SwitchAt(name, unused_port(), 0)
        ends = ["--p4runtime", f"{HOST}:{before.p4runtime}", "--bind", HOST, "--port", str(before.data)]
        sizes = ["--lanes", str(self.lanes), "--slots", str(self.slots), "--threads", "1"]
        program = Program(
            command("switch", *ends, *sizes, "--tls", str(self.pki.tls(name))),
            self.folder / f"{name}.log",
            self.variables,
            append=True,
        )
        self.switches[name] = program
        data = int(program.await_text(r"ready: .* data \S+:(\d+)-")[1])
        self.at[name] = before._replace(data=data)
        return program

    def start_controller(self, name: str) -> Program:
        """It serves if no other does; otherwise it is the standby."""
        config = self.folder / f"{name}.toml"
        config.write_text(
            controller_config(
                listen=self.ports[name],
                metrics=self.metrics[name],
                switches=list(self.at.values()),
                slots=self.slots,
                lanes=self.lanes,
                tls=str(self.pki.tls("controller")),
                audit=str(self.folder / f"{name}.audit"),
                more=self._tables,
            )
        )
        options = ["--config", str(config), "--standby"]
        program = Program(command("controller", *options), self.folder / f"{name}.log", self.variables, append=True)
        self.controllers[name] = program
        program.await_text(r"ready: control|standing by")
        return program

    def service(self, tls: str, *names: str) -> Service:
        """What `wiresum` asks with: the controllers of these names, or all, with this certificate."""
        targets = ",".join(f"{HOST}:{self.ports[name]}" for name in names or CONTROLLERS)
        return self._cleanup.enter_context(Service(targets, tls=str(self.pki.tls(tls))))

    def report(self) -> join.Report | None:
        with contextlib.suppress(ServiceError):
            report = self.operator.report()
            return report if report.service.role != "standby" else None
        return None

    def await_switches(self, *states: str) -> None:
        """Until each switch is in one of these."""
        self.await_report(lambda report: all(s.state in states for s in report.switches), f"all switches are {states}")

    def await_report(
        self, condition: Callable[[join.Report], object], what: str, patience_s: float = SOON_S
    ) -> join.Report:
        def found() -> join.Report | None:
            report = self.report()
            return report if report is not None and condition(report) else None

        return wait_until(found, what, patience_s)

    def drain(self, switch_name: str, *, resume: bool = False) -> None:
        request = join.DrainRequest(switch_name=switch_name, resume=resume)
        self.operator.tell(lambda stub: stub.Drain(request, timeout=PATIENCE_S))

    def jobs_at(self) -> dict[str, str]:
        """The switch of each job."""
        return {job.name: job.switch_name for job in self.operator.report().jobs}

    # Jobs.

    def job(self, name: str, size: int = 2, *, tls: str = "worker", variables: Mapping[str, str] | None = None) -> Job:
        """Waits until it sums."""
        job = self.start_job(name, size, tls=tls, variables=variables)
        wait_until(job.steps, f"{name} sums", SOON_S, job.check)
        return job

    def start_job(
        self,
        name: str,
        size: int = 2,
        *,
        tls: str = "worker",
        ranks: Sequence[int] | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> Job:
        """`ranks`: of the workers that are started, if not all."""
        salt, stop = next(self._salts), self.folder / f"{name}.stop"
        own = {
            "WIRESUM_SWITCH": self.targets, "WIRESUM_TLS": str(self.pki.tls(tls)), "WIRESUM_ADDRESS": HOST,
            "WIRESUM_LANES": str(self.lanes), "WIRESUM_THREADS": "1", "WIRESUM_SLOTS": "32", "OMP_NUM_THREADS": "1",
        } | dict(variables or {})  # fmt: skip
        programs = [
            Program(
                [sys.executable, str(WORKER), name, str(rank), str(size), str(salt), str(stop), "120"],
                self.folder / f"{name}-{rank}.log",
                own,
            )
            for rank in (range(size) if ranks is None else ranks)
        ]
        job = Job(name, programs, stop)
        self.jobs.append(job)
        return job

    def _stop_all(self) -> None:
        for job in self.jobs:
            for program in job.programs:
                program.kill()
        stop_all([*self.controllers.values(), *self.switches.values()])


@contextlib.contextmanager
def certified_earlier(by: datetime.timedelta) -> Iterator[None]:
    """What an authority issues inside is dated so much earlier, and expires so much earlier."""

    class Earlier(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Earlier:
            return super().now(tz) - by

    with mock.patch.object(authority_module, "datetime", Earlier):
        yield


def lasting(seconds: float) -> contextlib.AbstractContextManager[None]:
    """What an authority issues inside for `CERTIFIED_DAYS` expires so soon."""
    return certified_earlier(datetime.timedelta(days=CERTIFIED_DAYS, seconds=-seconds))
