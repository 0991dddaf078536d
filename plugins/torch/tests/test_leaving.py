"""A worker leaves its group before the others: calls that need it fail with its name, and all others go on. The service
announces a leave after a grace period, which is short here."""

from __future__ import annotations

import datetime
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from wiresum.agent.errors import WorkerLeftError
from wiresum.controller import JoinServer, Limits
from wiresum.switch import SoftwareSwitch
from wiresum_lab.processes import PATIENCE_S, unused_port
from wiresum_lab.ranks.cluster import Cluster, await_marks, environment, runs_in
from wiresum_lab.ranks.cluster_worker import implementation, world

MakeCluster = Callable[..., Cluster]


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    switch = SoftwareSwitch(bind="127.0.0.1", port=0, threads=1)
    server = JoinServer(switch, Limits(leave_grace_ms=300))
    yield f"127.0.0.1:{server.start('127.0.0.1', 0)}"
    server.stop(1.0)
    switch.close()


@pytest.fixture(params=["extension", pytest.param("process group", marks=pytest.mark.slow)])
def make(
    request: pytest.FixtureRequest, make_cluster: MakeCluster, service: str, tmp_path: Path
) -> Callable[..., Cluster]:
    """Clusters of both kinds of group: with the compiled extension, and without."""
    variables = {"WIRESUM_SWITCH": service}
    if request.param == "process group":
        variables |= {"CXX": str(tmp_path / "no-compiler"), "TORCH_EXTENSIONS_DIR": str(tmp_path / "extensions")}

    def make_one(size: int = 3, **options: object) -> Cluster:
        return make_cluster(size, variables=variables, **options)

    return make_one


def await_leave_is_known() -> None:
    """Waits until this rank has heard that the last rank left. Gloo's own backend announces nothing, so there it
    sleeps."""
    if dist.get_backend() != "wiresum":
        time.sleep(1.0)
        return
    network = implementation().network
    assert network is not None
    deadline = time.monotonic() + PATIENCE_S
    while network.session.failure is None:
        assert time.monotonic() < deadline, "the service did not say that a worker left"
        time.sleep(0.01)


def assert_left(call: Callable[[], object]) -> None:
    """The call fails at once, and names the rank that left."""
    began = time.monotonic()
    with pytest.raises(dist.DistBackendError, match=r"rank 2 .* left") as caught:
        call()
    assert isinstance(caught.value.__cause__, WorkerLeftError) and caught.value.__cause__.rank == 2
    assert time.monotonic() - began < PATIENCE_S


def talk(rank: int) -> None:
    """Ranks 0 and 1 send to each other in every way that there is."""
    other = 1 - rank
    sent, received = torch.full((1000,), float(rank)), torch.empty(1000)
    if rank == 0:
        dist.send(sent, dst=1)
        dist.recv(received, src=1)
    else:
        dist.recv(received, src=0)
        dist.send(sent, dst=0)
    assert (received == other).all()
    works = [dist.isend(sent, dst=other), dist.irecv(received.zero_(), src=other)]
    for work in works:
        assert work is not None
        work.wait()
    assert (received == other).all()
    both = [dist.P2POp(dist.isend, sent, other), dist.P2POp(dist.irecv, received.fill_(7), other)]
    for work in dist.batch_isend_irecv(both):
        work.wait()
    assert (received == other).all()
    if rank == 0:
        dist.send(sent, dst=1)
    else:
        assert dist.recv(received.fill_(7)) == 0, "from anybody"
    assert rank == 0 or (received == other).all()


def leaves_with_a_pending_sum(rank: int, size: int, keeps: bool) -> None:
    dist.barrier()
    if rank != 2:
        time.sleep(0.5)  # so that it is pending when the other leaves
    tensor = torch.full((1000,), rank, dtype=torch.int64)
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    if rank == 2:
        if not keeps:
            del work
        dist.destroy_process_group()
    else:
        work.wait()
        assert (tensor == sum(range(size))).all()


@pytest.mark.parametrize("keeps", [True, False], ids=["kept", "dropped"])
def test_a_sum_through_gloo_that_is_pending_when_a_worker_leaves_is_completed(
    make: Callable[..., Cluster], keeps: bool
) -> None:
    make().run(leaves_with_a_pending_sum, keeps)


def talks_on(rank: int, size: int) -> None:
    tensor = torch.ones(5000)
    dist.all_reduce(tensor)
    if rank == 2:
        dist.destroy_process_group()
        return
    talk(rank)
    early = dist.irecv(torch.empty(3), src=1) if rank == 0 else None
    await_leave_is_known()
    if rank == 1:
        dist.send(torch.ones(3), dst=0)
    if early is not None:
        early.wait()
    talk(rank)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["wiresum", "gloo"])
def test_remaining_ranks_can_still_send_and_receive(make: MakeCluster, backend: str) -> None:
    make(backend=backend).run(talks_on)


