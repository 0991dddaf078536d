"""What happens when a process dies or stalls, or a collective is called wrongly: every worker gets an error that names
the cause. Time stamps of different processes are compared, which Linux's monotonic clock allows. The time limits are
what users are promised, not measurements."""

from __future__ import annotations

import ctypes
import datetime
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import wiresum.torch
from wiresum.agent.errors import DivergedError, WorkerLostError
from wiresum.controller import JoinServer, Limits
from wiresum.switch import SoftwareSwitch
from wiresum.torch import backend
from wiresum_lab.processes import SwitchProcess, wait_until
from wiresum_lab.ranks.cluster import Cluster, await_marks, environment, runs_in
from wiresum_lab.ranks.cluster_worker import implementation, world

WORKER_LOST_S_MAX = 5.0
SWITCH_LOST_S_MAX = 40.0
ROUNDS_MAX = 100_000
MakeCluster = Callable[..., Cluster]


def until_it_fails(step: Callable[[], object]) -> tuple[Exception, float]:
    for _ in range(ROUNDS_MAX):
        try:
            step()
        except Exception as error:
            return error, time.monotonic()
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


def reduces_for_ever(rank: int, size: int, marks: str) -> float:
    tensor = torch.ones(2_000_000)
    dist.all_reduce(tensor)
    Path(marks, str(rank)).touch()
    error, at = until_it_fails(lambda: dist.all_reduce(tensor))
    assert isinstance(error, dist.DistBackendError), repr(error)
    assert isinstance(error.__cause__, WorkerLostError) and error.__cause__.rank == 2
    assert "rank 2" in str(error)
    assert_stays_failed(error)
    return at


def gathers_by_gloo_for_ever(rank: int, size: int, marks: str) -> float:
    tensor = torch.ones(100_000, dtype=torch.float64)
    dist.all_reduce(tensor)
    Path(marks, str(rank)).touch()
    error, at = until_it_fails(lambda: dist.all_reduce(tensor))
    assert isinstance(error, dist.DistBackendError), repr(error)
    assert "rank 2" in str(error), str(error)
    dist.destroy_process_group()
    return at


def receives_from_a_neighbour(rank: int, size: int, marks: str) -> float:
    """Waits for a live neighbour that never sends, because all ranks wait."""
    dist.barrier()
    Path(marks, str(rank)).touch()
    error, at = until_it_fails(lambda: dist.recv(torch.ones(1), src=(rank + 1) % 2 if rank < 2 else 0))
    assert "rank 2" in str(error), str(error)
    dist.destroy_process_group()
    return at


def waits_for_a_future(rank: int, size: int, marks: str) -> float:
    dist.barrier()
    if rank == 2:
        Path(marks, str(rank)).touch()
        time.sleep(60)
    work = dist.all_reduce(torch.ones(1000), async_op=True)
    assert work is not None
    Path(marks, str(rank)).touch()  # before the wait: a call made after the death would raise by itself
    chained = work.get_future().then(lambda done: done.value()[0] + 1)
    error, at = until_it_fails(lambda: work.get_future().wait())
    assert isinstance(error, dist.DistBackendError) and "rank 2" in str(error)
    assert work.is_completed() and not work.is_success() and "rank 2" in str(work.exception())
    with pytest.raises(RuntimeError, match="rank 2"):
        chained.wait()
    dist.destroy_process_group()
    return at


def trains_for_ever(rank: int, size: int, marks: str) -> float:
    model = DistributedDataParallel(torch.nn.Linear(300, 3000))
    images = torch.ones(4, 300)

    def step() -> None:
        model(images).sum().backward()

    step()
    Path(marks, str(rank)).touch()
    error, at = until_it_fails(step)
    assert isinstance(error, dist.DistBackendError), repr(error)
    assert isinstance(error.__cause__, WorkerLostError) and error.__cause__.rank == 2
    dist.destroy_process_group()
    return at


