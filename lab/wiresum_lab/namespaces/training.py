"""A training whose workers share a stream on each host. Each step depends on every sum before, and each sum is
checked."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from wiresum_lab.namespaces.star import MANAGEMENT_DEVICE, Host
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import Program, wait_until

PROGRAM = Path(__file__).with_name("training_worker.py")
ENOUGH = 20
"""Steps that show that the training goes on: none of them was in flight when a fault came."""


class Training:
    """The workers, from their start until one of them is killed. Needs PyTorch."""

    def __init__(
        self,
        hosts: Sequence[Host],
        control: str,
        folder: Path,
        variables: dict[str, str] | None = None,
        elements: int = 50_000,
    ) -> None:
        """`hosts` has each worker's, in the order of ranks; they join at `control`."""
        self._folder = folder
        common = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": MANAGEMENT_DEVICE}
        self.workers = [
            Program(
                [sys.executable, str(PROGRAM), str(folder), str(rank), str(len(hosts)), str(elements)],
                folder / f"{rank}.log",
                common | host.variables(control) | (variables or {}),
                at=host.popen,
            )
            for rank, host in enumerate(hosts)
        ]

    def goes_on(self) -> None:
        wanted = max(self._steps(rank) for rank in range(len(self.workers))) + ENOUGH
        wait_until(
            lambda: min(self._steps(rank) for rank in range(len(self.workers))) >= wanted,
            f"all workers have made {wanted} steps",
            4 * PATIENCE_S,
            self._check,
        )

    def stop_for_a_while(self, rank: int) -> None:
        worker = self.workers[rank]
        os.kill(worker.pid, signal.SIGSTOP)
        state = Path(f"/proc/{worker.pid}/stat")
        wait_until(lambda: state.read_text().rpartition(")")[2].split()[0] == "T", "the worker stands still")
        os.kill(worker.pid, signal.SIGCONT)

    def end(self, killed: int) -> dict[int, dict[str, Any]]:
        """Kills a worker, which the others must name. Returns what they report, by rank."""
        self.workers[killed].kill()
        reports = self.reports({rank for rank in range(len(self.workers)) if rank != killed})
        assert {report.get("lost") for report in reports.values()} == {killed}, reports
        return reports

    def reports(self, ranks: Collection[int]) -> dict[int, dict[str, Any]]:
        """What these workers report at their ends, by rank."""
        for rank in ranks:
            self.workers[rank].process.wait(4 * PATIENCE_S)
        return {rank: json.loads(self.workers[rank].said().splitlines()[-1]) for rank in ranks}

    def _steps(self, rank: int) -> int:
        path = self._folder / f"steps{rank}"
        return int(path.read_text() or 0) if path.exists() else 0

    def _check(self) -> None:
        for worker in self.workers:
            worker.check()
