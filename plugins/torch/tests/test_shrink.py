"""`torch.distributed.shrink_group`: the remaining members of a group go on without the others."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.nn.parallel import DistributedDataParallel

import wiresum.torch
from wiresum.agent.errors import WorkerLostError
from wiresum.torch import creation
from wiresum.torch.flight_recorder import Group
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import SwitchProcess, unused_port, wait_until
from wiresum_lab.ranks.cluster import Cluster, await_marks, environment, runs_in
from wiresum_lab.ranks.cluster_worker import implementation, world

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "lost_worker.py"
PIPE_BYTES = 4096
"""The smallest pipe: it holds fewer lines than the example has steps."""
STEPS = 6
"""Steps with each number of workers."""
MakeCluster = Callable[..., Cluster]
Made = tuple[torch.nn.Module, torch.optim.Optimizer]

pytestmark = pytest.mark.usefixtures("compiled")


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lost_worker", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def made(path: str = "") -> Made:
    """A model of some 40,000 elements, in several of DDP's buckets, and its optimizer; loaded from `path`, if given."""
    torch.manual_seed(3)
    module = torch.nn.Sequential(torch.nn.Linear(16, 2000), torch.nn.ReLU(), torch.nn.Linear(2000, 1))
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    if path:
        state = torch.load(path)
        module.load_state_dict(state[0])
        optimizer.load_state_dict(state[1])
    return module, optimizer


def steps_of(module: torch.nn.Module, optimizer: torch.optim.Optimizer, first: int, count: int) -> str:
    """Takes the steps, and returns the hash of the resulting weights."""
    step = example().train_step
    model = DistributedDataParallel(module, bucket_cap_mb=0.05)
    for number in range(first, first + count):
        step(model, optimizer, number)
    return wiresum.torch.fingerprint(module, optimizer)


def trains_and_shrinks(rank: int, size: int, marks: str, order: list[int]) -> list[str]:
    """Trains with all, without the first of `order`, and so on. Before each loss the worker that is to be lost does not
    contribute, and the others wait in a step's sums. Returns the hashes after each part."""
    module, optimizer = made()
    hashes = [steps_of(module, optimizer, 0, STEPS)]
    number = STEPS
    for left, lost in enumerate(order):
        Path(marks, f"{left}-{rank}").touch()
        if rank == lost:
            threading.Event().wait()  # waits until the process is killed
        with pytest.raises(dist.DistBackendError) as caught:
            steps_of(module, optimizer, number, 1)
        cause = caught.value.__cause__
        assert isinstance(cause, WorkerLostError), repr(caught.value)
        before = wiresum.torch.stats().job
        dist.shrink_group([cause.rank])
        assert dist.get_world_size() == size - left - 1
        assert dist.get_rank() == sum(other < rank for other in range(size) if other not in order[: left + 1])
        assert wiresum.torch.stats().job != before
        number = example().agree(module, optimizer, number)
        if dist.get_rank() == 0:
            torch.save([module.state_dict(), optimizer.state_dict()], Path(marks).parent / f"state{left}")
        hashes.append(steps_of(module, optimizer, number, STEPS))
        number += STEPS
        assert wiresum.torch.stats().collectives_network["all_reduce"] >= STEPS
    return hashes


def trains_on(rank: int, size: int, state: str, first: int) -> str:
    return steps_of(*made(state), first, STEPS)


@pytest.mark.slow
def test_survivors_of_two_losses_train_on_as_fewer_workers_do(
    make_cluster: MakeCluster, marks: Path, tmp_path: Path
) -> None:
    cluster = make_cluster(4)
    order = [2, 0]
    cluster.start(trains_and_shrinks, str(marks), order)
    survivors = list(range(4))
    for left, lost in enumerate(order):
        wait_until(lambda: len(list(marks.glob(f"{left}-*"))) == 4 - left, "all came to the next loss")  # noqa: B023
        cluster.kill(lost)
        survivors.remove(lost)
    hashes = cluster.collect(ranks=survivors)
    assert hashes[0] == hashes[1] and len(set(hashes[0])) == 3
    for left in range(2):
        fewer = make_cluster(3 - left)
        said = fewer.run(trains_on, str(tmp_path / f"state{left}"), (left + 1) * STEPS)
        assert set(said) == {hashes[0][left + 1]}


def is_lost_while_ddp_is_made(rank: int, size: int) -> tuple[int, str]:
    module, optimizer = made()
    recipe: Any = example()
    if rank == 1:
        recipe.DistributedDataParallel = lambda _: os.kill(os.getpid(), signal.SIGKILL)
    store = dist.distributed_c10d._get_default_store()
    dist.destroy_process_group()
    recipe.train(store, rank, size, module, optimizer, STEPS)
    return dist.get_world_size(), wiresum.torch.fingerprint(module, optimizer)


def test_a_worker_may_be_lost_while_ddp_is_made(make_cluster: MakeCluster) -> None:
    """The constructors of the others fail, where the example ended once."""
    cluster = make_cluster(3)
    cluster.start(is_lost_while_ddp_is_made)
    sizes, hashes = zip(*cluster.collect(ranks=[0, 2]), strict=True)
    assert sizes == (2, 2) and len(set(hashes)) == 1