def await_marks_and_entry(marks: Path, ranks: int) -> None:
    """Waits until all ranks have left their marks and had time to enter the call that follows."""
    await_marks(marks, ranks)
    time.sleep(0.2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "function",
    [
        reduces_for_ever,
        gathers_by_gloo_for_ever,
        receives_from_a_neighbour,
        waits_for_a_future,
        trains_for_ever,
    ],
)
def test_a_killed_worker_is_named_at_every_other(
    make_cluster: MakeCluster, marks: Path, function: Callable[..., float], request: pytest.FixtureRequest
) -> None:
    if function is waits_for_a_future:
        request.getfixturevalue("work_exceptions")
    cluster = make_cluster(4 if function is reduces_for_ever else 3)
    cluster.start(function, str(marks))
    await_marks_and_entry(marks, cluster.size)
    killed_at = time.monotonic()
    cluster.kill(2)
    for failed_at in cluster.collect(ranks=[rank for rank in range(cluster.size) if rank != 2], timeout_s=40):
        assert failed_at - killed_at < WORKER_LOST_S_MAX


def sums_once(rank: int, size: int) -> float:
    tensor = torch.ones(5000)
    dist.all_reduce(tensor)
    return float(tensor.sum())


@pytest.mark.slow
def test_the_next_job_at_the_same_switch_works(
    own_switch: Callable[..., SwitchProcess], make_cluster: MakeCluster, marks: Path
) -> None:
    switch = own_switch()
    first = make_cluster(3, at=switch, variables={"WIRESUM_JOB": "same-name"})
    first.start(reduces_for_ever, str(marks))
    await_marks_and_entry(marks, 3)
    first.kill(2)
    first.collect(ranks=[0, 1])
    second = make_cluster(2, at=switch, variables={"WIRESUM_JOB": "same-name"})
    assert second.run(sums_once) == [10_000.0, 10_000.0]


@pytest.fixture
def hasty_service() -> Iterator[str]:
    """Where a worker that is not heard of for a second is lost."""
    switch = SoftwareSwitch(bind="127.0.0.1", port=0, threads=4)
    server = JoinServer(switch, Limits(heartbeat_lost_ms=1000, connection_lost_ms=500, suspect_ms=500, counted_ms=200))
    yield f"127.0.0.1:{server.start('127.0.0.1', 0)}"
    server.stop(1.0)
    switch.close()


HELD_S = 4


def holds_the_interpreter(rank: int, size: int) -> float:
    tensor = torch.ones(5000)
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    if rank == 1:
        ctypes.PyDLL(None).sleep(HELD_S)  # PyDLL, unlike CDLL, keeps the interpreter's lock
    work.wait()
    dist.all_reduce(tensor)
    return float(tensor.sum())


@pytest.mark.slow
def test_a_call_that_holds_the_interpreters_lock_ends_no_job(make_cluster: MakeCluster, hasty_service: str) -> None:
    cluster = make_cluster(3, variables={"WIRESUM_SWITCH": hasty_service})
    assert cluster.run(holds_the_interpreter) == [5000 * 9.0] * 3


def loses_the_switch(rank: int, size: int, marks: str) -> float:
    tensor = torch.ones(500_000)
    dist.all_reduce(tensor)
    Path(marks, str(rank)).touch()
    error, at = until_it_fails(lambda: dist.all_reduce(tensor))
    assert isinstance(error, dist.DistNetworkError), repr(error)
    assert_stays_failed(error)
    return at


