"""Workers of one host share one stream to the switch by default, and sums have the bits of workers that do not
share."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import wiresum.torch
from wiresum.agent import WorkerLostError
from wiresum.agent.world import WORLD
from wiresum.torch import creation
from wiresum_lab.processes import wait_until
from wiresum_lab.ranks.cluster import Cluster, await_marks

from .test_failure import until_it_fails

MakeCluster = Callable[..., Cluster]
ELEMENTS = 20_000


def sharing_of(group: dist.ProcessGroup | None = None) -> tuple[tuple[int, ...], str]:
    network = wiresum.torch.stats(group).network
    assert network is not None
    return network.sharing, network.transport


def shares(rank: int, size: int) -> None:
    tensor = torch.full((1000,), float(rank))
    dist.all_reduce(tensor)
    assert (tensor == size * (size - 1) / 2).all()
    assert sharing_of() == ((0, 1, 2), "shared memory")
    apart = dist.new_group(pg_options=wiresum.torch.Options(share=False))
    dist.all_reduce(tensor, group=apart)
    assert sharing_of(apart) == ((), "udp")
    some = dist.new_group([0, 2])
    if rank != 1:
        dist.all_reduce(tensor, group=some)
        assert sharing_of(some) == ((0, 1), "shared memory"), "ranks are those of the group"


def test_workers_of_a_host_share_a_stream_unless_they_are_told_not_to(make_cluster: MakeCluster) -> None:
    make_cluster(3).run(shares)


KINDS: list[dict[str, Any]] = [{}, {"bits": 16}, {"bits": 8}, {"precision": "exact"}, {"precision": "adaptive"}]


def sums_alike(rank: int, size: int) -> None:
    random = torch.Generator().manual_seed(rank)
    wide = torch.randn(ELEMENTS, generator=random) * torch.exp2(20 * torch.rand(ELEMENTS, generator=random))
    sparse = torch.where(torch.arange(ELEMENTS) // 720 % (rank + 2) == 0, wide, 0.0)
    integers = torch.randint(-(2**31), 2**31, (ELEMENTS,), generator=random).to(torch.int32)
    for kind in KINDS:
        groups = [dist.new_group(pg_options=wiresum.torch.Options(share=share, **kind)) for share in (True, False)]
        for values in (wide, wide[:1000], sparse, integers, wide.bfloat16()):
            for operation in (dist.ReduceOp.SUM, *([dist.ReduceOp.AVG] if values.is_floating_point() else [])):
                sums = [values.clone() for _ in groups]
                for group, tensor in zip(groups, sums, strict=True):
                    dist.all_reduce(tensor, op=operation, group=group)
                assert sums[0].view(torch.uint8).equal(sums[1].view(torch.uint8)), (kind, values.dtype, operation)
        assert [bool(sharing_of(group)[0]) for group in groups] == [True, False]
        for group in groups:
            dist.destroy_process_group(group)


def test_sums_of_workers_that_share_have_the_bits_of_those_that_do_not(make_cluster: MakeCluster) -> None:
    make_cluster(3).run(sums_alike)


def is_lost(rank: int, size: int, marks: Path, lost: int) -> None:
    dist.barrier()
    (marks / str(rank)).touch()
    if rank == lost:
        await_marks(marks, size + 1)  # a worker is killed meanwhile
        return
    error = until_it_fails(lambda: dist.all_reduce(torch.ones(200_000)))
    assert isinstance(error.__cause__, WorkerLostError) and error.__cause__.rank == lost, repr(error)


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1])
def test_a_killed_worker_is_named_whether_it_sums_for_its_host_or_not(
    hasty_service: str, make_cluster: MakeCluster, marks: Path, lost: int
) -> None:
    cluster = make_cluster(3, variables={"WIRESUM_SWITCH": hasty_service})
    cluster.start(is_lost, marks, lost)
    await_marks(marks, 3)
    cluster.kill(lost)
    cluster.collect(ranks=[rank for rank in range(3) if rank != lost])


def is_awaited(rank: int, size: int, marks: Path, late: int) -> None:
    group = dist.new_group(timeout=timedelta(seconds=3))
    dist.all_reduce(torch.ones(1000), group=group)
    if rank == late:
        await_marks(marks, size - 1)
        return
    error = until_it_fails(lambda: dist.all_reduce(torch.ones(1000), group=group))
    assert re.search(rf"rank {late} \([^)]*\) is one collective behind", str(error)), str(error)
    (marks / str(rank)).touch()


@pytest.mark.slow
@pytest.mark.parametrize("late", [0, 2])
def test_a_worker_that_others_of_its_host_wait_for_is_named(make_cluster: MakeCluster, marks: Path, late: int) -> None:
    make_cluster(3).run(is_awaited, marks, late)


def sums_at_a_switch_of_its_own(rank: int, size: int) -> str:
    some = dist.new_group([1, 2])
    for group, members in ((None, [0, 1, 2]), (some, [1, 2])):
        if rank in members:
            tensor = torch.full((1000,), float(rank))
            dist.all_reduce(tensor, group=group)
            assert (tensor == sum(members)).all()
            assert len(sharing_of(group)[0]) == len(members)
            assert wiresum.torch.stats(group).service == wiresum.torch.stats().service
    alone = dist.new_group([2])
    if rank == 2:
        tensor = torch.ones(3)
        dist.all_reduce(tensor, group=alone)
        assert (tensor == 1).all()
    return wiresum.torch.stats().service


def test_workers_of_one_host_need_no_switch_that_somebody_has_started(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(3, variables={"WIRESUM_SWITCH": "local"})
    (service,) = {*cluster.run(sums_at_a_switch_of_its_own)}
    assert WORLD.listens(service)
    cluster.stop()
    wait_until(lambda: not WORLD.listens(service), "the switch has ended with rank 0")


def joins(rank: int, size: int, folder: str, local: int, elsewhere: int) -> str:
    os.environ["WIRESUM_SWITCH"] = "local" if local in (rank, -1) else "127.0.0.1:9"
    if rank == elsewhere:
        creation.host_id = lambda: b"another"  # type: ignore[attr-defined]
    try:
        dist.init_process_group("wiresum", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    except ValueError as error:
        return str(error)
    return "joined"


@pytest.mark.parametrize(
    ("local", "elsewhere", "says"),
    [
        (0, -1, "is `local` at rank 0, and not at rank 1"),
        (1, -1, "is `local` at rank 1, and not at rank 0"),
        (-1, 1, "for workers of one host, and rank 1 is on another than rank 0: start a switch"),
    ],
)
def test_a_worker_that_cannot_use_rank_0s_own_switch_says_so(
    make_cluster: MakeCluster, tmp_path: Path, local: int, elsewhere: int, says: str
) -> None:
    cluster = make_cluster(2, grouped=False)
    cluster.start(joins, str(tmp_path), local, elsewhere)
    (said,) = cluster.collect(ranks=[1])
    assert says in said
    cluster.kill(0)  # rank 0 waits for rank 1
