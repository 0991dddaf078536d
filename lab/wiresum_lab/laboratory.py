"""A cluster for tests of faults and attacks: a controller and its standby, two software switches, and jobs whose
workers check every element of every sum. All of them are processes, as on real hosts, with certificates, on loopback; a
hostile host has an address of its own.

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
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

from wiresum import join
from wiresum.cli.service import TIMEOUT_S, Service, ServiceError
from wiresum.controller.security import authority as authority_module
from wiresum.controller.security.authority import Authority, Holder
from wiresum.controller.security.names import Claims
from wiresum.join.constants import THREADS_MAX
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import POLL_S, Program, SwitchAt, controller_config, stop_all, unused_port, wait_until
from wiresum_lab.processes import wiresum as command

WORKER = Path(__file__).with_name("laboratory_worker.py")
HOST, HOSTILE = "127.0.0.1", "127.0.0.66"
SWITCHES = ("left", "right")
CONTROLLERS = ("active", "standby")
"""The controllers, named by their first roles."""
LANES, SLOTS = 64, 256
CERTIFIED_DAYS = 10
STEPS_MORE = 3
STEPS_A_SECOND_MAX = 50
"""Upper bound on a worker's rate, since it pauses between two steps."""
STEP_S_MAX = 2 * PATIENCE_S
"""Time-out of a step, longer than any fault lasts."""


class Job:
    """The workers of one job, one process each."""

    def __init__(self, name: str, programs: Sequence[Program], stop: Path) -> None:
        self.name, self.programs, self._stop = name, programs, stop

    def lines(self, rank: int) -> list[dict[str, Any]]:
        """The lines of JSON that a worker has printed."""
        return [json.loads(line) for line in self._printed(rank)]

    def said(self, rank: int) -> dict[str, Any]:
        """The last line of JSON that a worker has printed; empty if there is none."""
        return self._last(rank, "{")

    def steps(self) -> int:
        """Number of steps of the slowest worker."""
        return min(int(self._last(rank, '"steps"').get("steps", 0)) for rank in range(len(self.programs)))

    def _printed(self, rank: int) -> list[str]:
        said = self.programs[rank].said()
        return [line for line in said.splitlines() if line.startswith("{") and line.endswith("}")]

    def _last(self, rank: int, text: str) -> dict[str, Any]:
        """The last line that has the text; empty if there is none. Parses one line only: after an hour there are
        thousands."""
        return json.loads(next((line for line in reversed(self._printed(rank)) if text in line), "{}"))  # type: ignore[no-any-return]

    def ended(self) -> list[int]:
        """The ranks whose processes have ended."""
        return [rank for rank, program in enumerate(self.programs) if program.exit_code is not None]

    def check_sums(self) -> None:
        """Raises an `AssertionError` if a worker has got a wrong sum."""
        for rank, program in enumerate(self.programs):
            wrong = re.search(r'.*"wrong": [1-9].*', program.said())
            assert not wrong, f"{self.name}, rank {rank} got wrong sums: {wrong[0]}"

    def check(self) -> None:
        """Raises an `AssertionError` if a worker has ended, or has got a wrong sum."""
        self.check_sums()
        for rank in self.ended():
            raise AssertionError(f"{self.name}, rank {rank} has ended: {self.programs[rank].tail()}")

    def goes_on(self, patience_s: float = PATIENCE_S, *, steps: int = STEPS_MORE) -> None:
        """Waits until each worker has made a few more steps."""
        wanted = self.steps() + steps
        wait_until(lambda: self.steps() >= wanted, f"{self.name} makes {steps} more steps", patience_s, self.check)

    def for_seconds(self, seconds: float) -> None:
        """Waits until the job has made the steps of so many seconds at least: workers pause between steps."""
        self.goes_on(3 * PATIENCE_S, steps=int(seconds * STEPS_A_SECOND_MAX))

    def finish(self) -> None:
        """Ends the job: all workers stop at the same step and leave. Raises an `AssertionError` if a sum was wrong."""
        self.check()
        self._stop.touch()
        wait_until(lambda: len(self.ended()) == len(self.programs), f"{self.name} has finished")
        for rank, program in enumerate(self.programs):
            assert program.exit_code == 0, program.tail()
            assert self.said(rank) == self.said(rank) | {"wrong": 0, "done": True}

    def error(self, rank: int, patience_s: float = PATIENCE_S) -> str:
        """Waits until a worker's process has ended with an error, and returns the error."""
        program = self.programs[rank]
        wait_until(lambda: program.exit_code is not None, f"rank {rank} of {self.name} has ended", patience_s)
        self.check_sums()
        said = self.said(rank)
        assert "error" in said, program.tail()
        return str(said["error"])