@pytest.mark.slow
def test_a_killed_switch_is_an_error_at_every_worker_where_no_other_may_serve(
    own_switch: Callable[..., SwitchProcess], make_cluster: MakeCluster, marks: Path
) -> None:
    switch = own_switch()
    cluster = make_cluster(2, at=switch, variables={"WIRESUM_FALLBACK": "off"})
    cluster.start(loses_the_switch, str(marks))
    await_marks_and_entry(marks, 2)
    killed_at = time.monotonic()
    switch.kill()
    for failed_at in cluster.collect(timeout_s=60):
        assert failed_at - killed_at < SWITCH_LOST_S_MAX


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@runs_in("make_cluster", 2, timeout_s=4.0)  # the workers also have this long to find each other
def test_a_collective_that_one_rank_does_not_call_times_out(
    rank: int, size: int, dtype: torch.dtype, marks: Path
) -> None:
    if rank == 0:
        with pytest.raises(wiresum.torch.WiresumTimeoutError) as caught:
            dist.all_reduce(torch.ones(10, dtype=dtype))
        assert isinstance(caught.value, TimeoutError) and isinstance(caught.value, dist.DistBackendError)
        kind = str(dtype).removeprefix("torch.")
        text = str(caught.value)
        assert text.startswith(f"rank 0: Timed out waiting 4 s for all_reduce(SUM, {kind}[10]) (10 elements)"), text
        if dtype is torch.float32:
            assert "rank 1" in text and "one collective behind" in text, text
        dist.destroy_process_group()
        (marks / str(rank)).touch()
        return
    await_marks(marks, 1)  # while it would have been summing
    error, _ = until_it_fails(lambda: dist.all_reduce(torch.ones(10)))
    assert "rank 0" in str(error) and "time" in str(error).lower(), str(error)


@pytest.mark.slow
@runs_in("make_cluster", 2)
def test_the_timeout_of_a_group_can_be_changed(rank: int, size: int) -> None:
    world().set_timeout(datetime.timedelta(seconds=1))
    if rank == 0:
        with pytest.raises(wiresum.torch.WiresumTimeoutError):
            dist.all_reduce(torch.ones(10))
    else:
        time.sleep(3)


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
        "rank 0 called all_reduce(SUM, int64[1000]), through Gloo",
        "rank 1 called all_reduce(SUM, float64[1000]), through Gloo",
    ),
    "both-gloo-roots": (
        "rank 0 called reduce(MAX, root 0, float32[1000]), through Gloo",
        "rank 1 called reduce(MAX, root 1, float32[1000]), through Gloo",
    ),
    "both-gloo-means": (
        "rank 0 called all_reduce(SUM, float64[1000]), through Gloo",
        "rank 1 called all_reduce(AVG, float64[1000]), through Gloo",
    ),
    "both-gloo-kinds": ("rank 0 called gather(root 0, ", "rank 1 called all_reduce(SUM, int64[1000]), through Gloo"),
    "types-gloo": (
        "rank 0 called all_reduce(SUM, float32[1000])",
        "rank 1 called all_reduce(SUM, float64[1000]), through Gloo",
    ),
    "operators-gloo": (
        "rank 0 called all_reduce(MAX, float32[1000]), through Gloo",
        "rank 1 called all_reduce(SUM, float32[1000])",
    ),
    "sparse-gloo": (
        "rank 0 called all_reduce(SUM, float32[4, 2] sparse in 1 dimension)",
        "rank 1 called all_reduce(SUM, int64[1000]), through Gloo",
    ),
}


def diverges(rank: int, size: int, how: str) -> str:
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    dist.all_reduce(tensor.double())
    sparse = torch.sparse_coo_tensor([[1, 3]], torch.ones(2, 2), (4, 2))
    error, _ = until_it_fails(
        {
            "sizes": lambda: dist.all_reduce(tensor[: 500 + 10 * rank]),
            "kinds": lambda: dist.all_reduce(tensor) if rank == 0 else dist.broadcast(tensor, src=0),
            "operators": lambda: dist.all_reduce(tensor, op=dist.ReduceOp.AVG if rank else dist.ReduceOp.SUM),
            "types": lambda: dist.all_reduce(tensor.to(torch.int32) if rank else tensor),
            "types-copied": lambda: dist.broadcast(tensor.to(torch.int32) if rank else tensor, src=0),
            "types-gathered": lambda: dist.all_gather_into_tensor(
                torch.empty(2000, dtype=torch.int32 if rank else torch.float32),
                tensor.to(torch.int32) if rank else tensor,
            ),
            "roots": lambda: dist.broadcast(tensor, src=rank),
            "parts": lambda: dist.reduce_scatter(tensor[:10].clone(), [tensor[:k] for k in ([10, 20], [15, 10])[rank]]),
            "both-gloo": lambda: dist.all_reduce(tensor.double() if rank else tensor.long()),
            "both-gloo-roots": lambda: dist.reduce(tensor, dst=rank, op=dist.ReduceOp.MAX),
            "both-gloo-means": lambda: dist.all_reduce(
                tensor.double(), op=dist.ReduceOp.AVG if rank else dist.ReduceOp.SUM
            ),
            "both-gloo-kinds": lambda: (
                dist.all_reduce(tensor.long()) if rank else dist.gather(tensor, [tensor.clone(), tensor.clone()])
            ),
            "sparse": lambda: dist.all_reduce(sparse if rank else tensor),
            "types-gloo": lambda: dist.all_reduce(tensor.double() if rank else tensor),
            "operators-gloo": lambda: dist.all_reduce(tensor, op=dist.ReduceOp.SUM if rank else dist.ReduceOp.MAX),
            "sparse-gloo": lambda: dist.all_reduce(tensor.long() if rank else sparse),
        }[how]
    )
    assert isinstance(error, dist.DistBackendError), repr(error)
    for called in CALLED[how]:
        assert called in str(error), str(error)
    return type(error.__cause__).__name__


