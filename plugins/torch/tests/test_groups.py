"""Process groups: subsets, options, names, one worker, and how PyTorch finds the backend."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import wiresum.torch
from wiresum.agent.config import AgentConfig
from wiresum.torch.backend import backend_of
from wiresum.torch.calls import Call
from wiresum.torch.gloo import GlooCall
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import SwitchProcess, wait_until
from wiresum_lab.ranks import network_sum
from wiresum_lab.ranks.cluster import Cluster, environment, runs_in
from wiresum_lab.ranks.cluster_worker import lanes as lanes_of


@runs_in("quartet")
def test_new_group_of_any_subset_has_a_job_of_its_own(rank: int, size: int) -> None:
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    odd = dist.new_group([3, 1])
    everybody = dist.new_group()
    tensor = torch.full((500,), float(rank))
    dist.all_reduce(tensor, group=halves[rank // 2])
    assert (tensor == (1 if rank < 2 else 5)).all()
    if rank in (1, 3):
        tensor = torch.full((500,), float(rank))
        dist.broadcast(tensor, src=3, group=odd)
        assert (tensor == 3).all()
        assert wiresum.torch.stats(odd).collectives_network["broadcast"] == 1
    tensor = torch.ones(500)
    dist.all_reduce(tensor, group=everybody)
    assert (tensor == size).all()
    names = {wiresum.torch.stats(group).job for group in (dist.group.WORLD, halves[rank // 2], everybody)}
    assert len(names) == 3 and "" not in names
    for group in (*halves, odd, everybody):
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)


@runs_in("quartet")
def test_errors_of_a_subgroup_name_both_ranks(rank: int, size: int) -> None:
    """Errors give the rank in the group, and the one that people know: of different calls, of a worker that left, of
    other arguments, and of a call of Gloo's where there is no network."""
    diverging, left, single = dist.new_group([1, 3]), dist.new_group([1, 3]), dist.new_group([3])
    if rank in (1, 3):
        with pytest.raises(ValueError, match=r"\(rank 0, global rank 1 has 9; rank 1, global rank 3 has 11\)"):
            wiresum.torch.reproducible(torch.nn.Linear(1, 1), 8 + rank, left)
        sums = wiresum.torch.reproducible(torch.nn.Linear(1, 1), 2, left)
        with pytest.raises(RuntimeError, match=r"rank 0, global rank 1 did 0 .*rank 1, global rank 3 did 0"):
            sums.reduce()
        with pytest.raises(dist.DistBackendError) as caught:
            dist.all_reduce(torch.ones(rank), group=diverging)
        for named in ("rank 0, global rank 1 called", "rank 1, global rank 3 called"):
            assert named in str(caught.value)
        if rank == 1:
            with pytest.raises(dist.DistBackendError, match=r"rank 1, global rank 3 \(127\.0\.0\.1, process \d+ on"):
                dist.all_reduce(torch.ones(10), group=left)
        for group in (diverging, left):
            dist.destroy_process_group(group)
    if rank == 3:
        backend = backend_of(single)
        assert backend is not None and backend.network is None
        said = backend.gloo._explain(GlooCall(Call(0, "a test", None, [], 1.0)), RuntimeError("no"), None)
        assert str(said).startswith("rank 0, global rank 3: a test()")
        dist.destroy_process_group(single)  # the names of groups made by members only count a member's groups


@runs_in("quartet")
def test_a_group_of_one_is_local(rank: int, size: int) -> None:
    groups = [dist.new_group([k]) for k in range(size)]
    tensor = torch.full((3,), float(rank))
    dist.all_reduce(tensor, group=groups[rank], op=dist.ReduceOp.AVG)
    dist.barrier(group=groups[rank])
    assert (tensor == rank).all() and wiresum.torch.stats(groups[rank]).job == ""
    dist.destroy_process_group(groups[rank])


