"""A training goes on when its only switch is gone: at a switch that rank 0 starts, until another one serves. The tests
of wiresum.agent have all else that may happen to a job meanwhile."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import wiresum.torch
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import Program, unused_port, wait_until
from wiresum_lab.processes import wiresum as wiresum_command
from wiresum_lab.ranks.cluster import Cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(5 * PATIENCE_S)]

MakeCluster = Callable[..., Cluster]
STEPS_MORE = 3
ON_LOOPBACK = "127.0.0.1:"


class Training:
    """Its ranks write, after each step, how many they have made and where the job is served."""

    def __init__(self, cluster: Cluster, marks: Path) -> None:
        self._cluster, self._marks = cluster, marks
        cluster.start(trains, str(marks), None)
        self.goes_on()

    def steps(self) -> int:
        return min(int(self._said(rank)[0]) for rank in range(self._cluster.size))

    def services(self) -> set[str]:
        return {self._said(rank)[1] for rank in range(self._cluster.size)}

    def goes_on(self) -> None:
        before = self.steps()
        wait_until(lambda: self.steps() >= before + STEPS_MORE, "it goes on", meanwhile=self._check)

    def await_service(self, is_at: Callable[[str], bool]) -> str:
        """Waits until all ranks are served at such an endpoint, and go on."""
        wait_until(
            lambda: all(map(is_at, self.services())) and len(self.services()) == 1, "is at", meanwhile=self._check
        )
        self.goes_on()
        return self.services().pop()

    def finish(self) -> None:
        """The parameters are those of a training in which nothing happened."""
        (self._marks / "stop").touch()
        steps, digests = zip(*self._cluster.collect(), strict=True)
        assert len(set(steps)) == 1 and len(set(digests)) == 1
        self._marks.joinpath("stop").unlink()
        undisturbed = self._cluster.run(trains, str(self._marks), steps[0])
        assert {digest for _, digest in undisturbed} == set(digests)

    def _said(self, rank: int) -> Sequence[str]:
        path = self._marks / str(rank)
        return path.read_text().split() if path.exists() else ("0", "")

    def _check(self) -> None:
        for rank, process in enumerate(self._cluster.processes):
            assert process.is_alive(), self._cluster.log(rank)
        if self._cluster.answers or any(channel.poll() for channel in self._cluster._channels):
            raise AssertionError(f"a rank has ended: {self._cluster.collect()}")


def trains(rank: int, size: int, marks: str, steps: int | None) -> tuple[int, int]:
    """DDP with several buckets, which are summed at the same time. Returns the steps, and the parameters' checksum."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 64))
    parallel = DistributedDataParallel(model, bucket_cap_mb=0.02)
    data = torch.Generator().manual_seed(1000 + rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    done = 0
    began = time.time()
    while steps is None or done < steps:
        optimizer.zero_grad()
        parallel(torch.randn(16, 64, generator=data)).square().mean().backward()
        optimizer.step()
        done += 1
        write(Path(marks, str(rank)), f"{done} {wiresum.torch.stats().service}")
        if steps is None:
            stop = torch.tensor([int(Path(marks, "stop").exists())], dtype=torch.int32)
            dist.all_reduce(stop)
            if stop.item():
                break
    moved = wiresum.torch.stats().moved
    if steps is not None:
        assert moved is None or moved.at < began
    else:
        assert moved is not None and began <= moved.at <= time.time() and moved.why, moved
    return done, hash(tuple(torch.cat([each.detach().flatten() for each in model.parameters()]).tolist()))


def write(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}")
    beside.write_text(text)
    beside.replace(path)


class OwnSwitch:
    """A job's own, which ends and comes back."""

    def __init__(self, folder: Path) -> None:
        self.endpoint = f"{ON_LOOPBACK}{unused_port()}"
        self._folder, self._times = folder, 0
        self.start()

    def start(self) -> None:
        self._times += 1
        command = wiresum_command("switch", "--control", self.endpoint, "--port", "0")
        self._program = Program(command, self._folder / f"own{self._times}.log")
        self._program.await_text("ready: ")

    def kill(self) -> None:
        self._program.kill()


@pytest.fixture
def own(tmp_path: Path) -> Any:
    made = OwnSwitch(tmp_path)
    yield made
    made.kill()


def children(process: int) -> list[int]:
    command = ["pgrep", "-P", str(process), "-f", "wiresum.cli switch"]
    return [int(line) for line in subprocess.run(command, check=False, stdout=subprocess.PIPE).stdout.split()]


def test_it_goes_on_without_any_switch_and_returns_again_and_again(
    make_cluster: MakeCluster, own: OwnSwitch, marks: Path
) -> None:
    cluster = make_cluster(3, at=own)
    training = Training(cluster, marks)
    fallbacks = set()
    for _ in range(2):
        assert training.services() == {own.endpoint}
        own.kill()
        fallbacks.add(training.await_service(lambda service: service != own.endpoint))
        own.start()
        training.await_service(lambda service: service == own.endpoint)
    assert len(fallbacks) == 1, "it is reserved"
    training.finish()
    wait_until(lambda: not children(cluster.processes[0].pid or 0), "rank 0 has no child")