@pytest.mark.slow
@pytest.mark.parametrize("how", CALLED)
def test_workers_that_call_different_collectives_find_out(make_cluster: MakeCluster, how: str) -> None:
    causes = make_cluster(2).run(diverges, how)
    assert DivergedError.__name__ in causes, causes


LATE_S = 2.5


def is_late(rank: int, size: int) -> list[float]:
    """Ranks are late to a call of the network while others wait in Gloo, and the other way round, always in the same
    order."""
    one, double = torch.ones(1000), torch.ones(1000, dtype=torch.float64)
    work = dist.all_reduce(one, async_op=True)
    assert work is not None
    if rank == 0:
        time.sleep(LATE_S)
    dist.all_reduce(double)
    if rank == 1:
        time.sleep(LATE_S)
    work.wait()
    dist.all_reduce(one)
    return [float(one.sum()), float(double.sum())]


@pytest.mark.slow
def test_late_ranks_are_not_mistaken_for_different_calls(make_cluster: MakeCluster) -> None:
    assert make_cluster(3).run(is_late) == [[9000.0, 3000.0]] * 3


@runs_in("make_cluster", 2)
def test_abort_ends_the_job_at_every_worker(rank: int, size: int, marks: Path) -> None:
    dist.barrier()
    (marks / str(rank)).touch()
    if rank == 0:
        await_marks_and_entry(marks, size)
        dist.distributed_c10d._abort_process_group()
        assert not dist.is_initialized()
        return
    error, _ = until_it_fails(lambda: dist.all_reduce(torch.ones(10)) if rank else None)
    assert "rank 0" in str(error) and "abort" in str(error)
    dist.destroy_process_group()


def joins(rank: int, size: int, folder: str) -> str:
    method = f"file://{folder}/store{size}"
    try:
        dist.init_process_group("wiresum", init_method=method, rank=rank, world_size=size)
    except RuntimeError as error:
        cause = error.__cause__
        return f"{type(error).__name__} {getattr(cause, 'code', type(cause).__name__)} {error}"
    dist.barrier()
    return "joined"


def test_a_job_that_is_full_or_has_another_size_is_refused(make_cluster: MakeCluster, tmp_path: Path) -> None:
    variables = {"WIRESUM_JOB": "two-only"}
    assert make_cluster(2, grouped=False, variables=variables).run(joins, str(tmp_path)) == ["joined", "joined"]
    for answer in make_cluster(3, grouped=False, variables=variables).run(joins, str(tmp_path)):
        assert answer.startswith(("DistBackendError ALREADY_EXISTS", "DistBackendError FAILED_PRECONDITION")), answer
        assert "two-only" in answer


@pytest.mark.slow
def test_without_a_switch_joining_fails_with_its_address(make_cluster: MakeCluster, tmp_path: Path) -> None:
    variables = {"WIRESUM_SWITCH": "127.0.0.1:1", "WIRESUM_JOIN_TIMEOUT": "2"}
    for answer in make_cluster(2, grouped=False, variables=variables).run(joins, str(tmp_path)):
        assert answer.startswith("DistNetworkError") and "127.0.0.1:1" in answer, answer


