"""Kills a controller, or the switch (SIGKILL), and starts it again, many times during one training. Are the parameters
bit for bit the same as without kills?

`wiresum switch --p4runtime`, `wiresum controller` and the workers (`restart_worker.py`, in PyTorch) are processes of
this host; so are the workers of short jobs, which come and go all the time (`restart_visitor.py`). A kill comes when
the controller serves and all workers attend, the next at a random moment while it starts again. With `--standby` two
controllers share the state, and each kill is of the active one; the other takes over, and the one that was killed is
started again as the standby. When all kills are done the training ends after some step; then the same workers train
again for as many steps, and nobody is killed. With `--switch` each kill is of the switch, and the next one comes when
the training has gone on; there are no short jobs, since one whose worker has left just then would rightly fail. With
`--other-switch` there are two switches, and each kill is of the one that the job is at; it is started again when the
training has gone on at the other one, and the next kill comes when it serves. With `--without-switch` there is one
`wiresum switch` with its own join service and no controller. It is killed and stays away until the training has gone on
at the switch that rank 0 starts; then it is started again, and the next kill comes when the training has returned to
it.

    python -m wiresum_lab.benchmarks.cluster.restart --kills 50 --folder build/restart
    python -m wiresum_lab.benchmarks.cluster.restart --kills 50 --folder build/restart --standby
    python -m wiresum_lab.benchmarks.cluster.restart --kills 50 --folder build/restart --switch
    python -m wiresum_lab.benchmarks.cluster.restart --kills 50 --folder build/restart --other-switch
    python -m wiresum_lab.benchmarks.cluster.restart --kills 20 --folder build/restart --without-switch

Prints a line, or with --json an object; exits with status 1 if a digest differs or a job failed. Logs are in the
folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import click

from wiresum.cli.service import Service, ServiceError
from wiresum.join import Report
from wiresum.join.constants import THREADS_MAX
from wiresum_lab.processes import Program, SwitchAt, controller_config, unused_port, wait_until, wiresum

WAIT_S_MAX = 60.0
SLOTS = 4096
SWITCHES = ("leaf", "other")
STEPS_UNDER_WAY = 1
"""Steps that may end after a kill with sums that had been sent before."""
WORKER, VISITOR = (Path(__file__).with_name(f"restart_{who}.py") for who in ("worker", "visitor"))

T = TypeVar("T")


@dataclass(frozen=True)
class RestartResult:
    kills: int
    steps: int
    steps_without_controller: int
    """Steps that the workers made between a kill and the moment when a controller, or their switch, served them again.
    """
    back_s_median: float
    """Time from a kill to that moment, if no second kill came in between; of a switch, to the end of a step."""
    back_s_max: float
    digests: list[str]
    """Different digests of all workers and both trainings: one, if all is well."""
    visits: int | None
    """Short jobs that came and went meanwhile; None: there were to be none."""
    failures: list[str]
    """What failed in the short jobs: nothing, if all is well."""

    @property
    def well(self) -> bool:
        return len(self.digests) == 1 and not self.failures and self.visits != 0


class Processes:
    """The processes of both trainings, from `with` to its end."""

    def __init__(
        self, folder: Path, workers: int, *, standby: bool, visits: bool, embedded: bool, switches: int
    ) -> None:
        """`embedded`: the only switch serves joins itself, and there are no controllers."""
        self._folder, self._workers, self._visits, self._embedded = folder, workers, visits, embedded
        folder.mkdir(parents=True, exist_ok=True)
        for left in (*folder.glob("*.json"), *folder.glob("*.log"), *folder.glob("state/*"), *folder.glob("st[eo]p*")):
            left.unlink()
        self._listen = [unused_port() for _ in range(1 + standby)]
        self._plans = [SwitchAt(name, unused_port(), unused_port(THREADS_MAX)) for name in SWITCHES[:switches]]
        self._cleanup = contextlib.ExitStack()
        self._controllers: list[Program | None] = [None] * (0 if embedded else len(self._listen))
        self._trainers: list[Program] = []
        self._switches: dict[str, Program] = {}
        self.service = Service(",".join(f"127.0.0.1:{port}" for port in self._listen))

    def __enter__(self) -> Processes:
        try:
            self._start_all()
        except BaseException:
            self._cleanup.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    def _start_all(self) -> None:
        self._cleanup.enter_context(self.service)
        for plan in self._plans:
            self.start_switch(plan.name)
        for index, _ in enumerate(self._controllers):
            text = controller_config(listen=self._listen[index], switches=self._plans, slots=SLOTS)
            (self._folder / f"cluster{index}.toml").write_text(text)
            self.start_controller(index, standby=index > 0)
            self.await_report(lambda report: report.service.role == "active", "the controller serves")
        store = unused_port()
        variables = {
            "WIRESUM_SWITCH": ",".join(self.service.targets),
            "WIRESUM_FALLBACK": "auto" if self._embedded else "off",  # a switch that starts slowly is waited for
            "LOCAL_WORLD_SIZE": str(self._workers),
        }
        arguments = ["--world-size", self._workers, "--port", store, "--folder", self._folder]
        self._trainers.append(self._start("workers", [sys.executable, str(WORKER), *map(str, arguments)], variables))
        if self._visits:
            visit = [sys.executable, str(VISITOR), "--folder", str(self._folder)]
            self._trainers.append(self._start("visitor", visit, variables))
        self.await_report(self._all_attend, "all workers attend")
        self._await(lambda: self.steps() or None, "the training has begun")

    def start_switch(self, name: str = SWITCHES[0]) -> None:
        plan = next(plan for plan in self._plans if plan.name == name)
        serves = ("--control", self._listen[0]) if self._embedded else ("--p4runtime", plan.p4runtime)
        ends = [serves[0], f"127.0.0.1:{serves[1]}", "--bind", "127.0.0.1", "--port", str(plan.data)]
        self._switches[name] = self._start(name, [*wiresum("switch"), *ends, "--slots", str(SLOTS)])
        self._switches[name].await_text("ready: ")

    def kill_switch(self, name: str = SWITCHES[0]) -> None:
        self._check_alive()
        self._switches[name].kill()

    def switch_of_job(self) -> str:
        """Where it runs."""

        def ask() -> str | None:
            return next((job.switch_name for job in self.service.report(1.0).jobs if job.state == "running"), None)

        return self._await(ask, "the job runs")

    def await_switches(self) -> None:
        self.await_report(
            lambda report: all(switch.state == "ready" for switch in report.switches), "all switches serve"
        )

    def await_step(self, beyond: int) -> None:
        self._await(lambda: self.steps() > beyond or None, "the training goes on")

    def start_controller(self, index: int, *, standby: bool) -> None:
        command = [*wiresum("controller"), "--config", str(self._folder / f"cluster{index}.toml"), "--verbose"]
        self._controllers[index] = self._start(f"controller{index}", [*command, *["--standby"] * standby])

    def kill_controller(self, index: int) -> None:
        process = self._controllers[index]
        assert process is not None
        self._check_alive()
        process.kill()
        self._controllers[index] = None

    def active(self) -> int:
        """Which controller serves."""

        def ask() -> list[int]:
            found = []
            for index, target in enumerate(self.service.targets):
                with Service(target) as one, contextlib.suppress(ServiceError):
                    found += [index] * (one.report(1.0).service.role == "active")
            return found

        return self._await(ask, "a controller serves")[0]

    def await_served(self) -> None:
        self.await_report(self._all_attend, "all workers attend again")

    def steps(self) -> int:
        return int((self._folder / "steps").read_text()) if (self._folder / "steps").exists() else 0

    def end(self) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Ends the training. Returns what the workers found, in both trainings, and the visitor, if there is one."""
        (self._folder / "stop").touch()
        for trainer in self._trainers:
            try:
                status = trainer.process.wait(10 * WAIT_S_MAX)
            except subprocess.TimeoutExpired:
                raise click.ClickException(f"a worker does not end: see the logs in {self._folder}") from None
            if status:
                raise click.ClickException(f"a worker failed: see the logs in {self._folder}")
        trainings = [json.loads((self._folder / f"{rank}.json").read_text()) for rank in range(self._workers)]
        visits: dict[str, Any] = {"jobs": None, "failures": []}
        if self._visits:
            visits = json.loads((self._folder / "visitor.json").read_text())
        return [training for of_worker in trainings for training in of_worker], visits

    def await_report(self, condition: Callable[[Report], bool], what: str) -> None:
        def ask() -> bool | None:
            try:
                return condition(self.service.report(1.0)) or None
            except ServiceError:
                return None

        self._await(ask, what)

    def _all_attend(self, report: Report) -> bool:
        return any(
            job.state == "running" and [worker.state for worker in job.workers] == ["attending"] * self._workers
            for job in report.jobs
            if not job.name.startswith("visit-")
        )

    def _await(self, ask: Callable[[], T | None], what: str) -> T:
        def error(text: str) -> click.ClickException:
            return click.ClickException(f"{text}. See {self._folder}")

        return wait_until(ask, what, WAIT_S_MAX, self._check_alive, error=error)

    def _check_alive(self) -> None:
        processes = [*self._trainers, *filter(None, self._controllers)]
        if any(process.exit_code is not None for process in processes):
            raise click.ClickException(f"a worker or a controller ended by itself: see the logs in {self._folder}")

    def _start(self, name: str, command: Sequence[str], variables: Mapping[str, str] | None = None) -> Program:
        program = Program(command, self._folder / f"{name}.log", variables, append=True)
        self._cleanup.callback(program.kill)
        return program