@runs_in("quartet")
def test_groups_may_be_made_by_their_members_only_and_made_again(rank: int, size: int) -> None:
    ranks = [0, 1] if rank < 2 else [2, 3]
    for _ in range(2):  # the second time with the same name and store
        group = dist.new_group(ranks, use_local_synchronization=True)
        tensor = torch.full((10,), float(rank))
        dist.all_reduce(tensor, group=group)
        assert (tensor == sum(ranks)).all()
        dist.destroy_process_group(group)


@runs_in("quartet")
def test_device_mesh(rank: int, size: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    tensor = torch.full((10,), float(rank))
    dist.all_reduce(tensor, group=mesh.get_group("shards"))
    assert (tensor == (1 if rank < 2 else 5)).all()
    tensor = torch.full((10,), float(rank))
    dist.all_reduce(tensor, group=mesh.get_group("replicas"))
    assert (tensor == rank % 2 + (rank % 2 + 2)).all()
    for name, expected in (("shards", 1 + rank // 2 * 2), ("replicas", rank % 2 + 2)):
        largest = torch.tensor(rank)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=mesh.get_group(name))
        assert largest.item() == expected
        stats = wiresum.torch.stats(mesh.get_group(name))
        assert stats.collectives_network["all_reduce"] == 2 and not stats.collectives_gloo


@runs_in("quartet")
def test_dtensor(rank: int, size: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (size,))
    whole = torch.arange(32.0).reshape(8, 4)
    left = distribute_tensor(whole, mesh, [Shard(1)])
    right = distribute_tensor(whole.t().contiguous(), mesh, [Shard(0)])
    product = (left @ right).redistribute(mesh, [Replicate()]).to_local()
    assert torch.equal(product, whole @ whole.t())
    assert torch.equal(distribute_tensor(whole, mesh, [Shard(0)]).full_tensor(), whole)


@pytest.mark.parametrize("bits", [16, 8])
@runs_in("quartet")
def test_narrow_lanes_apply_to_sums_of_floats_only(rank: int, size: int, bits: int) -> None:
    group = dist.new_group(pg_options=wiresum.torch.Options(bits=bits))
    lanes = lanes_of(group)
    generator = torch.Generator().manual_seed(3)
    inputs = [torch.randn(5000, generator=generator) for _ in range(size)]
    for average in (False, True):
        tensor = inputs[rank].clone()
        dist.all_reduce(tensor, op=dist.ReduceOp.AVG if average else dist.ReduceOp.SUM, group=group)
        expected = network_sum.all_reduce(inputs, lanes=lanes, bits=bits, average=average)
        assert torch.equal(tensor, expected)
    integers = torch.arange(2000, dtype=torch.int32) * 1_000_003
    dist.all_reduce(integers, group=group)
    assert torch.equal(integers, torch.arange(2000, dtype=torch.int32) * 1_000_003 * size)
    copied = inputs[rank].clone()
    dist.broadcast(copied, src=2, group=group)
    assert torch.equal(copied, inputs[2])
    dist.destroy_process_group(group)


@runs_in("quartet")
def test_fixed_scale(rank: int, size: int) -> None:
    group = dist.new_group(pg_options=wiresum.torch.Options(fixed_scale=1024.0))
    tensor = torch.tensor([0.5, 1 / 1024, 1 / 4096, -3.0]) + 0.0
    dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [0.5 * size, size / 1024, 0.0, -3.0 * size]
    dist.destroy_process_group(group)


@runs_in("quartet")
def test_options_that_make_no_sense_are_refused(rank: int, size: int) -> None:
    with pytest.raises(TypeError, match=r"wiresum\.torch\.Options"):
        dist.new_group([rank], use_local_synchronization=True, pg_options=object())
    with pytest.raises(ValueError, match="WIRESUM_BITS"):
        dist.new_group([rank], use_local_synchronization=True, pg_options=wiresum.torch.Options(bits=7))


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf])
def test_an_invalid_scale_is_refused(scale: float) -> None:
    with pytest.raises(ValueError, match="fixed_scale"):
        wiresum.torch.Options(fixed_scale=scale)