@pytest.mark.slow
@runs_in("make_cluster", 2, grouped=False)
def test_a_rank_that_never_joins_is_named(rank: int, size: int, tmp_path: Path) -> None:
    if rank == 0:
        timeout = datetime.timedelta(seconds=1)
        with pytest.raises(wiresum.torch.WiresumTimeoutError, match="rank 1 of 2"):
            dist.init_process_group(
                "wiresum", init_method=f"file://{tmp_path}/store", rank=0, world_size=2, timeout=timeout
            )


RESTARTS = """
import os, signal, torch, torch.distributed as dist, wiresum.torch
dist.init_process_group("wiresum")
tensor = torch.ones(1000)
dist.all_reduce(tensor)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if dist.get_rank() == 1:
        os._exit(3)
    # torchrun ends the others as soon as it sees that one is gone, maybe before this one has said why it failed.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    dist.all_reduce(tensor)
# In one piece: both ranks write to one pipe.
os.write(1, f"sum {tensor[0].item()} {wiresum.torch.stats().job}\\n".encode())
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_torchrun_restarts_the_workers_after_a_loss(switch: SwitchProcess, tmp_path: Path) -> None:
    script = tmp_path / "restarts.py"
    script.write_text(RESTARTS)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts", "1"]
    done = subprocess.run(
        [*launcher, "--nproc-per-node", "2", str(script)],
        env=environment({"WIRESUM_SWITCH": switch.endpoint, "WIRESUM_JOB": "restarted"}),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("sum 2.0 restarted-restart1") == 2, done.stdout
    assert "rank 1" in done.stderr and "was lost" in done.stderr


LEAVES = """
import sys, time, torch, torch.distributed as dist, wiresum.torch
store, rank, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
dist.init_process_group("wiresum", init_method=f"file://{store}", rank=rank, world_size=2)
tensor = torch.ones(1000)
dist.all_reduce(tensor)
try:
    work = dist.all_reduce(tensor, async_op=True)
    if rank == 1:
        if how == "raise":
            raise KeyError("a bug in the training script")
        sys.exit(0)
    while True:
        dist.all_reduce(tensor)
except RuntimeError as error:
    print(error, flush=True)
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
def test_a_worker_that_exits_without_destroying_its_group_tells_the_others_why(
    switch: SwitchProcess, tmp_path: Path, how: str, reason: str, code: int
) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", LEAVES, str(tmp_path / "store"), str(rank), how],
            env=environment({"WIRESUM_SWITCH": switch.endpoint}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=60) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, code], said
    assert reason in said[0][0] and "rank 1" in said[0][0], said


@pytest.mark.slow
def test_nothing_is_left_behind(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(2)
    cluster.run(sums_once)
    processes = list(cluster.processes)
    cluster.stop()
    assert [process.exitcode for process in processes] == [0, 0]


def aborts(rank: int, size: int, folder: Path) -> str:
    session = implementation().network.session
    (folder / f"joined{rank}").touch()
    if rank == 0:
        wait_until((folder / "stands").exists, "the switch stands still")
        session.abort("rank 0 has had enough")
        (folder / "aborted").touch()
    wait_until(lambda: session.failure is not None, "this worker hears of the abort")
    return str(session.failure)


@pytest.mark.slow
def test_an_abort_while_the_switch_stands_still_is_heard_when_it_goes_on(
    own_switch: Callable[..., SwitchProcess], make_cluster: MakeCluster, marks: Path
) -> None:
    switch = own_switch()
    cluster = make_cluster(2, at=switch)
    cluster.start(aborts, marks)
    wait_until(lambda: (marks / "joined0").exists() and (marks / "joined1").exists(), "both have joined")
    os.kill(switch.pid, signal.SIGSTOP)
    try:
        (marks / "stands").touch()
        wait_until((marks / "aborted").exists, "rank 0 has tried for as long as it does")
    finally:
        os.kill(switch.pid, signal.SIGCONT)
    for said in cluster.collect():
        assert "rank 0 has had enough" in said
