"""torchft's lighthouse and its workers, as processes that a test may kill.

Each worker is a replica group of one process.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from torch._C._distributed_c10d import TCPStore

from wiresum_lab.processes import Program, stop_all, unused_port
from wiresum_lab.ranks.cluster import environment

LIGHTHOUSE = Path(sys.executable).with_name("torchft_lighthouse")


class Step(NamedTuple):
    """A worker's report on a step."""

    at: float
    """Time of the step, in seconds of the machine's monotonic clock."""
    number: int
    workers: int
    """How many workers took part."""
    verdict: str
    """Either "committed" or "repeated"."""
    result: str


class Replicas:
    """A context manager for workers that run `program`, which takes their names as `--name`."""

    def __init__(
        self,
        program: Sequence[str],
        folder: Path,
        switch: str,
        *,
        lighthouse: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """`switch` is the value of WIRESUM_SWITCH; `lighthouse` has further options of the lighthouse."""
        self._program, self._folder = program, folder
        port = unused_port()
        command = [str(LIGHTHOUSE), "--bind", f"127.0.0.1:{port}", "--min_replicas", "2", *lighthouse]
        self._lighthouse = Program(command, folder / "lighthouse.log", {"RUST_LOG": "info"})
        self._variables = environment({"WIRESUM_SWITCH": switch, **(variables or {})})
        self._variables |= {"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}", "RANK": "0", "WORLD_SIZE": "1"}
        self._stores: list[TCPStore] = []
        self.programs: dict[str, Program] = {}

    def __enter__(self) -> Replicas:
        return self

    def __exit__(self, *_: object) -> None:
        stop_all([*self.programs.values(), self._lighthouse])

    def start(self, name: str) -> Program:
        """Starts a worker of this name, for the first time or again. Its log begins anew."""
        self._stores.append(TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
        variables = self._variables | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self._stores[-1].port)}
        command = [sys.executable, *self._program, "--name", name]
        self.programs[name] = Program(command, self._folder / f"{name}.log", variables)
        return self.programs[name]

    def steps(self, name: str) -> list[Step]:
        """The steps that a worker has reported, in the form of plugins/torch/examples/torchft_ddp.py."""
        said = re.findall(r"^(\S+) step (\d+) of (\d+) workers (\w+): (.+)$", self.programs[name].said(), re.MULTILINE)
        return [
            Step(float(at), int(number), int(workers), verdict, result) for at, number, workers, verdict, result in said
        ]

    def first_committed(self, name: str, workers: int, after: float) -> Step | None:
        """The first step after a moment that so many workers have committed; None if there is none yet."""
        wanted = (step for step in self.steps(name) if step.at > after and step.verdict == "committed")
        return next((step for step in wanted if step.workers == workers), None)
