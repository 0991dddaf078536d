"""What groups take and leave behind: of a process its threads, descriptors, and time at its end; of a switch its
slots."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import wiresum.torch
from wiresum_lab.processes import SwitchProcess, unused_port, wait_until
from wiresum_lab.ranks.cluster import Cluster, environment

STEADY_S = 0.5


def held() -> tuple[int, int]:
    """Threads and descriptors of this process."""
    return len(list(Path("/proc/self/task").iterdir())), len(list(Path("/proc/self/fd").iterdir()))


def held_when_steady() -> tuple[int, int]:
    """What is left once all that ends by itself has ended."""
    found, since = held(), time.monotonic()
    while time.monotonic() - since < STEADY_S:
        time.sleep(0.05)
        if (now := held()) != found:
            found, since = now, time.monotonic()
    return found


def names_of_threads() -> Counter[str]:
    return Counter(thread.name for thread in threading.enumerate() if thread.name.startswith("wiresum"))


def use(group: dist.ProcessGroup | None, size: int) -> None:
    """Calls in all ways that threads or memory of the group's take part in."""
    tensor, double = torch.ones(1000), torch.ones(10, dtype=torch.float64)
    dist.all_reduce(tensor, group=group)
    work = dist.all_reduce(tensor, group=group, async_op=True)
    work.get_future().wait()
    dist.all_reduce(tensor, group=group, async_op=True)  # nobody waits for it
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
    """Groups are made, used and destroyed, and afterwards this process has no more than after the first time. The cycle
    collector is off: what it would have to find may stay for long."""
    threads_before, _ = held_when_steady()
    a_round(rank, size, folder / "first")
    gc.collect()
    gc.disable()
    try:
        threads, descriptors = held_when_steady()
        assert threads == threads_before
        for number in range(count):
            a_round(rank, size, folder / str(number))
        wait_until(
            lambda: held()[0] <= threads and held()[1] <= descriptors,
            f"{threads} threads and {descriptors} descriptors are left, as after the first round; at first there were "
            f"{held()}: {names_of_threads()}",
        )
    finally:
        gc.enable()


@pytest.mark.parametrize("compiler", ["c++", pytest.param("no-compiler", marks=pytest.mark.slow)])
def test_groups_that_were_destroyed_leave_nothing_behind(
    make_cluster: Callable[..., Cluster], tmp_path: Path, compiler: str
) -> None:
    variables = {"CXX": compiler, "TORCH_EXTENSIONS_DIR": str(tmp_path / "none")} if compiler != "c++" else {}
    make_cluster(2, grouped=False, variables=variables).run(rounds, tmp_path, 10, timeout_s=100)


@pytest.mark.slow
@pytest.mark.timeout(700)
def test_a_hundred_rounds_leave_nothing_behind(make_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    make_cluster(2, grouped=False).run(rounds, tmp_path, 100, timeout_s=600)


def has_groups(rank: int, size: int, count: int) -> Counter[str]:
    groups = [dist.new_group() for _ in range(count)]
    for group in groups:
        use(group, size)
        assert wiresum.torch.stats(group).job
    wait_until(lambda: names_of_threads().total() <= count + 3, "no thread waits for works that there are not")
    return names_of_threads()


def test_the_groups_of_a_process_share_its_threads(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(2, variables={"WIRESUM_SLOTS": "32"})
    once = {"wiresum-awake": 1, "wiresum-looks": 1}
    assert cluster.run(has_groups, 10) == [{**once, "wiresum-membership": 11}] * 2


EXITS = """
import atexit, sys, time

naps, sleep = [], time.sleep
def counted(seconds):
    naps.append(seconds)
    sleep(seconds)
time.sleep = counted
atexit.register(lambda: print(naps.count(1.0)))  # the last of all, since it is the first

import torch, torch.distributed as dist, wiresum.torch
port, rank = sys.argv[1], int(sys.argv[2])
dist.init_process_group("wiresum", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
for group in [dist.new_group() for _ in range(5)]:
    dist.all_reduce(torch.ones(10), group=group)
naps.clear()
"""


@pytest.mark.slow
def test_a_process_that_does_not_destroy_its_groups_lingers_once_for_all(switch: SwitchProcess) -> None:
    port = str(unused_port())
    variables = environment({"WIRESUM_SWITCH": switch.endpoint, "WIRESUM_SLOTS": "32"})
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", EXITS, port, str(rank)], env=variables, stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=110)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert said == ["1\n", "1\n"]


def sums_in_each(groups: Sequence[dist.ProcessGroup]) -> list[bool]:
    """Whether the network does it, for each group."""
    for group in groups:
        tensor = torch.full((1000,), float(dist.get_rank(group)))
        dist.all_reduce(tensor, group=group)
        size = dist.get_world_size(group)
        assert (tensor == size * (size - 1) / 2).all()
    return [bool(wiresum.torch.stats(group).job) for group in groups]


def has_fifty_groups(rank: int, size: int) -> list[bool]:
    return sums_in_each([dist.new_group() for _ in range(50)])


@pytest.mark.slow
def test_fifty_groups_have_room_at_a_switch(
    own_switch: Callable[..., SwitchProcess], make_cluster: Callable[..., Cluster]
) -> None:
    cluster = make_cluster(2, at=own_switch())
    assert cluster.run(has_fifty_groups) == [[True] * 50] * 2
    assert not any("no room" in cluster.log(rank) for rank in range(2))


def has_a_mesh(rank: int, size: int) -> list[bool]:
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("a", "b", "c"))
    return sums_in_each([mesh.get_group(name) for name in ("a", "b", "c")])


def has_its_job(rank: int, size: int) -> str:
    sums_in_each([dist.group.WORLD])
    return wiresum.torch.stats().job


@pytest.mark.slow
def test_a_mesh_with_a_group_for_each_row_fits_beside_a_second_program(
    own_switch: Callable[..., SwitchProcess], make_cluster: Callable[..., Cluster]
) -> None:
    """A quarter of the switch, for a quarter of a mesh of 4 x 4 x 2; test_waiting.py has the whole of it."""
    switch = own_switch("--slots", "1024")
    mesh, program = make_cluster(8, at=switch), make_cluster(2, at=switch)
    assert mesh.run(has_a_mesh) == [[True] * 3] * 8
    names = program.run(has_its_job)
    assert names[0] and names[0] == names[1]