@dataclass
class _Learnt:
    """What was measured in all kills so far."""

    back_s: list[float] = field(default_factory=list)
    steps_without: int = 0


def _kill(processes: Processes, most: int, chance: random.Random, learnt: _Learnt, *, standby: bool) -> int:
    """Kills a controller; without a standby, and if `most` allows it, the next one too, while that starts. Waits until
    one serves. Returns how many it has killed."""
    index = processes.active() if standby else 0
    steps, killed_at = processes.steps(), time.monotonic()
    processes.kill_controller(index)
    again = most > 1 and not standby and bool(learnt.back_s)
    if not standby:
        processes.start_controller(index, standby=False)
    if again:
        time.sleep(chance.uniform(0, statistics.median(learnt.back_s)))
        processes.kill_controller(index)
        processes.start_controller(index, standby=False)
    processes.await_served()
    if not again:
        learnt.back_s.append(time.monotonic() - killed_at)
    learnt.steps_without += processes.steps() - steps
    if standby:
        processes.start_controller(index, standby=True)
    return 1 + again


def _kill_switch(processes: Processes, chance: random.Random, learnt: _Learnt) -> None:
    """Starts it again, and waits until the training goes on."""
    time.sleep(chance.uniform(0, 0.5))
    killed_at = time.monotonic()
    processes.kill_switch()
    processes.start_switch()
    processes.await_step(processes.steps())
    learnt.back_s.append(time.monotonic() - killed_at)


