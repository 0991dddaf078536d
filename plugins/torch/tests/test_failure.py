"""Failures: a process dies or stalls, or a collective is called wrongly. Every worker gets an error that names the
cause. The tests of wiresum.agent have all ways in which a job ends; these have the ways that PyTorch's calls add."""

from __future__ import annotations

import ctypes
import datetime
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import wiresum.torch
from wiresum.agent.errors import (
    CollectiveTimeoutError,
    DivergedError,
    JoinError,
    SwitchUnreachableError,
    WiresumError,
    WorkerLostError,
)
from wiresum.controller import JoinServer, Limits
from wiresum.switch import SoftwareSwitch
from wiresum.torch import backend, waits
from wiresum.torch.errors import as_torch_error
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import SwitchProcess
from wiresum_lab.ranks.cluster import Cluster, await_marks, environment, runs_in
from wiresum_lab.ranks.cluster_worker import world

ROUNDS_MAX = 100_000
MakeCluster = Callable[..., Cluster]


def until_it_fails(step: Callable[[], object]) -> Exception:
    for _ in range(ROUNDS_MAX):
        try:
            step()
        except Exception as error:
            return error
    raise AssertionError("nothing failed")


def assert_stays_failed(error: Exception) -> None:
    """Every later call raises the first cause at once, and leaving works."""
    for call in (
        lambda: dist.all_reduce(torch.ones(3)),
        dist.barrier,
        lambda: dist.all_reduce(torch.ones(3, dtype=torch.float64)),
        lambda: dist.send(torch.ones(1), dst=(dist.get_rank() + 1) % dist.get_world_size()),
    ):
        with pytest.raises(RuntimeError) as caught:
            call()
        assert str(caught.value) == str(error)
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (JoinError("text", code="UNAVAILABLE"), dist.DistNetworkError),
        (JoinError("text", code="DEADLINE_EXCEEDED"), wiresum.torch.WiresumTimeoutError),
        (JoinError("text", code="ALREADY_EXISTS"), dist.DistBackendError),
        (SwitchUnreachableError("text"), dist.DistNetworkError),
        (CollectiveTimeoutError("text"), wiresum.torch.WiresumTimeoutError),
        (WorkerLostError("text", rank=3), dist.DistBackendError),
    ],
    ids=repr,
)
def test_the_agents_errors_are_those_of_pytorch(error: WiresumError, kind: type[Exception]) -> None:
    translated = as_torch_error(error)
    assert type(translated) is kind and str(translated) == "text" and translated.__cause__ is error


def waits_in_all_ways(rank: int, size: int, marks: Path) -> None:
    """Waits in calls that need rank 2, and in a receive from a live neighbour that does not send, since it waits, too.
    All are made before rank 2 dies: a later call would raise by itself."""
    dist.barrier()
    tensor, double = torch.ones(200_000), torch.ones(10_000, dtype=torch.float64)
    if rank == 2:
        (marks / str(rank)).touch()
        await_marks(marks, size + 1)  # rank 2 is killed meanwhile
        return
    pending = dist.irecv(torch.ones(1), src=1 - rank)
    through_gloo = dist.all_reduce(double, async_op=True)
    largest = dist.all_reduce(torch.ones(1, dtype=torch.int64), dist.ReduceOp.MAX, async_op=True)
    summed, dropped = (dist.all_reduce(tensor.clone(), async_op=True) for _ in range(2))
    assert None not in (pending, through_gloo, largest, summed, dropped)
    chained = dropped.get_future().then(lambda done: done.value()[0] + 1)
    (marks / str(rank)).touch()
    first = until_it_fails(lambda: dist.all_reduce(tensor))
    assert isinstance(first, dist.DistBackendError), repr(first)
    assert isinstance(first.__cause__, WorkerLostError) and first.__cause__.rank == 2
    for wait in (summed.wait, dropped.get_future().wait, chained.wait, largest.wait, through_gloo.wait, pending.wait):
        error = until_it_fails(wait)
        assert isinstance(error, RuntimeError) and "rank 2" in str(error), repr(error)
    assert dropped.is_completed() and not dropped.is_success()
    assert torch.__version__ < "2.13" or "rank 2" in str(dropped.exception())
    assert_stays_failed(first)