class Certificates:
    """An authority, and a TLS directory for each holder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.authority = Authority.create(folder / "ca", "laboratory")

    def tls(self, name: str) -> Path:
        return self._folder / name

    def issue(self, name: str, *roles: str, tenants: tuple[str, ...] = (), addresses: tuple[str, ...] = ()) -> Path:
        claims = Claims(frozenset(roles), (), tenants)
        self.authority.issue(Holder(name, claims, addresses), self.tls(name), CERTIFIED_DAYS)
        return self.tls(name)

    def renew(self, name: str) -> None:
        self.authority.renew(self.tls(name))

    def revoke(self, name: str) -> None:
        """Revokes a certificate at all controllers, which share a folder."""
        self.authority.revoke(self.authority.issued(name))
        listed = self.tls("controller") / "ca.crl"
        fresh = listed.with_name("fresh.crl")
        fresh.write_bytes((self.authority.directory / "ca.crl").read_bytes())
        fresh.replace(listed)


AnyLaboratory = TypeVar("AnyLaboratory", bound="Laboratory")


class Laboratory:
    def __init__(
        self,
        folder: Path,
        *,
        lanes: int = LANES,
        slots: int = SLOTS,
        tables: str = "",
        variables: Mapping[str, str] | None = None,
        files_max: int | None = None,
        release: Sequence[str] = (),
    ) -> None:
        """Starts controllers and switches. `tables` is more of the controllers' configuration; `variables` are for the
        controllers and switches. `files_max` limits a controller's open files, and so its connections; None: no limit.
        `release` has options of `wiresum_lab.other_release`, for controllers and switches of another release."""
        self.folder, self.lanes, self.slots, self._tables = folder, lanes, slots, tables
        self.variables = dict(variables or {})
        self._limits = ["prlimit", f"--nofile={files_max}"] if files_max else []
        self.release = tuple(release)
        """The release of controllers and switches that are started from now on; empty for this one."""
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
                self._launch_switch(name)
            self.launch_controller("active").await_text("ready: control")
            self.launch_controller("standby").await_text("standing by")
            for name in SWITCHES:
                self.switches[name].await_text("ready: ")
            self.operator = self.service("operator")
            self.await_switches("ready")
            self._cleanup = self._cleanup.pop_all()

    def __enter__(self: AnyLaboratory) -> AnyLaboratory:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """Raises a `ProgramError` if a controller has ended by itself: the other one may have hidden it."""
        with self._cleanup:
            for program in self.controllers.values():
                if error is None and not program.was_stopped:
                    program.check()

    @property
    def targets(self) -> str:
        """The controllers' endpoints, in the form of WIRESUM_SWITCH."""
        return ",".join(f"{HOST}:{port}" for port in self.ports.values())

    def targets_of(self, job: str, rank: int) -> str:
        """The controllers' endpoints for one worker."""
        return self.targets

    def seen_by(self, controller: str) -> list[SwitchAt]:
        """The switches in the configuration of one controller."""
        return list(self.at.values())

    def log_of(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    # Services.

    def start_switch(self, name: str) -> Program:
        """Starts a switch again, at its former ports, and waits until it is ready."""
        program = self._launch_switch(name)
        program.await_text("ready: ")
        return program

    def _launch_switch(self, name: str) -> Program:
        at = self.at.get(name) or SwitchAt(name, unused_port(), unused_port(THREADS_MAX))
        self.at[name] = at
        ends = ["--p4runtime", f"{HOST}:{at.p4runtime}", "--bind", HOST, "--port", str(at.data)]
        sizes = ["--lanes", str(self.lanes), "--slots", str(self.slots), "--threads", "1"]
        program = Program(
            self._command("switch", *ends, *sizes, "--tls", str(self.pki.tls(name))),
            self.log_of(name),
            self.variables,
            append=True,
        )
        self.switches[name] = program
        return program

    def start_controller(self, name: str) -> Program:
        """Starts a controller, and waits until it serves or, if another one serves, stands by."""
        program = self.launch_controller(name)
        program.await_text(r"ready: control|standing by")
        return program

    def launch_controller(self, name: str) -> Program:
        """Starts a controller without waiting for it."""
        config = self.folder / f"{name}.toml"
        config.write_text(
            controller_config(
                listen=self.ports[name],
                metrics=self.metrics[name],
                switches=self.seen_by(name),
                slots=self.slots,
                lanes=self.lanes,
                tls=str(self.pki.tls("controller")),
                audit=str(self.folder / f"{name}.audit"),
                more=self._tables,
            )
        )
        options = ["--config", str(config), "--standby", "--verbose"]
        words = [*self._limits, *self._command("controller", *options)]
        program = Program(words, self.log_of(name), self.variables, append=True)
        self.controllers[name] = program
        return program

    def _command(self, *arguments: str) -> list[str]:
        if not self.release:
            return command(*arguments)
        return [sys.executable, "-m", "wiresum_lab.other_release", *self.release, *arguments]

    def service(self, tls: str, *names: str) -> Service:
        """A client, as `wiresum` uses it, of the controllers with these names (without names, of all), by this
        certificate."""
        targets = ",".join(f"{HOST}:{self.ports[name]}" for name in names or CONTROLLERS)
        return self._cleanup.enter_context(Service(targets, tls=str(self.pki.tls(tls)), timeout_s=PATIENCE_S))

    def report(self, patience_s: float = TIMEOUT_S) -> join.Report | None:
        """The report of the controller that serves; None if none serves."""
        with contextlib.suppress(ServiceError):
            return self.operator.report(patience_s)
        return None

    def await_switches(self, *states: str) -> None:
        """Waits until each switch is in one of these states."""
        self.await_report(lambda report: all(s.state in states for s in report.switches), f"all switches are {states}")

    def await_report(
        self, condition: Callable[[join.Report], object], what: str, patience_s: float = PATIENCE_S
    ) -> join.Report:
        def found() -> join.Report | None:
            report = self.report()
            return report if report is not None and condition(report) else None

        return wait_until(found, what, patience_s)

    def drain(self, switch_name: str, *, resume: bool = False, patience_s: float = PATIENCE_S) -> None:
        """Drains a switch. Repeats the request during a takeover, when no controller serves and nothing has changed."""
        request = join.DrainRequest(switch_name=switch_name, resume=resume)
        give_up_at = time.monotonic() + patience_s
        while True:
            try:
                self.operator.tell(lambda stub: stub.Drain(request, timeout=patience_s))
            except ServiceError as error:
                if error.code != "UNAVAILABLE" or time.monotonic() > give_up_at:
                    raise
                time.sleep(POLL_S)
            else:
                return

    def jobs_at(self) -> dict[str, str]:
        """The switch of each job that has not ended."""
        return {job.name: job.switch_name for job in self.operator.report().jobs if job.state != "ending"}

    # Jobs.

    def job(self, name: str, size: int = 2, *, tls: str = "worker", variables: Mapping[str, str] | None = None) -> Job:
        """Starts a job, and waits until it sums."""
        job = self.start_job(name, size, tls=tls, variables=variables)
        wait_until(job.steps, f"{name} sums", meanwhile=job.check)
        return job

    def start_job(
        self,
        name: str,
        size: int = 2,
        *,
        tls: str = "worker",
        ranks: Sequence[int] | None = None,
        variables: Mapping[str, str] | None = None,
        step_s_max: float = STEP_S_MAX,
        slots: int = 32,
    ) -> Job:
        """Starts a job's workers. `ranks` are the workers to start; None means all. `step_s_max` is the time-out of a
        sum."""
        salt, stop = next(self._salts), self.folder / f"{name}.stop"
        own = {
            "WIRESUM_TLS": str(self.pki.tls(tls)), "WIRESUM_ADDRESS": HOST, "WIRESUM_LANES": str(self.lanes),
            "WIRESUM_THREADS": "1", "OMP_NUM_THREADS": "1",
        } | dict(variables or {})  # fmt: skip
        programs = [
            Program(
                [sys.executable, *map(str, (WORKER, name, rank, size, salt, stop, step_s_max, slots))],
                self.log_of(f"{name}-{rank}"),
                {"WIRESUM_SWITCH": self.targets_of(name, rank)} | own,
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
    """Certificates that an authority issues in the block are dated earlier, and expire earlier, by `by`."""

    class Earlier(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Earlier:
            return super().now(tz) - by

    with mock.patch.object(authority_module, "datetime", Earlier):
        yield


def lasting(seconds: float) -> contextlib.AbstractContextManager[None]:
    """Certificates that an authority issues in the block for `CERTIFIED_DAYS` expire after `seconds`."""
    return certified_earlier(datetime.timedelta(days=CERTIFIED_DAYS, seconds=-seconds))
