"""Ranks of a benchmark or an experiment, one for each worker of a star, and the software switches that they use: one in
the star's middle, or one at each of its aggregators.

A rank is a process that is told what to do over its standard streams, a line for each message, and answers likewise;
when its standard input ends, so does it. It can use both backends: `wiresum` over the switch, and Gloo.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from rich.console import Console
from rich.table import Table

from wiresum.join.constants import CONTROL_PORT
from wiresum_lab.benchmarks.systems import WIRESUM_PORT
from wiresum_lab.namespaces.star import (
    MANAGEMENT_DEVICE,
    STAR_DEVICE,
    Host,
    Star,
    StarError,
    check_prerequisites,
    termination_as_exit,
)

Case = TypeVar("Case")
AnyRanks = TypeVar("AnyRanks", bound="Ranks")

REPORT_COLUMNS = 120
START_DELAY_NS = 20_000_000  # until all ranks have been told when to begin


class BenchError(RuntimeError):
    """A rank ended, or said something else than it was asked for; the text says where its log is."""


def prerequisites_met(console: Console) -> bool:
    """Can stars be built here? If not, says what is missing."""
    try:
        check_prerequisites()
    except StarError as error:
        console.print(str(error), style="red", markup=False)
        return False
    return True


def parser_of(description: str | None, *, records: str, workers: int) -> argparse.ArgumentParser:
    """The options that all these benchmarks have; each adds its own. `description` is the module's docstring, whose
    first line is shown; `records` is where its records go."""
    parser = argparse.ArgumentParser(description=description.partition("\n")[0] if description else None)
    parser.add_argument("--workers", type=int, default=workers, help="workers (default: %(default)s)")
    parser.add_argument("--link-mbit", type=float, default=100.0, help="rate of every link (default: %(default)s)")
    parser.add_argument("--json", type=Path, default=Path(records), help="where the records go (default: %(default)s)")
    return parser


def add_tensor(parser: argparse.ArgumentParser) -> None:
    """The options of benchmarks that sum one size again and again."""
    parser.add_argument("--bytes", type=int, default=8_000_000, help="bytes of the tensor (default: %(default)s)")
    parser.add_argument("--repetitions", type=int, default=5, help="of each case (default: %(default)s)")


def run(
    options: argparse.Namespace,
    measure: Callable[[argparse.Namespace, Console], Sequence[Case]],
    *,
    record: Callable[[Case], Mapping[str, Any]],
    table: Callable[[Sequence[Case], argparse.Namespace], Table],
    draw: Callable[[Sequence[Case], argparse.Namespace], None] = lambda cases, options: None,
) -> int:
    """A benchmark's main program: measures, leaves the records in `options.json`, and prints the table. `measure` finds
    a folder `options.logs` beside them. Returns the exit status."""
    console = Console(highlight=False, soft_wrap=True, width=REPORT_COLUMNS)
    if not prerequisites_met(console):
        return 2
    options.logs = options.json.parent / "log"
    options.logs.mkdir(parents=True, exist_ok=True)
    with termination_as_exit():
        cases = measure(options, console)
    options.json.write_text(json.dumps([record(case) for case in cases], indent=1) + "\n")
    draw(cases, options)
    console.print(table(cases, options))
    return 0


class Ranks:
    """The processes, and switches for them. Each kind of benchmark says what its ranks can be told."""

    script: ClassVar[str]
    """What a rank runs, beside the module of the class; it says "hello" when it has joined."""
    arguments: tuple[str, ...] = ()
    """What it is told besides the star's device."""

    def __init__(self, star: Star, logs: Path) -> None:
        self._logs = logs
        self._name = self.script.partition("_")[0]
        self._processes: list[subprocess.Popen[str]] = []
        self._services: list[subprocess.Popen[str]] = []
        try:
            control = self._start_services(star)
            for rank, worker in enumerate(star.workers):
                self._processes.append(self._start(rank, worker, star, control))
            self._expect("hello")
        except BaseException:
            self.abandon()
            raise

    def _start_services(self, star: Star) -> str:
        """Starts the switches, and gives what ranks find in WIRESUM_SWITCH."""
        hosts = star.aggregators or [star.switch]
        for index, host in enumerate(hosts):
            command = ["switch", "--bind", host.address, "--control", control_endpoint(host), "--insecure"]
            self._start_service(f"switch{index}", host, command)
        return "+".join(map(control_endpoint, hosts))

    def _start_service(self, name: str, host: Host, command: Sequence[str]) -> Path:
        """Runs a command of `wiresum`, and gives the file of its output."""
        path = self._logs / f"{self._name}-{name}.log"
        with path.open("w") as log:
            words = [sys.executable, "-m", "wiresum.cli", *command]
            self._services.append(host.popen(words, environment=os.environ, stdout=log, stderr=subprocess.STDOUT))
        return path

    def _start(self, rank: int, worker: Host, star: Star, control: str) -> subprocess.Popen[str]:
        variables = {
            "RANK": str(rank),
            "LOCAL_RANK": "0",
            "WORLD_SIZE": str(len(star.workers)),
            "MASTER_ADDR": star.workers[0].management_address,
            "MASTER_PORT": str(WIRESUM_PORT),
            "OMP_NUM_THREADS": "1",
            "WIRESUM_SWITCH": control,
            "WIRESUM_INSECURE": "1",
            "WIRESUM_ADDRESS": worker.address,
            "GLOO_SOCKET_IFNAME": MANAGEMENT_DEVICE,
        }
        program = Path(inspect.getfile(type(self))).resolve().with_name(self.script)
        command = [sys.executable, str(program), STAR_DEVICE, *self.arguments]
        with (self._logs / f"{self._name}-rank{rank}.log").open("w") as log:
            pipe = subprocess.PIPE
            return worker.popen(command, environment=os.environ | variables, stdin=pipe, stdout=pipe, stderr=log)

    def __enter__(self: AnyRanks) -> AnyRanks:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def close(self) -> None:
        for process in self._processes:
            process.communicate(timeout=60)  # closes its standard input, which ends it
        self.abandon()

    def abandon(self) -> None:
        for process in [*self._processes, *self._services]:
            process.kill()
            process.wait()

    def _tell(self, line: str) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(line + "\n")
            process.stdin.flush()

    def _answers(self) -> list[str]:
        lines = []
        for rank, process in enumerate(self._processes):
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise BenchError(f"rank {rank} has ended: see {self._logs / f'{self._name}-rank{rank}.log'}")
            lines.append(line.strip())
        return lines

    def _expect(self, word: str) -> None:
        for rank, line in enumerate(self._answers()):
            if line != word:
                raise BenchError(f"rank {rank} says {line!r} and not {word!r}")


