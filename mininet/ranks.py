"""Ranks of a benchmark or an experiment, one for each worker of a star, and the software switch that they use.

A rank is a process that is told what to do over its standard streams, a line for each message, and answers likewise;
when its standard input ends, so does it. It can use both backends: `wiresum` over the switch, and Gloo.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

from star import MANAGEMENT_DEVICE, STAR_DEVICE, Host, Star
from systems import CONTROL_PORT, WIRESUM_PORT

FOLDER = Path(__file__).resolve().parent


class BenchError(RuntimeError):
    """A rank ended, or said something else than it was asked for; the text says where its log is."""


class Ranks:
    """The processes, and a switch for them. Each kind of benchmark says what its ranks can be told."""

    script: ClassVar[str]
    """What a rank runs; it says "hello" when it has joined."""

    def __init__(self, star: Star, logs: Path) -> None:
        self._logs = logs
        self._name = self.script.partition("_")[0]
        self._processes: list[subprocess.Popen[str]] = []
        control = f"{star.switch.management_address}:{CONTROL_PORT}"
        command = [sys.executable, "-m", "wiresum.cli", "switch", "--bind", star.switch.address]
        command += ["--control", control, "--insecure"]
        with (logs / f"{self._name}-switch.log").open("w") as log:
            self._switch = star.switch.popen(command, environment=os.environ, stdout=log, stderr=subprocess.STDOUT)
        for rank, worker in enumerate(star.workers):
            self._processes.append(self._start(rank, worker, star, control))
        self._expect("hello")

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
        command = [sys.executable, str(FOLDER / self.script), STAR_DEVICE]
        with (self._logs / f"{self._name}-rank{rank}.log").open("w") as log:
            pipe = subprocess.PIPE
            return worker.popen(command, environment=os.environ | variables, stdin=pipe, stdout=pipe, stderr=log)

    def close(self) -> None:
        for process in self._processes:
            process.communicate(timeout=60)  # closes its standard input, which ends it
        self.abandon()

    def abandon(self) -> None:
        for process in [*self._processes, self._switch]:
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