@runs_in("new_trio")
def test_the_most_advanced_survivors_state_is_everybodys(rank: int, size: int) -> None:
    """The state reaches all, also others before their first step, whose optimizers have less state."""
    module, optimizer = made()
    for number in range(rank):
        module(torch.full((1, 16), float(number))).sum().backward()
        optimizer.step()
    assert bool(optimizer.state) == (rank > 0)
    assert example().agree(module, optimizer, 10 + rank) == 12
    hashes: list[Any] = [None] * size
    dist.all_gather_object(hashes, wiresum.torch.fingerprint(module, optimizer))
    assert len(set(hashes)) == 1 and optimizer.state


def shrinks_as_planned(rank: int, size: int, marks: str, flags: int) -> tuple[str, float]:
    """Rank 1 stays, and does nothing about it. The others shrink, which may abort the job, when all have its sum."""
    dist.all_reduce(torch.ones(1000))
    Path(marks, f"summed-{rank}").touch()
    await_marks(Path(marks), size)
    if rank == 1:
        await_marks(Path(marks), size + 2)
        return "", 0.0
    dist.shrink_group([1], shrink_flags=flags)
    tensor = torch.full((1000,), rank + 1.0)
    dist.all_reduce(tensor)
    group = dist.new_group([0, 1])
    small = torch.full((4,), 1.0)
    dist.all_reduce(small, group=group)
    assert small.tolist() == [2.0] * 4
    other = torch.tensor([float(rank)], dtype=torch.float64)
    peer = 1 - dist.get_rank()
    if peer:
        dist.send(other, dst=peer)
    else:
        dist.recv(other, src=peer)
        assert other.item() == 0.0
    Path(marks, str(rank)).touch()
    assert wiresum.torch.stats().collectives_network["all_reduce"] == 1
    return wiresum.torch.stats().job, float(tensor[0])


@pytest.mark.slow
@pytest.mark.parametrize("flags", [0, 1])
def test_a_planned_shrink_has_the_slots_of_the_job_before(
    own_switch: Callable[..., SwitchProcess], make_cluster: MakeCluster, marks: Path, flags: int
) -> None:
    cluster = make_cluster(3, at=own_switch("--slots", "256"), variables={"WIRESUM_JOB": "train"})
    said = cluster.run(shrinks_as_planned, str(marks), flags)
    assert said[0] == said[2] == ("train-2", 4.0)


@runs_in("new_trio")
def test_a_part_of_the_workers_can_shrink_and_its_options_change(rank: int, size: int) -> None:
    part = dist.new_group([0, 2])
    whole = dist.new_group([0, 1, 2])
    if rank == 1:
        dist.barrier()
        return
    with pytest.raises(TypeError, match=r"are a wiresum\.torch\.Options"):
        dist.shrink_group([1], whole, pg_options=object())
    assert not implementation(whole)._closed
    smaller = dist.shrink_group([1], whole, pg_options=wiresum.torch.Options(bits=16))
    tensor = torch.full((5000,), 1.0)
    dist.all_reduce(tensor, group=smaller)
    assert tensor.tolist() == [2.0] * 5000
    assert implementation(smaller).network._bits == 16  # type: ignore[union-attr]
    if rank == 0:
        alone = dist.shrink_group([1], part)
        dist.all_reduce(tensor, group=alone)
        assert tensor[0] == 2.0 and alone.size() == 1
        model = DistributedDataParallel(torch.nn.Linear(2, 1), process_group=alone)
        log = model._get_ddp_logging_data()
        assert log["backend_name"] == "custom" and "gloo_num_threads" not in log, "it read Gloo's fields in ours"
    dist.barrier()


@runs_in("make_cluster", 3, variables={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})
def test_a_group_that_pytorch_wraps_can_shrink(rank: int, size: int) -> None:
    if rank == 2:
        return
    dist.shrink_group([2])
    assert world().name() == "custom", "not gloo, whose fields DDP's logger reads"
    with pytest.raises(RuntimeError, match="wiresum"):  # the backend cannot wait; the group has it as default
        world()._wait_for_pending_works()
    tensor = torch.full((10,), 1.0)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [2.0] * 10


@runs_in("new_trio")
def test_members_that_do_not_come_are_named_in_time(rank: int, size: int) -> None:
    """Rank 0 does not go on. Rank 1 wants to go on with rank 2, and rank 2 with rank 0."""
    dist.barrier()
    if rank == 0:
        return
    expected = (
        "rank 0, global rank 1 waited 2 s for rank 1, global rank 2 to make a process group of 2. See"
        if rank == 1
        else "rank 1, global rank 2 waited 2 s for rank 0 to make a process group of 2. See"
    )
    with (
        mock.patch.object(creation, "REST_TIMEOUT", timedelta(seconds=2)),
        pytest.raises(wiresum.torch.WiresumTimeoutError, match=re.escape(expected)),
    ):
        dist.shrink_group([0] if rank == 1 else [1])


