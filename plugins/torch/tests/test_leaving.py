"""A worker leaves its group before the others: calls that need it fail with its name, and all others go on. The service
announces a leave after a grace period, which is short here."""

from __future__ import annotations

import datetime
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from wiresum.agent.errors import WorkerLeftError
from wiresum.controller import JoinServer, Limits
from wiresum.switch import SoftwareSwitch
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import unused_port, wait_until
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


@pytest.fixture(scope="module")
def trio(service: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three workers, who make a new group for each test."""
    variables = {"WIRESUM_SWITCH": service}
    with Cluster(None, 3, tmp_path_factory.mktemp("trio"), variables=variables, regroups=True) as cluster:
        yield cluster


def await_leave_is_known() -> None:
    """Waits until this rank has heard that the last rank left."""
    network = implementation().network
    assert network is not None
    wait_until(lambda: network.session.failure is not None, "the service says that a worker left")


def assert_left(call: Callable[[], object]) -> None:
    """The call fails, and names the rank that left."""
    with pytest.raises(dist.DistBackendError, match=r"rank 2 .* left") as caught:
        call()
    assert isinstance(caught.value.__cause__, WorkerLeftError) and caught.value.__cause__.rank == 2


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


def leaves_with_a_pending_sum(rank: int, size: int, marks: Path, keeps: bool) -> None:
    """The others add their parts when the last rank is about to leave."""
    dist.barrier()
    tensor = torch.full((10_000,), rank, dtype=torch.int64)
    if rank == 2:
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        if not keeps:
            del work
        (marks / "leaves").touch()
        dist.destroy_process_group()
    else:
        await_marks(marks, 1)
        dist.all_reduce(tensor)
        assert (tensor == sum(range(size))).all()


@pytest.mark.parametrize("keeps", [True, False], ids=["kept", "dropped"])
def test_a_sum_through_gloo_that_is_pending_when_a_worker_leaves_is_completed(
    trio: Cluster, marks: Path, keeps: bool
) -> None:
    trio.run(leaves_with_a_pending_sum, marks, keeps)


def needs_who_left(rank: int, size: int) -> None:
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
        lambda: dist.all_reduce(torch.tensor(1), dist.ReduceOp.MAX),
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


def test_calls_that_need_the_rank_that_left_fail_at_once_and_name_it(trio: Cluster) -> None:
    trio.run(needs_who_left)


@pytest.mark.nightly
def test_they_do_without_the_compiled_extension(make_cluster: MakeCluster, service: str, tmp_path: Path) -> None:
    without = {"CXX": "no-compiler", "TORCH_EXTENSIONS_DIR": str(tmp_path / "none"), "WIRESUM_SWITCH": service}
    make_cluster(3, variables=without).run(needs_who_left)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["network", "gloo"])
@runs_in("trio")
def test_collectives_under_way_end_and_name_the_rank_that_left(
    rank: int, size: int, dtype: torch.dtype, marks: Path
) -> None:
    tensor = torch.ones(5000, dtype=dtype)
    dist.all_reduce(tensor)
    if rank == 2:
        await_marks(marks, 2)
        dist.destroy_process_group()
        return
    waited, dropped = (dist.all_reduce(tensor.clone(), async_op=True) for _ in range(2))
    assert waited is not None and dropped is not None
    (marks / str(rank)).touch()
    assert_left(lambda: dist.all_reduce(tensor))
    assert_left(waited.wait)
    with pytest.raises(RuntimeError, match=r"rank 2 .* left"):
        dropped.get_future().wait()


@runs_in("trio")
def test_a_receive_from_the_rank_that_left_ends_and_others_go_on(rank: int, size: int, marks: Path) -> None:
    dist.barrier()
    if rank == 2:
        kept = dist.group.WORLD  # Python does not close a kept group's connections
        await_marks(marks, 2)
        dist.destroy_process_group()
        await_marks(marks, 4)  # the process itself lives on
        del kept
        return
    work = dist.irecv(torch.ones(1000), src=2)
    late = torch.ones(3)
    early = dist.irecv(late, src=1) if rank == 0 else None
    assert work is not None
    (marks / str(rank)).touch()
    assert_left(work.wait)
    (marks / f"{rank} has heard").touch()
    if rank == 1:
        dist.send(torch.full((3,), 7.0), dst=0)
    if early is not None:
        early.wait()
        assert late.tolist() == [7.0] * 3
    talk(rank)


def gathers_late(rank: int, size: int) -> list[float]:
    """Rank 2 has sent its part before it leaves, and rank 0 waits for rank 1 only."""
    own = torch.full((1000,), float(rank))
    pieces = [torch.empty(1000) for _ in range(size)] if rank == 0 else None
    dist.all_reduce(torch.ones(10_000, dtype=torch.float64))
    if rank == 1:
        await_leave_is_known()
    dist.gather(own, pieces, dst=0)
    if rank == 2:
        dist.destroy_process_group()
    return [float(piece.mean()) for piece in pieces or []]


def test_a_collective_that_the_leaving_rank_took_part_in_completes(trio: Cluster) -> None:
    assert trio.run(gathers_late) == [[0.0, 1.0, 2.0], [], []]


def has_groups(rank: int, size: int, marks: Path) -> list[float]:
    small, whole = dist.new_group([0, 1]), dist.new_group([0, 1, 2])
    dist.all_reduce(torch.ones(10), group=whole)
    (marks / str(rank)).touch()
    if rank == 2:
        await_marks(marks, size)
        dist.destroy_process_group()
        return []
    await_leave_is_known()
    tensor, double = torch.ones(1000), torch.ones(10_000, dtype=torch.float64)
    dist.all_reduce(tensor, group=small)
    dist.all_reduce(double, group=small)
    assert_left(lambda: dist.all_reduce(torch.ones(10), group=whole))
    later = dist.new_group([0, 1], use_local_synchronization=True)
    dist.all_reduce(tensor, group=later)
    talk(rank)
    return [float(tensor.mean()), float(double.mean())]


def test_groups_without_the_rank_that_left_go_on_and_new_ones_can_be_made(trio: Cluster, marks: Path) -> None:
    assert trio.run(has_groups, marks) == [[4.0, 2.0], [4.0, 2.0], []]


HOST_LEAVES = """
import sys, torch, torch.distributed as dist, wiresum.torch
port, rank = sys.argv[1], int(sys.argv[2])
dist.init_process_group("wiresum", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=3)
double = torch.ones(10_000, dtype=torch.float64)
dist.all_reduce(double)
store = dist.distributed_c10d._get_default_store()
if rank == 0:
    store.wait(["1 has summed", "2 has summed"])
    dist.destroy_process_group()
    sys.exit()
store.set(f"{rank} has summed", "")
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
        said = [process.communicate(timeout=3 * PATIENCE_S)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0, 0], "\n".join(said)


def leaves_second(rank: int, size: int, marks: Path) -> None:
    dist.barrier()
    (marks / str(rank)).touch()
    await_marks(marks, size)
    if rank == 3:
        await_leave_is_known()  # all ranks know that rank 2 left
    if rank >= 2:
        dist.destroy_process_group()
        return
    await_leave_is_known()
    for _ in range(2):  # the first receive may fail in progress, the second fails at its start
        with pytest.raises(dist.DistBackendError, match=r"recv.* failed: .*. Before that, rank 2 .* left"):
            dist.recv(torch.ones(1), src=3)
    talk(rank)


def test_a_second_leave_fails_only_the_calls_that_need_that_rank(
    make_cluster: MakeCluster, service: str, marks: Path
) -> None:
    make_cluster(4, variables={"WIRESUM_SWITCH": service}).run(leaves_second, marks)