def _let_other_switch_take_over(processes: Processes, chance: random.Random, learnt: _Learnt) -> None:
    """Then starts the one that it has killed."""
    time.sleep(chance.uniform(0, 0.5))
    name = processes.switch_of_job()
    killed_at = time.monotonic()
    processes.kill_switch(name)
    processes.await_step(processes.steps() + STEPS_UNDER_WAY)
    learnt.back_s.append(time.monotonic() - killed_at)
    processes.start_switch(name)
    processes.await_switches()
    processes.await_served()


def _take_switch_away(processes: Processes, chance: random.Random, learnt: _Learnt) -> None:
    """Until the training goes on without it; then it returns."""
    time.sleep(chance.uniform(0, 0.5))
    killed_at = time.monotonic()
    processes.kill_switch()
    steps = processes.steps()
    processes.await_step(steps + STEPS_UNDER_WAY)
    learnt.back_s.append(time.monotonic() - killed_at)
    processes.start_switch()
    processes.await_served()
    learnt.steps_without += processes.steps() - steps


def run(
    folder: Path,
    kills: int,
    workers: int,
    seed: int,
    *,
    standby: bool = False,
    switch: bool = False,
    other_switch: bool = False,
    without_switch: bool = False,
) -> RestartResult:
    chance, learnt, done = random.Random(seed), _Learnt(), 0
    ways = ((switch, _kill_switch), (other_switch, _let_other_switch_take_over), (without_switch, _take_switch_away))
    way = next((way for is_meant, way in ways if is_meant), None)
    with Processes(
        folder,
        workers,
        standby=standby,
        visits=way is None,
        embedded=without_switch,
        switches=2 if other_switch else 1,
    ) as processes:
        while done < kills:
            if way is not None:
                way(processes, chance, learnt)
                done += 1
            else:
                done += _kill(processes, kills - done, chance, learnt, standby=standby)
        trainings, visits = processes.end()
    return RestartResult(
        kills=done,
        steps=trainings[0]["steps"],
        steps_without_controller=learnt.steps_without,
        back_s_median=statistics.median(learnt.back_s),
        back_s_max=max(learnt.back_s),
        digests=sorted({training["digest"] for training in trainings}),
        visits=visits["jobs"],
        failures=visits["failures"],
    )


@click.command(help=__doc__)
@click.option("--kills", default=50, type=click.IntRange(1), show_default=True, help="How many.")
@click.option("--workers", default=2, type=click.IntRange(1, 8), show_default=True, help="Of the training.")
@click.option("--standby", is_flag=True, help="Let a standby take over.")
@click.option("--switch", is_flag=True, help="Kill the switch, not a controller.")
@click.option("--other-switch", is_flag=True, help="Kill the switch that the job is at; the other one takes over.")
@click.option("--without-switch", is_flag=True, help="Take the only switch away, until the training goes on without.")
@click.option("--seed", default=1, show_default=True, help="Of the moments of the kills.")
@click.option("--folder", required=True, type=click.Path(path_type=Path), help="For logs and state.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def main(kills: int, workers: int, seed: int, folder: Path, as_json: bool, **what: bool) -> None:
    if sum(what.values()) > 1:
        raise click.UsageError("--standby, --switch, --other-switch and --without-switch exclude each other")
    outcome = run(folder.resolve(), kills, workers, seed, **what)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(outcome), indent=2))
    else:
        click.echo(
            f"{outcome.kills} kills in a training of {outcome.steps} steps, {outcome.steps_without_controller} of them "
            f"without a controller or switch; served again after {outcome.back_s_median:.2f} s (median; longest "
            f"{outcome.back_s_max:.2f} s); parameters: "
            f"{'the same bits as' if len(outcome.digests) == 1 else 'NOT THOSE'} without kills; {outcome.visits or 0} "
            f"short jobs meanwhile; failures: {outcome.failures or 'none'}"
        )
    sys.exit(0 if outcome.well else 1)


if __name__ == "__main__":
    main()
