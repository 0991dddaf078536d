"""Resources that groups take and leave behind: threads and descriptors of a process, and slots of a switch."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import wiresum.torch
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import wait_until
from wiresum_lab.ranks.cluster import Cluster, await_marks, runs_in

GLOO_THREAD = "pt_gloo_runloop"
"""PyTorch's name of the thread."""


def held() -> tuple[int, int]:
    """Threads and descriptors of this process."""
    return len(list(Path("/proc/self/task").iterdir())), len(list(Path("/proc/self/fd").iterdir()))


def names_of_threads() -> Counter[str]:
    return Counter(thread.name for thread in threading.enumerate() if thread.name.startswith("wiresum"))


def use(group: dist.ProcessGroup | None, size: int) -> None:
    """Makes calls in which all of the group's threads and memory take part."""
    tensor, double = torch.ones(1000), torch.ones(10_000, dtype=torch.float64)
    dist.all_reduce(tensor, group=group)
    work = dist.all_reduce(tensor, group=group, async_op=True)
    work.get_future().wait()
    dist.all_reduce(tensor, group=group, async_op=True)  # nobody waits for this call
    sparse = torch.sparse_coo_tensor([[1]], torch.ones(1, 2), (4, 2), check_invariants=True)
    dist.all_reduce(sparse, group=group)
    dist.broadcast(tensor, src=0, group=group)
    dist.all_reduce(double, group=group)
    dist.all_reduce(double, group=group, async_op=True).wait()
    assert (double == size**2).all()


def a_round(rank: int, size: int, store: Path) -> None:
    dist.init_process_group("wiresum", init_method=f"file://{store}", rank=rank, world_size=size)
    group = dist.new_group()
    use(None, size)
    use(group, size)
    dist.destroy_process_group()


def rounds(rank: int, size: int, folder: Path, count: int) -> None:
    """Makes, uses and destroys groups: afterwards this process has no more than after the first time. The cycle
    collector is off, since its garbage may stay for long."""
    threads, _ = held()
    a_round(rank, size, folder / "first")
    gc.collect()
    gc.disable()
    try:
        wait_until(lambda: held()[0] <= threads, "the threads of the first round have ended")
        _, descriptors = held()
        for number in range(count):
            a_round(rank, size, folder / str(number))
        wait_until(
            lambda: held()[0] <= threads and held()[1] <= descriptors,
            f"{threads} threads and {descriptors} descriptors are left, as after the first round; at first there were "
            f"{held()}: {names_of_threads()}",
        )
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("compiler", "count"),
    [
        ("c++", 10),
        pytest.param("c++", 100, marks=[pytest.mark.nightly, pytest.mark.timeout(12 * PATIENCE_S)]),
        pytest.param("no-compiler", 10, marks=pytest.mark.nightly),
    ],
)
def test_groups_that_were_destroyed_leave_nothing_behind(
    make_cluster: Callable[..., Cluster], tmp_path: Path, compiler: str, count: int
) -> None:
    variables = {"CXX": compiler, "TORCH_EXTENSIONS_DIR": str(tmp_path / "none")} if compiler != "c++" else {}
    cluster = make_cluster(2, grouped=False, variables=variables)
    cluster.run(rounds, tmp_path, count, timeout_s=count / 10 * PATIENCE_S)
    processes = list(cluster.processes)
    cluster.stop()
    assert [process.exitcode for process in processes] == [0, 0]


def names_of_tasks() -> list[str]:
    """The names of all of this process's threads in Linux."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has ended
            names.append((task / "comm").read_text().strip())
    return names


@runs_in("new_pair")
def test_a_callback_under_way_outlives_its_group(rank: int, size: int, marks: Path) -> None:
    """Gloo's thread is the last to hold the group, whose end waits for that thread."""
    entered, destroyed = threading.Event(), threading.Event()

    def callback(_: object) -> None:
        entered.set()
        destroyed.wait(PATIENCE_S)

    if rank == 1:
        await_marks(marks, 1)
    double = torch.ones(10_000, dtype=torch.float64)
    work = dist.all_reduce(double, async_op=True)
    if rank == 1:
        work.wait()
        await_marks(marks, 2)
        return
    work.get_future().add_done_callback(callback)
    del work
    (marks / "called").touch()
    assert entered.wait(PATIENCE_S)
    before = names_of_tasks().count(GLOO_THREAD)  # earlier tests of this process may have left some
    assert before
    (marks / "summed").touch()
    dist.destroy_process_group()
    destroyed.set()
    wait_until(lambda: names_of_tasks().count(GLOO_THREAD) < before, "the group's Gloo has ended")


def has_groups(rank: int, size: int, count: int) -> tuple[Counter[str], int]:
    """Returns the names of the threads of many groups, by Python, and how many are Gloo's. Destroys the groups, and
    keeps their objects, which then have no threads."""
    before = len(names_of_tasks())
    groups = [dist.new_group() for _ in range(count)]
    for group in groups:
        use(group, size)
        assert wiresum.torch.stats(group).job
    wait_until(
        lambda: not any("job" in name for name in names_of_threads()), "no thread waits for works that there are not"
    )
    names, gloos = names_of_threads(), names_of_tasks().count(GLOO_THREAD)
    for group in groups:
        dist.destroy_process_group(group)
    wait_until(lambda: len(names_of_tasks()) <= before, f"no more than {before} threads: {Counter(names_of_tasks())}")
    for group in groups:
        with pytest.raises(dist.DistBackendError, match=r"left|closed"):
            group.allreduce([torch.ones(1, dtype=torch.float64)])
    return names, gloos


def test_the_groups_of_a_process_share_its_threads(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(2)
    once, each = ("wiresum-awake", "wiresum-looks"), ("wiresum-membership", "wiresum-stream")
    assert cluster.run(has_groups, 10) == [(dict.fromkeys(once, 1) | dict.fromkeys(each, 11), 2 * 11)] * 2
