"""Parts of PyTorch that use the backend: the compiler, the profiler, debugging modes, other backends in the
same group."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import wiresum.torch
from wiresum.torch import extension
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import wait_until
from wiresum_lab.ranks.cluster import Cluster, runs_in
from wiresum_lab.ranks.cluster_worker import implementation, world

STEPS = 3


pytestmark = pytest.mark.usefixtures("compiled")


def network() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Linear(32, 5))


def train(model: torch.nn.Module, rank: int, size: int) -> list[torch.Tensor]:
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step)
        features = torch.randn(12, 20, generator=generator)
        labels = torch.randint(0, 5, (12,), generator=generator)
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(features[rank::size]), labels[rank::size]).backward()
        optimiser.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def assert_close(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for left, right in zip(actual, expected, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)


@runs_in("pair")
def test_the_group_is_pytorchs_process_group_with_our_backend(rank: int, size: int) -> None:
    assert type(world()) is dist.ProcessGroup
    assert dist.get_backend() == "wiresum"
    backend = world()._get_backend(torch.device("cpu"))
    assert backend.name() == "wiresum" and (backend.rank(), backend.size()) == (rank, size)


# torch.compile.


def compiled_model(rank: int, size: int, compiler: str) -> None:
    expected = train(network(), 0, 1)
    before = wiresum.torch.stats()
    model = torch.compile(DistributedDataParallel(network()), backend=compiler)
    assert_close(train(model, rank, size), expected)
    after = wiresum.torch.stats()
    assert after.collectives_network["all_reduce"] - before.collectives_network["all_reduce"] >= STEPS
    assert after.collectives_gloo == before.collectives_gloo


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["aot_eager", pytest.param("inductor", marks=pytest.mark.nightly)])
def test_a_compiled_ddp_model_trains_as_one_process_does(pair: Cluster, compiler: str) -> None:
    pair.run(compiled_model, compiler, timeout_s=2 * PATIENCE_S)


@pytest.mark.slow
@runs_in("pair")
def test_compiled_collectives(rank: int, size: int) -> None:
    def asynchronous(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor * 2
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        work.wait()
        return tensor + 1

    def several(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gathered = torch.empty(size * len(tensor))
        dist.all_gather_into_tensor(gathered, tensor)
        part = torch.empty(len(tensor))
        dist.reduce_scatter_tensor(part, gathered)
        return gathered, part

    torch._dynamo.reset()
    compiled = torch.compile(asynchronous, backend="aot_eager")
    for _ in range(2):
        assert compiled(torch.full((10,), rank + 1.0)).tolist() == [size * (size + 1) + 1.0] * 10
    gathered, part = torch.compile(several, backend="aot_eager", fullgraph=True)(torch.full((2,), float(rank)))
    assert gathered.tolist() == [float(k) for k in range(size) for _ in range(2)]
    assert part.tolist() == [float(rank * size)] * 2


# Profiling and debugging.


@runs_in("pair")
def test_the_profiler_shows_collectives(rank: int, size: int) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        dist.all_reduce(torch.ones(1000))
        dist.broadcast(torch.ones(10), src=0)
        work = dist.all_reduce(torch.ones(1000), async_op=True)
        assert work is not None
        work.wait()
    names = [event.name for event in profile.events()]
    assert names.count("c10d::allreduce_") == 2 and names.count("wiresum:all_reduce") == 2
    assert names.count("c10d::broadcast_") == 1 and names.count("wiresum:broadcast") == 1


@runs_in("pair")
def test_comm_debug_mode_counts_collectives(rank: int, size: int) -> None:
    from torch.distributed.tensor.debug import CommDebugMode

    with CommDebugMode() as mode:
        dist.all_reduce(torch.ones(10))
        dist.all_reduce(torch.ones(10, dtype=torch.float64))
        dist.barrier()
    assert mode.comm_counts[torch.ops.c10d.allreduce_] == 2


@runs_in("pair")
def test_fake_and_meta_tensors_cause_no_communication(rank: int, size: int) -> None:
    import torch.distributed._functional_collectives as functional_collectives
    from torch._subclasses.fake_tensor import FakeTensorMode

    before = wiresum.torch.stats()
    if rank == 0:  # the others call nothing, so a communication would hang
        with FakeTensorMode():
            summed = functional_collectives.all_reduce(torch.ones(10), "sum", world())
            assert summed.shape == (10,)
            gather = getattr(functional_collectives, "all_gather_single", None)
            gather = gather or functional_collectives.all_gather_tensor  # its name up to PyTorch 2.12
            gathered = gather(torch.ones(10), 0, world())
            assert gathered.shape == (10 * size,)
            dist.all_reduce(torch.ones(10))
        dist.all_reduce(torch.ones(10, device="meta"))
    assert wiresum.torch.stats().collectives_network == before.collectives_network
    dist.barrier()


@pytest.mark.slow
@runs_in("make_cluster", 2, variables={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})
def test_debug_level_detail_refuses_differing_shapes(rank: int, size: int) -> None:
    dist.all_reduce(torch.ones(2, 6))
    assert_close(train(DistributedDataParallel(network()), rank, size), train(network(), 0, 1))
    assert wiresum.torch.stats().collectives_network["all_reduce"] > STEPS
    with pytest.raises(RuntimeError, match="mismatch"):
        dist.all_reduce(torch.ones(2, 6) if rank == 0 else torch.ones(6, 2))


# Several backends, and groups that are split.


@runs_in("make_cluster", 2, backend="cpu:gloo,cuda:wiresum")
def test_a_group_of_two_backends_gives_each_its_device(rank: int, size: int) -> None:
    before = implementation().stats()
    tensor = torch.full((10,), rank + 1.0)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [sum(range(1, size + 1))] * 10
    assert isinstance(world()._get_backend(torch.device("cpu")), dist.ProcessGroupGloo)
    assert implementation().stats().collectives_network == before.collectives_network
    assert implementation().stats().collectives_gloo == before.collectives_gloo


@runs_in("make_cluster", 2, backend="cpu:wiresum")
def test_a_group_may_name_its_device(rank: int, size: int) -> None:
    dist.all_reduce(torch.ones(10))
    assert wiresum.torch.stats().collectives_network["all_reduce"] == 1
    with pytest.raises(RuntimeError, match="cuda"):
        world()._get_backend(torch.device("cuda"))


def test_a_group_may_leave_its_gpus_to_nccl() -> None:
    named = dist.BackendConfig(dist.Backend("cpu:wiresum,cuda:nccl"))  # type: ignore[attr-defined]
    assert named.get_device_backend_map() == {"cpu": "wiresum", "cuda": "nccl"}


@runs_in("quartet")
def test_split_group_makes_jobs_of_their_own(rank: int, size: int) -> None:
    mine = [0, 1] if rank < 2 else [3, 2]
    part: Any = world().split_group(mine, group_name=f"part{rank // 2}")
    own = part._get_backend(torch.device("cpu"))
    # PyTorch sorts the ranks up to 2.14.
    assert part.size() == own.size() == 2 and part.rank() == own.rank() in (rank % 2, mine.index(rank))
    tensor = torch.full((300,), float(rank))
    part.allreduce([tensor]).wait()
    assert tensor.tolist() == [1.0 if rank < 2 else 5.0] * 300
    assert_close(train(DistributedDataParallel(network(), process_group=part), part.rank(), 2), train(network(), 0, 1))
    stats = wiresum.torch.stats(part)
    assert stats.collectives_network["all_reduce"] > STEPS and stats.job != wiresum.torch.stats().job
    pair: Any = world().split_group([0, 3])
    assert (pair is None) == (rank in (1, 2))
    if pair is not None:
        pair.barrier().wait()
        pair.shutdown()
    part.shutdown()
    dist.barrier()


@runs_in("quartet")
def test_hybrid_sharding_matches_one_process(rank: int, size: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = network()
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    train(model, rank, size)
    whole = [p.full_tensor() if isinstance(p, DTensor) else p for p in model.parameters()]
    assert_close([parameter.detach() for parameter in whole], train(network(), 0, 1))
    replicas = wiresum.torch.stats(mesh.get_group("replicate"))
    shards = wiresum.torch.stats(mesh.get_group("shard"))
    assert replicas.collectives_network["all_reduce"] >= STEPS
    assert shards.collectives_network["reduce_scatter_single"] >= STEPS


# Checkpoints of both kinds.


def checkpointed(rank: int, size: int, folder: str) -> None:
    import torch.distributed.checkpoint as checkpoint
    from torch.utils.checkpoint import checkpoint as recomputed

    class Recomputing(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = recomputed(self.inner, features, use_reentrant=False)
            return result

    model = DistributedDataParallel(Recomputing())
    trained = train(model, rank, size)
    assert_close(trained, train(network(), 0, 1))
    checkpoint.save({"model": model.state_dict()}, checkpoint_id=folder)
    for parameter in model.parameters():
        parameter.data.zero_()
    state = {"model": model.state_dict()}
    checkpoint.load(state, checkpoint_id=folder)
    model.load_state_dict(state["model"])
    for parameter, expected in zip(model.parameters(), trained, strict=True):
        assert torch.equal(parameter, expected)


def test_checkpoints(pair: Cluster, tmp_path: Path) -> None:
    pair.run(checkpointed, str(tmp_path / "checkpoint"))


# Without a working compiler.


def older_shape(rank: int, size: int) -> None:
    assert type(world()) is not dist.ProcessGroup and dist.get_backend() == "wiresum"
    assert_close(train(DistributedDataParallel(network()), rank, size), train(network(), 0, 1))
    compiled_model(rank, size, "aot_eager")
    assert wiresum.torch.stats().collectives_network["all_reduce"] >= 2 * STEPS
    dist.all_reduce(torch.ones(2, dtype=torch.float64))
    works = [dist.all_reduce(torch.ones(100), async_op=True) for _ in range(3)]
    for work in works:
        assert work is not None
        work.wait()


def without_compiler(folder: Path) -> dict[str, str]:
    return {"CXX": str(folder / "no-compiler"), "TORCH_EXTENSIONS_DIR": str(folder / "extensions")}


def test_a_compiler_that_takes_too_long_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "slow-compiler"
    compiler.write_text(f"#!/bin/sh\nsleep 600 &\necho $! > {tmp_path}/started\nwait\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    said, timeout_s = tmp_path / "started", 1
    while not (said.exists() and said.read_text()):  # the compiler had not even started in this time
        with pytest.raises(extension.ExtensionError, match=f"did not end within {timeout_s} s"):
            extension.BACKEND.build(timeout_s)
        timeout_s *= 2
    started = int(said.read_text())
    wait_until(lambda: not Path(f"/proc/{started}").exists(), "what the compiler had started has ended")


def test_who_is_killed_while_it_compiles_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text(
        f"#!/bin/sh\necho $$ > {tmp_path}/started.new\nmv {tmp_path}/started.new {tmp_path}/started\nexec sleep 600\n"
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    with subprocess.Popen([sys.executable, "-m", "wiresum.torch.extension"]) as killed:
        wait_until((tmp_path / "started").exists, "the compiler has started")
        killed.kill()
    os.kill(int((tmp_path / "started").read_text()), signal.SIGKILL)
    compiler.write_text('#!/bin/sh\nfor output; do :; done\necho compiled > "$output"\n')
    assert extension.BACKEND.build().read_text() == "compiled\n"


@pytest.mark.slow
def test_without_a_compiler_the_group_trains_in_the_older_shape(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = make_cluster(2, variables=without_compiler(tmp_path))
    cluster.run(older_shape)
    assert "could not be compiled" in cluster.log(0)


def group_of_both_kinds(rank: int, size: int, folder: Path, backend: str = "wiresum") -> None:
    """A default group whose rank 1 has no compiler."""
    if rank == 1:
        os.environ.update(without_compiler(folder))
    dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=rank, world_size=size)


def trains_with_others(rank: int, size: int, folder: Path) -> None:
    group_of_both_kinds(rank, size, folder)
    assert type(world()) is not dist.ProcessGroup, "all do without what one lacks"
    assert_close(train(DistributedDataParallel(network()), rank, size), train(network(), 0, 1))
    assert wiresum.torch.stats().collectives_network["all_reduce"] >= STEPS
    dist.all_reduce(torch.ones(2, dtype=torch.float64))
    others = dist.new_group([0, 2])
    if rank != 1:
        assert type(others) is dist.ProcessGroup
        dist.all_reduce(torch.ones(2), group=others)
    dist.destroy_process_group()


def test_workers_with_and_without_a_compiler_train_together_and_the_first_says_so(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = make_cluster(3, grouped=False)
    cluster.run(trains_with_others, tmp_path)
    assert "rank 1 has no C++ part of the backend" in cluster.log(0)
    assert "could not be compiled" in cluster.log(1)
    assert "C++ part" not in cluster.log(2)


def check_sums(rank: int, size: int, folder: Path, backend: str) -> None:
    group_of_both_kinds(rank, size, folder, backend)
    for tensor in (torch.full((5000,), rank + 0.1), torch.full((3,), rank + 0.1, dtype=torch.float64)):
        dist.all_reduce(tensor)
        torch.testing.assert_close(tensor, torch.full_like(tensor, 1.2), rtol=1e-6, atol=0)
        gathered = [torch.empty_like(tensor) for _ in range(size)]
        dist.all_gather(gathered, tensor)
        assert all(torch.equal(theirs, tensor) for theirs in gathered)
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("backend", "debugging"),
    [("wiresum", "DETAIL"), ("cpu:gloo,cuda:wiresum", "OFF"), ("cpu:wiresum,cuda:gloo", "OFF")],
)
def test_debuggers_and_other_backends_are_the_same_with_and_without_a_compiler(
    make_cluster: Callable[..., Cluster], tmp_path: Path, backend: str, debugging: str
) -> None:
    cluster = make_cluster(2, grouped=False, variables={"TORCH_DISTRIBUTED_DEBUG": debugging})
    cluster.run(check_sums, tmp_path, backend)
