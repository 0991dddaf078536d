"""Eight workers in two racks: two software switches below a third, with a controller, each in a process of its own. The
racks are different loopback addresses."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from click.testing import CliRunner

from wiresum import join
from wiresum.cli.service import Service
from wiresum.compress import QSGD, Engine, InProcess, IntDIANA, Piece, Segment, TopK, aggregator_of
from wiresum.controller.command import controller
from wiresum.join.constants import THREADS_MAX
from wiresum_lab.processes import Program, unused_port, wait_until, wiresum
from wiresum_lab.ranks.cluster import Cluster, await_marks

pytest.importorskip("finsy", reason="the controller's libraries are not installed")
pytestmark = pytest.mark.slow

SWITCHES = {"spine": "127.0.7.1", "leaf1": "127.0.7.2", "leaf2": "127.0.7.3"}
HOSTS = {"leaf1": "127.0.7.12", "leaf2": "127.0.7.13"}
WORKERS = 8
CONFIG = """\
[controller]
listen = "127.0.0.1:{port}"
state = "{state}"

[jobs]
switch_lost_s = 5
"""
SWITCH = """
[[switch]]
name = "{name}"
kind = "software"
p4runtime = "{p4runtime}"
address = "{address}"
port = {data_port}
slots = 512
"""
HOST = """\
parent = "spine"
[[switch.host]]
name = "host of {name}"
address = "{address}"
"""


class Racks:
    def __init__(self, folder: Path, cleanup: contextlib.ExitStack) -> None:
        self._folder = folder
        self._cleanup = cleanup
        self.port = unused_port()
        text = CONFIG.format(port=self.port, state=folder / "state")
        self._places = {name: (f"127.0.0.1:{unused_port()}", unused_port(THREADS_MAX)) for name in SWITCHES}
        self.switches = {name: self._switch(name, *place) for name, place in self._places.items()}
        for name, (p4runtime, data_port) in self._places.items():
            self.switches[name].await_text("ready: ")
            text += SWITCH.format(name=name, p4runtime=p4runtime, address=SWITCHES[name], data_port=data_port)
            text += HOST.format(name=name, address=HOSTS[name]) if name in HOSTS else ""
        (folder / "cluster.toml").write_text(text)
        self.controller = self.start_controller()
        self.service = Service(f"127.0.0.1:{self.port}", timeout_s=30.0)

    def _start(self, name: str, *arguments: str) -> Program:
        return self._cleanup.enter_context(Program(wiresum(*arguments), self._folder / f"{name}.log"))

    def _switch(self, name: str, p4runtime: str, port: int) -> Program:
        options = ["--p4runtime", p4runtime, "--bind", SWITCHES[name], "--port", str(port)]
        return self._start(name, "switch", *options, "--threads", "1", "--slots", "512")

    def start_again(self, name: str) -> None:
        self.switches[name] = self._switch(name, *self._places[name])

    def start_controller(self) -> Program:
        starts = sum(1 for _ in self._folder.glob("controller*.log"))
        program = self._start(f"controller{starts}", "controller", "--config", str(self._folder / "cluster.toml"))
        program.await_text(r"ready: control")
        return program

    def ask_controller(self, command: str) -> str:
        """The output of a controller command, run beside the controller that serves."""
        found = CliRunner().invoke(controller, [command, "--config", str(self._folder / "cluster.toml")])
        assert found.exit_code == 0, found.output
        return str(found.output).strip()

    def await_ready(self) -> None:
        wait_until(lambda: {each.state for each in self.service.report().switches} == {"ready"}, "all are ready", 60)

    def job(self, name: str) -> join.JobReport:
        return next(job for job in self.service.report().jobs if job.name.startswith(name))


@pytest.fixture(scope="module")
def racks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Racks]:
    with contextlib.ExitStack() as cleanup:
        yield Racks(tmp_path_factory.mktemp("racks"), cleanup)


@pytest.fixture(scope="module")
def workers(racks: Racks, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    variables = {"WIRESUM_SWITCH": f"127.0.0.1:{racks.port}", "WIRESUM_THREADS": "1"}
    with Cluster(None, WORKERS, tmp_path_factory.mktemp("workers"), grouped=False, variables=variables) as cluster:
        yield cluster


# Functions that the workers run.


def join_racks(rank: int, size: int, folder: str, name: str, per_rack: int, fallback: str = "auto") -> str:
    """Places the first ranks in one rack and the others in the next."""
    os.environ["WIRESUM_FALLBACK"] = fallback
    os.environ["WIRESUM_ADDRESS"] = list(HOSTS.values())[rank // per_rack % len(HOSTS)]
    os.environ["WIRESUM_JOB"] = name
    try:
        dist.init_process_group("wiresum", init_method=f"file://{folder}/{name}", rank=rank, world_size=size)
    except Exception as error:
        return str(error)
    return ""


def leave(rank: int, size: int) -> None:
    dist.destroy_process_group()


def overlapping_sums(rank: int, size: int) -> None:
    """Many calls of several kinds in flight at a time."""
    for turn in range(3):
        whole = [torch.arange(n, dtype=torch.int32) + rank + turn for n in (1, 700, 40_000, 9, 100_000)]
        exact = [torch.arange(n, dtype=torch.float32) + rank for n in (5, 3000)]
        row = torch.full((20_000,), float(rank))
        works = [dist.all_reduce(tensor, async_op=True) for tensor in [*whole, *exact]]
        works.append(dist.broadcast(row, src=size - 1, async_op=True))
        blocks = torch.zeros(360_000)
        blocks[rank * 36_000] = blocks[359_999] = 1.0
        works.append(dist.all_reduce(blocks, async_op=True))
        for work in works:
            work.wait()
        ranks = size * (size - 1) // 2
        for tensor in whole:
            expected = size * (torch.arange(len(tensor), dtype=torch.int32) + turn) + ranks
            assert torch.equal(tensor, expected)
        for floats in exact:
            assert torch.equal(floats, size * torch.arange(len(floats), dtype=torch.float32) + ranks)
        assert (row == size - 1).all()
        assert (blocks[torch.arange(size) * 36_000] == 1).all()
        assert blocks[359_999] == size
        assert blocks.sum() == 2 * size


def other_collectives(rank: int, size: int) -> None:
    """All other collectives, and compressed gradients, whose result must equal that of one process."""
    rows = [torch.arange(900, dtype=torch.float32) * (1 + other) for other in range(size)]
    gathered = [torch.empty(900) for _ in range(size)]
    dist.all_gather(gathered, rows[rank])
    assert all(torch.equal(row, expected) for row, expected in zip(gathered, rows, strict=True))
    share = torch.empty(500, dtype=torch.int32)
    dist.reduce_scatter_tensor(share, torch.arange(500 * size, dtype=torch.int32) + rank)
    ranks = size * (size - 1) // 2
    assert torch.equal(share, size * (torch.arange(500, dtype=torch.int32) + 500 * rank) + ranks)
    whole = torch.arange(500, dtype=torch.int32) + rank
    dist.reduce(whole, dst=size - 2)
    assert rank != size - 2 or torch.equal(whole, size * torch.arange(500, dtype=torch.int32) + ranks)
    dist.barrier()
    gradients = [[np.random.default_rng(other).normal(size=600)] for other in range(size)]
    segments = [Segment((Piece("weights", (600,)),))]
    for compressor in (TopK(0.1), IntDIANA(16), QSGD()):
        (mean,) = Engine(compressor, aggregator_of(), seed=3).average(segments, [gradients[rank]])
        (expected,) = Engine(compressor, InProcess(size), seed=3).average(segments, gradients)
        assert mean.tobytes() == expected.tobytes()


def sums_until(rank: int, size: int, marks: str, enough: str) -> int:
    """Sums until all workers stop after the same sum; returns how many were right."""
    count = 0
    while True:
        values = torch.arange(5000, dtype=torch.int32) + rank + count
        dist.all_reduce(values)
        assert torch.equal(values, size * (torch.arange(5000, dtype=torch.int32) + count) + size * (size - 1) // 2)
        count += 1
        Path(marks, str(rank)).touch()
        stops = torch.tensor([int(Path(enough).exists())])
        dist.all_reduce(stops)
        if stops:
            return count


def sums_until_it_fails(rank: int, size: int, marks: str) -> str:
    Path(marks, str(rank)).touch()
    while True:
        try:
            dist.all_reduce(torch.ones(5000))
        except Exception as error:
            dist.destroy_process_group()
            return str(error)


def test_a_job_over_two_racks_sums_and_a_job_in_one_rack_uses_no_spine(
    racks: Racks, workers: Cluster, tmp_path: Path
) -> None:
    assert workers.run(join_racks, str(tmp_path), "both", 4) == [""] * WORKERS
    workers.run(overlapping_sums)
    workers.run(other_collectives)
    job = racks.job("both")
    assert [(node.switch_name, node.parent, node.workers) for node in job.switches] == [
        ("spine", "", 0),
        ("leaf1", "spine", 4),
        ("leaf2", "spine", 4),
    ]
    assert [worker.switch_name for worker in job.workers] == ["leaf1"] * 4 + ["leaf2"] * 4
    assert len({worker.contributions for worker in job.workers}) == 1
    assert len({node.results for node in job.switches}) == 1, "each sum went through all three"
    assert {node.contributions for node in job.switches if node.parent} == {job.results}
    planned = racks.ask_controller("plan").splitlines()
    assert planned[::2] == ["spine: no changes", "leaf1, below spine: no changes", "leaf2, below spine: no changes"]
    taken = [line.removeprefix("  taken by jobs: ").split(", ") for line in planned[1::2]]
    assert ["2 of 4096 admit" in line for line in taken] == [True, False, False], "the spine has two leaves"
    assert ["4 of 4096 admit" in line for line in taken] == [False, True, True], "a leaf has four workers"
    assert "leaf2 (software, below spine); 2 hosts; 1 running jobs on disk" in racks.ask_controller("check")
    workers.run(leave)
    assert workers.run(join_racks, str(tmp_path), "one", WORKERS) == [""] * WORKERS
    workers.run(overlapping_sums)
    assert [node.switch_name for node in racks.job("one").switches] == ["leaf1"]
    workers.run(leave)


def test_a_restarted_controller_resumes_the_job_at_all_its_switches(
    racks: Racks, workers: Cluster, tmp_path: Path
) -> None:
    marks, enough = tmp_path / "marks", tmp_path / "enough"
    marks.mkdir()
    assert workers.run(join_racks, str(tmp_path), "goes-on", 4) == [""] * WORKERS
    workers.start(sums_until, str(marks), str(enough))
    await_marks(marks, WORKERS)
    racks.controller.kill()
    for mark in marks.iterdir():
        mark.unlink()
    await_marks(marks, WORKERS)
    racks.controller = racks.start_controller()
    wait_until(lambda: _attending(racks) == WORKERS, "all attend again")
    before = racks.job("goes-on")
    enough.touch()
    assert len(set(workers.collect())) == 1
    after = racks.job("goes-on")
    assert after.results > before.results, "the counters go on: nothing was installed anew"
    workers.run(leave)
    wait_until(lambda: not racks.service.report().jobs, "the job is gone")
    assert set(_slots_free(racks).values()) == {512}


def _slots_free(racks: Racks) -> dict[str, int]:
    return {switch.name: switch.slots_free for switch in racks.service.report().switches}


def _attending(racks: Racks) -> int:
    return sum(worker.state == "attending" for worker in racks.job("goes-on").workers)


def test_a_leaf_that_is_killed_is_named_at_every_worker_of_its_tree(
    racks: Racks, workers: Cluster, tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    assert workers.run(join_racks, str(tmp_path), "loses-a-leaf", 4, "off") == [""] * WORKERS
    workers.start(sums_until_it_fails, str(marks))
    await_marks(marks, WORKERS)
    racks.switches["leaf2"].kill()
    for said in workers.collect():
        assert "leaf2 is lost" in said
    wait_until(
        lambda: _slots_free(racks) == {"spine": 512, "leaf1": 512, "leaf2": 256}, "only the lost one keeps slots"
    )
    refused = workers.run(join_racks, str(tmp_path), "again", WORKERS)
    assert refused == [""] * WORKERS, "leaf1 serves its own"
    workers.run(overlapping_sums)
    workers.run(leave)


@pytest.mark.timeout(300)
def test_a_job_that_loses_a_leaf_goes_on_at_the_fallback_and_returns(
    racks: Racks, workers: Cluster, tmp_path: Path
) -> None:
    """The controller serves meanwhile, and could take other jobs."""
    if racks.switches["leaf2"].exit_code is not None:
        racks.start_again("leaf2")
    racks.await_ready()
    marks, enough = tmp_path / "marks", tmp_path / "enough"
    marks.mkdir()
    assert workers.run(join_racks, str(tmp_path), "goes-on", 4) == [""] * WORKERS
    workers.start(sums_until, str(marks), str(enough))
    await_marks(marks, WORKERS)
    racks.switches["leaf2"].kill()
    for _ in range(3):
        for mark in marks.iterdir():
            mark.unlink()
        wait_until(lambda: len(list(marks.iterdir())) == WORKERS, "it goes on", 60)
        time.sleep(3)
    racks.start_again("leaf2")
    wait_until(lambda: [job.state for job in racks.service.report().jobs if job.state == "running"], "it is back", 120)
    enough.touch()
    assert len(set(workers.collect())) == 1
    workers.run(leave)
