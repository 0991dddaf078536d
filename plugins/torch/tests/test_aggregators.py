"""A job that is spread over two switches, each in a process of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import wiresum.torch
from wiresum_lab.processes import SwitchProcess
from wiresum_lab.ranks.cluster import Cluster

BLOCK = 360


@pytest.fixture
def switches(own_switch: Callable[..., SwitchProcess]) -> list[SwitchProcess]:
    """Two switches with different numbers of slots, in the order in which workers join them."""
    return sorted((own_switch(), own_switch("--slots", "512")), key=lambda switch: switch.endpoint)


@pytest.fixture
def cluster(switches: list[SwitchProcess], tmp_path: Path) -> Iterator[Cluster]:
    folder = tmp_path / "workers"
    folder.mkdir()
    names = "+".join(switch.endpoint for switch in reversed(switches))
    variables = {"WIRESUM_SWITCH": names, "WIRESUM_THREADS": "1"}
    with Cluster(None, 3, folder, variables=variables) as cluster:
        yield cluster


def packets_at_each(group: dist.ProcessGroup | None = None) -> list[int]:
    network = wiresum.torch.stats(group).network
    assert network is not None
    return [part.packets_sent for part in network.aggregators]


def sums_of_every_kind(rank: int, size: int) -> None:
    dense = torch.arange(200_000, dtype=torch.int32) + rank
    dist.all_reduce(dense)
    assert torch.equal(dense, size * torch.arange(200_000, dtype=torch.int32) + size * (size - 1) // 2)

    sparse = torch.zeros(1000 * BLOCK)
    sparse[rank * BLOCK] = sparse[700 * BLOCK] = 1.0
    dist.all_reduce(sparse)
    expected = torch.zeros(1000 * BLOCK)
    expected[torch.arange(size) * BLOCK] = 1.0
    expected[700 * BLOCK] = size
    assert torch.equal(sparse, expected)
    assert wiresum.torch.stats().network.sparse.streams == 1  # type: ignore[union-attr]

    rows = torch.sparse_coo_tensor(torch.tensor([[5, 90 + rank]]), torch.ones(2, 64), (4000, 64))
    dist.all_reduce(rows)
    summed = torch.zeros(4000, 64)
    summed[5] = size
    summed[90 : 90 + size] = 1
    assert torch.equal(rows.to_dense(), summed)

    before = packets_at_each()
    for _ in range(4):  # single packets go to the switches in turn
        small = torch.ones(3)
        dist.all_reduce(small)
        assert (small == size).all()
    assert all(now > then for now, then in zip(packets_at_each(), before, strict=True))

    pair = dist.new_group([0, 2])
    if rank != 1:
        copied = torch.full((50_000,), float(rank))
        dist.broadcast(copied, src=2, group=pair)
        assert (copied == 2).all()
        assert min(packets_at_each(pair)) > 30
        dist.destroy_process_group(pair)


def test_groups_sum_over_both_switches(cluster: Cluster) -> None:
    cluster.run(sums_of_every_kind)


def joins_with_another_list(rank: int, size: int, folder: str) -> str:
    if rank == 1:
        os.environ["WIRESUM_SWITCH"] += "+127.0.0.1:1"
    try:
        dist.init_process_group("wiresum", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    except Exception as error:
        return str(error)
    return "joined"


def test_a_worker_with_another_number_of_aggregators_gets_an_error(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = make_cluster(2, grouped=False)
    cluster.start(joins_with_another_list, str(tmp_path))
    (said,) = cluster.collect(ranks=[1])
    assert "names 2 aggregators at rank 1 and 1 at rank 0" in said
    cluster.kill(0)  # it waits for rank 1
