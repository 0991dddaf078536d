"""Reads the records of a training run's workers while the workers write them."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Run:
    """The records of one training run. Curves are of rank 0; counts are sums over all workers."""

    name: str
    backend: str = "wiresum"
    """The backend's name for init_process_group."""
    steps_planned: int = 0
    losses: list[float] = field(default_factory=list)  # by step
    goodputs_mbit: list[float] = field(default_factory=list)  # by step
    accuracies: dict[int, float] = field(default_factory=dict)  # by the number of steps taken
    retransmissions_by_rank: dict[int, int] = field(default_factory=dict)
    digests: dict[int, str] = field(default_factory=dict)  # by rank, of workers that have ended
    seconds: float = 0.0
    bytes: int = 0

    @property
    def steps(self) -> int:
        return len(self.losses)

    @property
    def accuracy(self) -> float:
        return self.accuracies[max(self.accuracies)] if self.accuracies else 0.0

    @property
    def retransmissions(self) -> int:
        return sum(self.retransmissions_by_rank.values())

    @property
    def goodput_mbit(self) -> float:
        """The median over steps, so that slow first steps and busy moments do not count."""
        return statistics.median(self.goodputs_mbit) if self.goodputs_mbit else 0.0

    def parameters_identical(self, world_size: int) -> bool:
        return len(self.digests) == world_size and len(set(self.digests.values())) == 1

    def take(self, rank: int, entry: dict[str, Any]) -> None:
        if entry["event"] == "step":
            self.retransmissions_by_rank[rank] = entry["retransmissions"]
        elif entry["event"] == "end":
            self.digests[rank] = entry["digest"]
        if rank != 0:
            return
        match entry["event"]:
            case "step":
                self.steps_planned = entry["steps"]
                self.losses.append(entry["loss"])
                self.goodputs_mbit.append(entry["goodput_mbit"])
            case "epoch":
                self.accuracies[entry["step"]] = entry["accuracy"]
            case "end":
                self.seconds, self.bytes = entry["seconds"], entry["bytes"]


class RunReader:
    """Reads new lines of the workers' files into a Run."""

    def __init__(self, run: Run, folder: Path, world_size: int) -> None:
        self._run = run
        self._paths = [folder / f"rank-{rank}.jsonl" for rank in range(world_size)]
        self._offsets = [0] * world_size

    def read(self) -> None:
        """Reads complete lines only: a worker may be writing the last one."""
        for rank, path in enumerate(self._paths):
            if not path.exists():
                continue
            with path.open("rb") as log:
                log.seek(self._offsets[rank])
                whole = log.read().rpartition(b"\n")[0]
            if whole:
                self._offsets[rank] += len(whole) + 1
                for line in whole.splitlines():
                    self._run.take(rank, json.loads(line))