@runs_in("new_pair")
def test_who_has_the_store_is_said_where_it_does_not_answer(rank: int, size: int) -> None:
    """The store has ended with rank 0; what the switch's service says stays as it is. The group is a part of one."""
    spec = replace(implementation().spec, group=Group("part", "undefined", [5, 7]))

    def fail(*_: object) -> None:
        raise error

    named = (
        f"rank {rank}, global rank {5 + 2 * rank} cannot meet those that go on: the group's store, .* does not answer"
    )
    for cause, said in ((None, named), (OSError("no switch"), "^broken$")):
        error = dist.DistNetworkError("broken")
        error.__cause__ = cause
        with (
            mock.patch.object(creation, "_meet", fail),
            pytest.raises(dist.DistNetworkError, match=said),
        ):
            spec.rest([rank], rank, timedelta(seconds=1))


def shrinks_while_another_dies(rank: int, size: int) -> tuple[str, int]:
    if rank == 2:
        return "", 2
    if rank == 1:

        def die(*_: object) -> Any:
            os.kill(os.getpid(), signal.SIGKILL)

        creation.make_gloo = die
    make = creation.make_gloo
    creation.make_gloo = lambda store, rank, size, _, *more: make(store, rank, size, timedelta(seconds=1), *more)
    creation.REST_TIMEOUT = timedelta(seconds=PATIENCE_S / 4)
    with pytest.raises(dist.DistBackendError) as caught:
        dist.shrink_group([2])
    cause = caught.value.__cause__
    assert isinstance(cause, WorkerLostError), repr(caught.value)
    return str(caught.value), cause.rank


def test_a_worker_that_is_lost_while_the_others_shrink_is_named(hasty_service: str, make_cluster: MakeCluster) -> None:
    cluster = make_cluster(3, variables={"WIRESUM_SWITCH": hasty_service})
    cluster.start(shrinks_while_another_dies)
    text, lost = cluster.collect(ranks=[0])[0]
    assert lost == 1 and "rank 1" in text


@runs_in("make_cluster", 2, variables={"CXX": "/no-compiler", "TORCH_EXTENSIONS_DIR": "/no-compiler"})
def test_without_its_cpp_part_a_group_says_what_shrinking_needs(rank: int, size: int) -> None:
    with pytest.raises(TypeError, match=r"needs the C\+\+ part .* wiresum.torch.extension"):
        dist.shrink_group([1 - rank])
    tensor = torch.ones(3, dtype=torch.float64)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [2.0] * 3


def start_example(switch: SwitchProcess, size: int, store: TCPStore | None) -> list[subprocess.Popen[str]]:
    """Starts the example. Rank 0 has the store if none is given, as without torchrun. All go on only as far as rank 0's
    output is read."""
    variables = {"WORLD_SIZE": str(size), "WIRESUM_SWITCH": switch.endpoint}
    more = ["--store", f"127.0.0.1:{store.port}"] if store is not None else []
    if store is None:
        variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(unused_port())}
    processes = [
        subprocess.Popen(
            [sys.executable, str(EXAMPLE), "--until", "400", *more],
            env=environment(variables | {"RANK": str(rank)}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]
    assert processes[0].stdout is not None
    fcntl.fcntl(processes[0].stdout, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return processes


def read_until(process: subprocess.Popen[str], text: str) -> str:
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if text in line:
            return said
    raise AssertionError(f"it ended without {text!r}: {said}")


@pytest.mark.slow
@pytest.mark.timeout(3 * PATIENCE_S)
@pytest.mark.parametrize("lost", [(0,), (0, 2), pytest.param((1,), marks=pytest.mark.nightly)])
def test_the_example_goes_on_without_killed_workers(switch: SwitchProcess, lost: Sequence[int]) -> None:
    """Two may be lost at once: the others hear of one only."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes = start_example(switch, 2 + len(lost), store)
    survivors = [process for rank, process in enumerate(processes) if rank not in lost]
    try:
        read_until(processes[0], "step 50,")
        for rank in lost:
            processes[rank].kill()
        said = [read_until(survivors[0], " 2 workers:")]
        said += [process.communicate(timeout=2 * PATIENCE_S)[0] for process in survivors]
        assert [process.returncode for process in survivors] == [0, 0], said
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    weights = [re.findall("^weights .*", text, re.MULTILINE) for text in said[1:]]  # a warning may follow
    assert len(weights[0]) == 1 and weights[0] == weights[1]
    assert re.findall(r"step (\d+),", said[1])[-1] == "400"


@pytest.mark.nightly
@pytest.mark.timeout(3 * PATIENCE_S)
def test_survivors_without_a_store_say_who_had_it(switch: SwitchProcess) -> None:
    processes = start_example(switch, 3, None)
    try:
        read_until(processes[0], "step 50,")
        processes[0].kill()
        said = [processes[rank].communicate(timeout=2 * PATIENCE_S)[0] for rank in (1, 2)]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert all("the store does not answer; it ends with the process that has it" in text for text in said), said
