"""A training on two hosts of four workers, which share a stream on each, goes on while a worker is stopped for a while,
and when its switch is killed; it ends with a name when a worker is. Every sum is right. Needs root and PyTorch."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from wiresum_lab.namespaces.links import Link
from wiresum_lab.namespaces.star import MANAGEMENT_DEVICE, Star
from wiresum_lab.namespaces.transports import start_switch, start_worker
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import Program, wait_until

HOSTS, A_HOST = 2, 4
PROGRAM = Path(__file__).with_name("training_worker.py")
ENOUGH = 20
"""Steps that show that the training goes on: none of them was in flight when a fault came."""

pytestmark = [pytest.mark.usefixtures("namespaces"), pytest.mark.slow, pytest.mark.timeout(300)]


class Training:
    def __init__(self, star: Star, folder: Path) -> None:
        self.folder = folder
        self.switch = start_switch(star, "udp", folder / "switch.log")
        hosts = [host for host in star.workers for _ in range(A_HOST)]
        variables = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": MANAGEMENT_DEVICE}
        self.workers = [
            start_worker(
                star,
                host,
                "udp",
                [str(PROGRAM), str(folder), str(rank), str(len(hosts))],
                folder / f"{rank}.log",
                variables,
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

    def stop_for_a_while(self, worker: Program) -> None:
        os.kill(worker.pid, signal.SIGSTOP)
        state = Path(f"/proc/{worker.pid}/stat")
        wait_until(lambda: state.read_text().rpartition(")")[2].split()[0] == "T", "the worker stands still")
        os.kill(worker.pid, signal.SIGCONT)

    def _steps(self, rank: int) -> int:
        path = self.folder / f"steps{rank}"
        return int(path.read_text() or 0) if path.exists() else 0

    def _check(self) -> None:
        for worker in self.workers:
            worker.check()


@pytest.mark.parametrize("killed", [4, 6])
def test_it_survives_what_it_can_and_names_what_it_cannot(killed: int, tmp_path: Path) -> None:
    """Rank 4 sums for its host, 6 does not."""
    with Star(HOSTS, Link(rate_mbit=100)) as star:
        training = Training(star, tmp_path)
        training.goes_on()
        for stopped in (0, 5):
            training.stop_for_a_while(training.workers[stopped])
            training.goes_on()
        training.switch.kill()
        training.goes_on()
        training.workers[killed].kill()
        left = [worker for rank, worker in enumerate(training.workers) if rank != killed]
        for worker in left:
            worker.process.wait(4 * PATIENCE_S)
        reports = [json.loads(worker.said().splitlines()[-1]) for worker in left]
    assert {report.get("lost") for report in reports} == {killed}, reports
    assert [report["sharing"] for report in reports if 0 in report["sharing"]] == 4 * [[0, 1, 2, 3]]
    assert all(star.workers[0].address in report["service"] for report in reports), "rank 0's fallback"