@runs_in("make", 3)
def test_calls_that_need_the_rank_that_left_fail_at_once_and_name_it(rank: int, size: int) -> None:
    tensor, double = torch.ones(5000), torch.ones(5000, dtype=torch.float64)
    dist.all_reduce(tensor)
    dist.all_reduce(double)
    if rank == 2:
        dist.destroy_process_group()
        return
    await_leave_is_known()
    pieces = [torch.empty(5000) for _ in range(size)]
    for call in (
        lambda: dist.all_reduce(tensor),
        lambda: dist.all_reduce(tensor, async_op=True),
        lambda: dist.all_reduce(torch.sparse_coo_tensor([[1, 3]], torch.ones(2, 2), (4, 2))),
        lambda: dist.broadcast(tensor, src=0),
        lambda: dist.all_gather(pieces, tensor),
        lambda: dist.reduce_scatter(tensor, pieces),
        dist.barrier,
        lambda: dist.all_reduce(double),
        lambda: dist.all_reduce(double, async_op=True),
        lambda: dist.gather(tensor, pieces if rank == 0 else None, dst=0),
        lambda: dist.all_to_all(pieces, [tensor] * size),
        lambda: world().monitored_barrier(datetime.timedelta(seconds=60), False),
        lambda: dist.send(tensor, dst=2),
        lambda: dist.recv(tensor, src=2),
        lambda: dist.broadcast_object_list([1], src=0),
        lambda: dist.batch_isend_irecv([dist.P2POp(dist.irecv, tensor, 2)]),
    ):
        assert_left(call)
    talk(rank)  # the failures above have broken nothing
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["wait", "work", "future"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["network", "gloo"])
@runs_in("make", 3)
def test_a_collective_under_way_ends_and_names_the_rank_that_left(
    rank: int, size: int, dtype: torch.dtype, how: str, marks: Path
) -> None:
    tensor = torch.ones(5000, dtype=dtype)
    dist.all_reduce(tensor)
    if rank == 2:
        await_marks(marks, 2)
        dist.destroy_process_group()
        return
    work = dist.all_reduce(tensor, async_op=True) if how != "wait" else None
    (marks / str(rank)).touch()
    if work is None:
        assert_left(lambda: dist.all_reduce(tensor))
    elif how == "future":
        with pytest.raises(RuntimeError, match=r"rank 2 .* left"):
            work.get_future().wait()
    else:
        assert_left(work.wait)
    dist.destroy_process_group()


@runs_in("make", 3)
def test_a_receive_from_the_rank_that_left_ends(rank: int, size: int, marks: Path) -> None:
    dist.barrier()
    if rank == 2:
        await_marks(marks, 2)
        dist.destroy_process_group()
        await_marks(marks, 4)  # the process itself lives on
        return
    work = dist.irecv(torch.ones(1000), src=2)
    assert work is not None
    (marks / str(rank)).touch()
    assert_left(work.wait)
    (marks / f"{rank} has heard").touch()
    talk(rank)


def gathers_late(rank: int, size: int) -> list[float]:
    """Rank 2 has sent its part before it leaves, and rank 0 waits for rank 1 only."""
    own = torch.full((1000,), float(rank))
    pieces = [torch.empty(1000) for _ in range(size)] if rank == 0 else None
    dist.all_reduce(torch.ones(1, dtype=torch.float64))
    if rank == 1:
        await_leave_is_known()
    dist.gather(own, pieces, dst=0)
    if rank == 2:
        dist.destroy_process_group()
    return [float(piece.mean()) for piece in pieces or []]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["wiresum", "gloo"])
def test_a_collective_that_the_leaving_rank_took_part_in_completes(make: MakeCluster, backend: str) -> None:
    assert make(backend=backend).run(gathers_late) == [[0.0, 1.0, 2.0], [], []]


def has_groups(rank: int, size: int) -> list[float]:
    small, whole = dist.new_group([0, 1]), dist.new_group([0, 1, 2])
    dist.all_reduce(torch.ones(10), group=whole)
    if rank == 2:
        dist.destroy_process_group()
        return []
    await_leave_is_known()
    tensor, double = torch.ones(1000), torch.ones(1000, dtype=torch.float64)
    dist.all_reduce(tensor, group=small)
    dist.all_reduce(double, group=small)
    assert_left(lambda: dist.all_reduce(torch.ones(10), group=whole))
    later = dist.new_group([0, 1], use_local_synchronization=True)
    dist.all_reduce(tensor, group=later)
    talk(rank)
    return [float(tensor.mean()), float(double.mean())]


def test_groups_without_the_rank_that_left_go_on_and_new_ones_can_be_made(make: MakeCluster) -> None:
    assert make().run(has_groups) == [[4.0, 2.0], [4.0, 2.0], []]


HOST_LEAVES = """
import sys, torch, torch.distributed as dist, wiresum.torch
port, rank = sys.argv[1], int(sys.argv[2])
dist.init_process_group("wiresum", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=3)
double = torch.ones(1000, dtype=torch.float64)
dist.all_reduce(double)
if rank == 0:
    dist.destroy_process_group()
    sys.exit()
for call in (lambda: dist.all_reduce(double), lambda: dist.all_reduce(double.float())):
    try:
        call()
    except dist.DistBackendError as error:
        assert "rank 0 (" in str(error) and "left" in str(error), error
    else:
        raise AssertionError("it ended without rank 0")
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_the_rank_that_hosts_the_store_may_leave(service: str) -> None:
    port = str(unused_port())
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", HOST_LEAVES, port, str(rank)],
            env=environment({"WIRESUM_SWITCH": service}),
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    try:
        said = [process.communicate(timeout=180)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0, 0], "\n".join(said)


@pytest.mark.slow
@runs_in("make", 4)
def test_a_second_leave_fails_only_the_calls_that_need_that_rank(rank: int, size: int) -> None:
    dist.barrier()
    if rank == 3:
        time.sleep(1.0)  # so that rank 2 leaves first
    if rank >= 2:
        dist.destroy_process_group()
        return
    await_leave_is_known()
    with pytest.raises(dist.DistBackendError, match=r"recv.* failed: .*. Before that, rank 2 .* left"):
        dist.recv(torch.ones(1), src=3)
    talk(rank)