def test_every_setting_is_an_option() -> None:
    settings = {field.name: field.type for field in dataclasses.fields(AgentConfig)}
    del settings["join_timeout_s"], settings["global_rank"]  # settings that the group makes itself
    options = {field.name: field.type for field in dataclasses.fields(wiresum.torch.Options)}
    assert options.pop("fixed_scale") == "float | None"
    assert options == {name: f"{kind} | None" for name, kind in settings.items()}
    assert wiresum.torch.Options(threads=2, slots=64).config() == AgentConfig.from_environment(threads=2, slots=64)


def does_what_the_network_does(group: Any) -> None:
    """Collectives of types and forms that the network has, and Gloo by itself has not."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    for dtype in (torch.int16, torch.uint16, torch.uint32, torch.bool, torch.complex64, torch.float8_e5m2):
        for shape in ((), (5,), (4, 3)):
            first = (torch.arange(math.prod(shape)) + 7).reshape(shape).to(dtype)
            tensor = first if rank == 0 else torch.zeros_like(first)
            dist.broadcast(tensor, group=group, group_src=0)
            assert torch.equal(bits(tensor), bits(first))
            parts = [torch.zeros_like(first) for _ in range(size)]
            dist.all_gather(parts, first, group=group)
            assert all(torch.equal(bits(part), bits(first)) for part in parts)
            whole = torch.zeros(size * first.numel(), dtype=dtype)
            dist.all_gather_into_tensor(whole, first.reshape(-1), group=group)
            assert torch.equal(bits(whole), bits(first).repeat(size))
    mine = [torch.full((3,), rank), torch.full((2, 2), 10 + rank)]
    lists = [[torch.zeros_like(part) for part in mine] for _ in range(size)]
    dist.all_gather_coalesced(lists, mine, group=group)
    assert all((part[0] == k).all() and (part[1] == 10 + k).all() for k, part in enumerate(lists))
    mixed = [torch.ones(3), torch.ones(5, dtype=torch.bfloat16), torch.ones(2)]
    with dist._coalescing_manager(group):
        for tensor in mixed:
            dist.all_reduce(tensor, group=group)
    assert all((tensor == size).all() for tensor in mixed)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


@runs_in("pair")
def test_a_group_of_one_does_what_others_do(rank: int, size: int) -> None:
    single = dist.new_group([rank], use_local_synchronization=True)
    does_what_the_network_does(dist.group.WORLD)
    does_what_the_network_does(single)
    dist.destroy_process_group(single)


def crowds(rank: int, size: int) -> list[str]:
    groups = [dist.new_group(pg_options=wiresum.torch.Options(slots=128)) for _ in range(4)]
    for group in groups:
        tensor = torch.ones(1000)
        dist.all_reduce(tensor, group=group)
        dist.all_reduce(tensor, group=group, op=dist.ReduceOp.AVG)
        dist.barrier(group=group)
        assert (tensor == size).all()
    does_what_the_network_does(groups[-1])
    return [wiresum.torch.stats(group).job for group in groups]


def test_a_subgroup_that_the_switch_has_no_slots_for_uses_gloo_at_all_members(
    own_switch: Callable[..., SwitchProcess], make_cluster: Callable[..., Cluster]
) -> None:
    cluster = make_cluster(3, at=own_switch("--slots", "512"))
    jobs = cluster.run(crowds)
    assert jobs[0] == jobs[1] == jobs[2]
    assert jobs[0][0] and not any(jobs[0][1:])
    pattern = (
        r"no room at the switch for (\d) process groups? \(the first is of job 'job-.*no 16 slots in a row are free"
    )

    def said() -> list[int]:
        """The counts in warnings, one line for groups made in succession; a slow machine has several such rows."""
        return [int(found[1]) for found in re.finditer(pattern, cluster.log(0))]

    wait_until(lambda: sum(said()) >= 3, "rank 0 says so of three groups")
    assert sum(said()) == 3
    assert not any("no room at the switch" in cluster.log(rank) for rank in (1, 2))


def falls_back(rank: int, size: int) -> list[str]:
    """The log messages of a group in which some calls fall back to Gloo."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("wiresum")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    for _ in range(2):
        dist.all_reduce(torch.ones(10_000, dtype=torch.float64), op=dist.ReduceOp.MAX)
    return [text for text in said if "goes through Gloo" in text]