def test_a_killed_worker_is_named_by_every_call_of_every_other(
    hasty_service: str, make_cluster: MakeCluster, marks: Path
) -> None:
    cluster = make_cluster(3, variables={"WIRESUM_SWITCH": hasty_service})
    cluster.start(waits_in_all_ways, marks)
    await_marks(marks, 3)
    cluster.kill(2)
    cluster.collect(ranks=[0, 1])


HELD_S = 20


def holds_the_interpreter(rank: int, size: int) -> float:
    tensor = torch.ones(5000)
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    if rank == 1:
        ctypes.PyDLL(None).sleep(HELD_S)  # PyDLL, unlike CDLL, keeps the interpreter's lock
    work.wait()
    dist.all_reduce(tensor)
    return float(tensor.sum())


@pytest.mark.nightly
def test_a_call_that_holds_the_interpreters_lock_ends_no_job(make_cluster: MakeCluster) -> None:
    """The job goes on, though a worker that is silent for so long is lost."""
    with closing(SoftwareSwitch(bind="127.0.0.1", port=0, threads=1)) as switch:
        server = JoinServer(switch, Limits(heartbeat_lost_ms=HELD_S * 1000 // 2))
        variables = {"WIRESUM_SWITCH": f"127.0.0.1:{server.start('127.0.0.1', 0)}"}
        assert make_cluster(3, variables=variables).run(holds_the_interpreter) == [5000 * 9.0] * 3
        server.stop(1.0)


@runs_in("new_pair")
def test_a_collective_of_gloos_that_one_rank_does_not_call_times_out(rank: int, size: int, marks: Path) -> None:
    """The time-out is the group's newest. (test_direct.py has such a test of the network.)"""
    double = torch.ones(10_000, dtype=torch.float64)
    dist.all_reduce(double)
    (marks / f"{rank} has summed").touch()
    await_marks(marks, size)
    if rank == 0:
        world().set_timeout(datetime.timedelta(seconds=1))
        with pytest.raises(wiresum.torch.WiresumTimeoutError) as caught:
            dist.all_reduce(double)
        assert isinstance(caught.value, TimeoutError) and isinstance(caught.value, dist.DistBackendError)
        text = str(caught.value)
        assert text.startswith("rank 0: Timed out waiting 1 s for all_reduce(SUM, float64[10000]) (10000 elem"), text
        dist.destroy_process_group()
        (marks / str(rank)).touch()
        return
    await_marks(marks, size + 1)  # this rank waits while it should be summing
    error = until_it_fails(lambda: dist.all_reduce(torch.ones(10)))
    assert "rank 0" in str(error) and "time" in str(error).lower(), str(error)


CALLED = {
    "sizes": ("rank 0 called all_reduce(SUM, float32[500])", "rank 1 called all_reduce(SUM, float32[510])"),
    "kinds": ("rank 0 called all_reduce(SUM, float32[1000])", "rank 1 called broadcast(root 0, float32[1000])"),
    "operators": ("rank 0 called all_reduce(SUM, float32[1000])", "rank 1 called all_reduce(AVG, float32[1000])"),
    "types": ("rank 0 called all_reduce(SUM, float32[1000])", "rank 1 called all_reduce(SUM, int32[1000])"),
    "types-copied": (
        "rank 0 called broadcast(root 0, float32[1000])",
        "rank 1 called broadcast(root 0, int32[1000])",
    ),
    "types-gathered": (
        "rank 0 called all_gather_single(float32[2000])",
        "rank 1 called all_gather_single(int32[2000])",
    ),
    "roots": ("rank 0 called broadcast(root 0, float32[1000])", "rank 1 called broadcast(root 1, float32[1000])"),
    "parts": (
        "rank 0 called reduce_scatter(SUM, float32[10], float32[20])",
        "rank 1 called reduce_scatter(SUM, float32[15], float32[10])",
    ),
    "sparse": (
        "rank 0 called all_reduce(SUM, float32[1000])",
        "rank 1 called all_reduce(SUM, float32[4, 2] sparse in 1 dimension)",
    ),
    "both-gloo": (
        "rank 0 called all_reduce(SUM, int64[10000]), through Gloo",
        "rank 1 called all_reduce(SUM, float64[10000]), through Gloo",
    ),
    "both-gloo-roots": (
        "rank 0 called reduce(MAX, root 0, float32[1000]), through Gloo",
        "rank 1 called reduce(MAX, root 1, float32[1000]), through Gloo",
    ),
    "both-gloo-means": (
        "rank 0 called all_reduce(SUM, float64[10000]), through Gloo",
        "rank 1 called all_reduce(AVG, float64[10000]), through Gloo",
    ),
    "both-gloo-kinds": ("rank 0 called gather(root 0, ", "rank 1 called all_reduce(SUM, int64[10000]), through Gloo"),
    "types-gloo": (
        "rank 0 called all_reduce(SUM, float32[1000])",
        "rank 1 called all_reduce(SUM, float64[10000]), through Gloo",
    ),
    "operators-gloo": (
        "rank 0 called all_reduce(MAX, float64[10000]), through Gloo",
        "rank 1 called all_reduce(SUM, float32[1000])",
    ),
    "sparse-gloo": (
        "rank 0 called all_reduce(SUM, float32[4, 2] sparse in 1 dimension)",
        "rank 1 called all_reduce(SUM, int64[10000]), through Gloo",
    ),
    "small-operators": ("rank 0 called all_reduce(MAX, int64[3])", "rank 1 called all_reduce(MIN, int64[3])"),
    "small-types": ("rank 0 called all_reduce(MAX, int64[3])", "rank 1 called all_reduce(MAX, float64[3])"),
    "small-sizes": ("rank 0 called all_reduce(BOR, uint8[3])", "rank 1 called all_reduce(BOR, uint8[4])"),
    "small-large": (
        "rank 0 called all_reduce(SUM, int64[3])",
        "rank 1 called all_reduce(SUM, int64[10000]), through Gloo",
    ),
    "factors": ("rank 0 called all_reduce(SUM, float32[1000])", "rank 1 called all_reduce(PREMUL_SUM, float32[1000])"),
}


def diverges(rank: int, size: int, how: str) -> str:
    """Diverges in a group of its own, so that the whole group goes on."""
    group = dist.new_group()
    tensor, few = torch.ones(1000), torch.ones(3, dtype=torch.int64)
    double, long = torch.ones(10_000, dtype=torch.float64), torch.ones(10_000, dtype=torch.int64)
    all_reduce, average, largest = partial(dist.all_reduce, group=group), dist.ReduceOp.AVG, dist.ReduceOp.MAX
    all_reduce(tensor)
    all_reduce(double)
    typed = tensor.to(torch.int32) if rank else tensor
    sparse = torch.sparse_coo_tensor([[1, 3]], torch.ones(2, 2), (4, 2))
    error = until_it_fails(
        {
            "sizes": lambda: all_reduce(tensor[: 500 + 10 * rank]),
            "kinds": lambda: all_reduce(tensor) if rank == 0 else dist.broadcast(tensor, src=0, group=group),
            "operators": lambda: all_reduce(tensor, op=average if rank else dist.ReduceOp.SUM),
            "types": lambda: all_reduce(typed),
            "types-copied": lambda: dist.broadcast(typed, src=0, group=group),
            "types-gathered": lambda: dist.all_gather_into_tensor(torch.cat([typed, typed]), typed, group=group),
            "roots": lambda: dist.broadcast(tensor, src=rank, group=group),
            "parts": lambda: dist.reduce_scatter(
                tensor[:10].clone(), [tensor[:k] for k in ([10, 20], [15, 10])[rank]], group=group
            ),
            "both-gloo": lambda: all_reduce(double if rank else long),
            "both-gloo-roots": lambda: dist.reduce(tensor, dst=rank, op=dist.ReduceOp.MAX, group=group),
            "both-gloo-means": lambda: all_reduce(double, op=average if rank else dist.ReduceOp.SUM),
            "both-gloo-kinds": lambda: (
                all_reduce(long) if rank else dist.gather(tensor, [tensor.clone(), tensor.clone()], group=group)
            ),
            "sparse": lambda: all_reduce(sparse if rank else tensor),
            "types-gloo": lambda: all_reduce(double if rank else tensor),
            "operators-gloo": lambda: all_reduce(tensor) if rank else all_reduce(double, op=largest),
            "sparse-gloo": lambda: all_reduce(long if rank else sparse),
            "small-operators": lambda: all_reduce(few, op=dist.ReduceOp.MIN if rank else largest),
            "small-types": lambda: all_reduce(few.double() if rank else few, op=largest),
            "small-sizes": lambda: all_reduce(torch.ones(3 + rank, dtype=torch.uint8), op=dist.ReduceOp.BOR),
            "small-large": lambda: all_reduce(long if rank else few),
            "factors": lambda: all_reduce(tensor, op=dist._make_nccl_premul_sum(0.5) if rank else dist.ReduceOp.SUM),
        }[how]
    )
    dist.destroy_process_group(group)
    assert isinstance(error, dist.DistBackendError), repr(error)
    for called in CALLED[how]:
        assert called in str(error), str(error)
    return type(error.__cause__).__name__


@pytest.mark.parametrize("how", CALLED)
def test_workers_that_call_different_collectives_find_out(pair: Cluster, how: str) -> None:
    assert DivergedError.__name__ in pair.run(diverges, how)


@pytest.mark.nightly
@runs_in("make_cluster", 3)
def test_late_ranks_are_not_mistaken_for_different_calls(rank: int, size: int) -> None:
    """Ranks are late to a call of the network while others wait in Gloo, and the other way round, always in the same
    order."""
    late_s = waits.CALLS_S + 0.5
    one, double = torch.ones(1000), torch.ones(10_000, dtype=torch.float64)
    work = dist.all_reduce(one, async_op=True)
    assert work is not None
    if rank == 0:
        time.sleep(late_s)
    dist.all_reduce(double)
    if rank == 1:
        time.sleep(late_s)
    work.wait()
    dist.all_reduce(one)
    assert (one == size**2).all() and (double == size).all()


@runs_in("new_pair")
def test_abort_ends_the_job_at_every_worker(rank: int, size: int, marks: Path) -> None:
    dist.barrier()
    (marks / str(rank)).touch()
    if rank == 0:
        await_marks(marks, size)  # a worker that is aborted before it has the barrier's result has none
        dist.distributed_c10d._abort_process_group()
        assert not dist.is_initialized()
        return
    error = until_it_fails(lambda: dist.all_reduce(torch.ones(10)))
    assert "rank 0" in str(error) and "abort" in str(error)
    dist.destroy_process_group()


LEAVES = """
import sys, time, torch, torch.distributed as dist, wiresum.torch
store, rank, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
dist.init_process_group("wiresum", init_method=f"file://{store}", rank=rank, world_size=2)
tensor = torch.ones(1000)
try:
    # A sum that rank 1 has may be on its way to rank 0 still when rank 1 leaves.
    dist.all_reduce(tensor)
    work = dist.all_reduce(tensor, async_op=True)
    if rank == 1:
        if how == "raise":
            raise KeyError("a bug in the training script")
        sys.exit(0)
    while True:
        dist.all_reduce(tensor)
except RuntimeError as error:
    print(error, flush=True)
    sys.stdin.read()
"""


class Group:
    network = None

    def __init__(self, said: list[str]) -> None:
        self._said = said

    def abort_at_exit(self, error: BaseException | None) -> None:
        self._said.append("abort")

    def close_at_exit(self) -> None:
        self._said.append("close")


def test_a_process_that_exits_gives_the_orders_of_all_groups_before_one_waits_to_be_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    groups = [Group(said) for _ in range(3)]
    monkeypatch.setattr(backend, "_open", groups)
    backend._leave_at_exit()
    assert said == ["abort"] * 3 + ["close"] * 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "reason", "code"), [("exit", "without destroy_process_group", 0), ("raise", "a bug in the training", 1)]
)
def test_a_worker_that_exits_without_destroying_its_group_tells_the_others_why_and_waits_for_none(
    switch: SwitchProcess, tmp_path: Path, how: str, reason: str, code: int
) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", LEAVES, str(tmp_path / "store"), str(rank), how],
            env=environment({"WIRESUM_SWITCH": switch.endpoint}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:  # rank 0 ends after rank 1
        _, said = [process.communicate(timeout=PATIENCE_S) for process in reversed(processes)]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, code], said
    assert reason in said[0] and "rank 1" in said[0], said