class SummingRanks(Ranks):
    """Ranks that all begin the same sum at the same moment, and look at it when the last one has ended."""

    def sum(self, group: str) -> tuple[float, list[dict[str, Any]]]:
        """The time from the first rank's start to the last one's end, in seconds, and what each rank reports of it."""
        self._tell("load")
        self._expect("ready")
        self._tell(f"go {group} {time.monotonic_ns() + START_DELAY_NS}")
        self._expect("ready")
        self._tell("report")
        reports = [json.loads(line) for line in self._answers()]
        if wrong := sum(report["wrong_elements"] for report in reports):
            raise BenchError(f"{wrong} elements of a sum by '{group}' are wrong")
        duration_ns = max(report["end_ns"] for report in reports) - min(report["start_ns"] for report in reports)
        return duration_ns / 1e9, reports


class GroupsRanks(SummingRanks):
    """Ranks with a group over each of several choices of switches, and one of Gloo: `groups_rank.py`."""

    script = "groups_rank.py"

    def __init__(self, star: Star, logs: Path, choices: Mapping[str, str]) -> None:
        """`choices`: of each group the name, and its switch as in WIRESUM_SWITCH."""
        self.arguments = tuple(f"{name}={switch}" for name, switch in choices.items())
        super().__init__(star, logs)

    def prepare(self, elements: int, block: int, sparsity: float, draw: int) -> None:
        self._tell(f"prepare {elements} {block} {sparsity} {draw}")
        self._expect("ready")

    def go(self, group: str) -> dict[str, Any]:
        seconds, reports = self.sum(group)
        return {"seconds": seconds, "retransmissions": sum(report["retransmissions"] for report in reports)}


def control_endpoint(host: Host) -> str:
    return f"{host.management_address}:{CONTROL_PORT}"