def test_each_fallback_to_gloo_is_logged_once_with_operation_and_type(make_cluster: Callable[..., Cluster]) -> None:
    said = "wiresum: all_reduce(MAX, float64[10000]) goes through Gloo: the network does not do that"
    assert make_cluster(2).run(falls_back) == [[said]] * 2


def trains_once(rank: int, size: int) -> None:
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
    model(torch.ones(2, 3)).sum().backward()
    dist.all_reduce(torch.ones(3, dtype=torch.float64))
    assert wiresum.torch.stats().collectives_network["all_reduce"] >= 1


@pytest.mark.parametrize(
    ("backend", "variables"), [("cpu:wiresum", {}), ("wiresum", {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})]
)
def test_other_ways_to_ask_for_the_backend(
    make_cluster: Callable[..., Cluster], backend: str, variables: dict[str, str]
) -> None:
    make_cluster(2, backend=backend, variables=variables).run(trains_once)


@runs_in("make_cluster", 2, grouped=False, variables={"WIRESUM_JOB": "again"})
def test_a_process_may_leave_and_come_back(rank: int, size: int, tmp_path: Path) -> None:
    for round_ in range(3):
        dist.init_process_group("wiresum", init_method=f"file://{tmp_path}/{round_}", rank=rank, world_size=size)
        tensor = torch.ones(10)
        dist.all_reduce(tensor)
        assert (tensor == size).all()
        dist.destroy_process_group()


@runs_in("make_cluster", 1, variables={"WIRESUM_SWITCH": "127.0.0.1:1"})
def test_one_worker_needs_no_switch(rank: int, size: int) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int32, torch.float64):
        for operator in (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX):
            tensor = torch.arange(5).to(dtype)
            dist.all_reduce(tensor, op=operator)
            assert torch.equal(tensor, torch.arange(5).to(dtype))
    outputs = [torch.zeros(2)]
    dist.all_gather(outputs, torch.ones(2))
    dist.reduce_scatter(outputs[0], [torch.full((2,), 4.0)])
    assert outputs[0].tolist() == [4.0, 4.0]
    dist.broadcast(outputs[0], src=0)
    dist.barrier()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
    model(torch.ones(2, 3)).sum().backward()
    received = [None]
    dist.all_gather_object(received, "object")
    assert received == ["object"]


def run_python(code: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(variables),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_importing_the_backend_loads_neither_grpc_nor_the_native_core() -> None:
    loaded = run_python(
        "import wiresum.torch, sys; print([m for m in sys.modules if 'grpc' in m or m.startswith('wiresum')])"
    )
    assert loaded.strip() == "['wiresum', 'wiresum.torch']"


def test_pytorch_finds_the_backend_by_its_entry_point(tmp_path: Path) -> None:
    metadata = tmp_path / "wiresum_entry-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: wiresum-entry\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text("[torch.backends]\nwiresum = wiresum.torch:_autoload\n")
    path = os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]])
    code = (
        "import torch.distributed as dist\n"
        f"dist.init_process_group('wiresum', init_method='file://{tmp_path}/store', rank=0, world_size=1)\n"
        "print(dist.get_backend()); dist.destroy_process_group()\n"
    )
    assert run_python(code, PYTHONPATH=path).strip() == "wiresum"
