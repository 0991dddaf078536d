"""Four workers in two racks: two switches below a third, in this process. The racks are different loopback
addresses. The tests of wiresum.controller have the placing of jobs, and what becomes of them when something fails."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np
import pytest
import torch
import torch.distributed as dist

from wiresum.cli.service import Service
from wiresum.compress import QSGD, Engine, InProcess, IntDIANA, Piece, Segment, TopK, aggregator_of
from wiresum.controller import JoinServer
from wiresum_lab.loopback_tree import host_of, loopback_tree
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.ranks.cluster import Cluster

NETWORK, RACKS, WORKERS = "127.0.7", 2, 4


@pytest.fixture
def control() -> Iterator[str]:
    with ExitStack() as stack:
        nodes = loopback_tree(NETWORK, RACKS, slots=512)
        for node in nodes:
            stack.callback(node.close)
        server = JoinServer(nodes)
        stack.callback(server.stop, 1.0)
        yield f"127.0.0.1:{server.start('127.0.0.1', 0)}"


def joins(rank: int, size: int, folder: str) -> None:
    """The first ranks are in one rack and the others in the next."""
    os.environ["WIRESUM_ADDRESS"] = host_of(NETWORK, rank * RACKS // size)
    dist.init_process_group("wiresum", init_method=f"file://{folder}/store", rank=rank, world_size=size)


def overlapping_sums(rank: int, size: int) -> None:
    """Many calls of several kinds in flight at a time."""
    for turn in range(3):
        whole = [torch.arange(n, dtype=torch.int32) + rank + turn for n in (1, 700, 40_000, 9, 100_000)]
        exact = [torch.arange(n, dtype=torch.float32) + rank for n in (5, 3000)]
        row = torch.full((20_000,), float(rank))
        works = [dist.all_reduce(tensor, async_op=True) for tensor in [*whole, *exact]]
        works.append(dist.broadcast(row, src=size - 1, async_op=True))
        blocks = torch.zeros(360_000)
        blocks[rank * 36_000] = blocks[359_999] = 1.0
        works.append(dist.all_reduce(blocks, async_op=True))
        for work in works:
            work.wait()
        ranks = size * (size - 1) // 2
        for tensor in whole:
            expected = size * (torch.arange(len(tensor), dtype=torch.int32) + turn) + ranks
            assert torch.equal(tensor, expected)
        for floats in exact:
            assert torch.equal(floats, size * torch.arange(len(floats), dtype=torch.float32) + ranks)
        assert (row == size - 1).all()
        assert (blocks[torch.arange(size) * 36_000] == 1).all()
        assert blocks[359_999] == size
        assert blocks.sum() == 2 * size


def other_collectives(rank: int, size: int) -> None:
    """All other collectives, and compressed gradients, whose result must equal that of one process."""
    rows = [torch.arange(900, dtype=torch.float32) * (1 + other) for other in range(size)]
    gathered = [torch.empty(900) for _ in range(size)]
    dist.all_gather(gathered, rows[rank])
    assert all(torch.equal(row, expected) for row, expected in zip(gathered, rows, strict=True))
    share = torch.empty(500, dtype=torch.int32)
    dist.reduce_scatter_tensor(share, torch.arange(500 * size, dtype=torch.int32) + rank)
    ranks = size * (size - 1) // 2
    assert torch.equal(share, size * (torch.arange(500, dtype=torch.int32) + 500 * rank) + ranks)
    whole = torch.arange(500, dtype=torch.int32) + rank
    dist.reduce(whole, dst=size - 2)
    assert rank != size - 2 or torch.equal(whole, size * torch.arange(500, dtype=torch.int32) + ranks)
    dist.barrier()
    gradients = [[np.random.default_rng(other).normal(size=600)] for other in range(size)]
    segments = [Segment((Piece("weights", (600,)),))]
    for compressor in (TopK(0.1), IntDIANA(16), QSGD()):
        (mean,) = Engine(compressor, aggregator_of(), seed=3).average(segments, [gradients[rank]])
        (expected,) = Engine(compressor, InProcess(size), seed=3).average(segments, gradients)
        assert mean.tobytes() == expected.tobytes()


def test_a_job_over_two_racks_sums(make_cluster: Callable[..., Cluster], control: str, tmp_path: object) -> None:
    workers = make_cluster(WORKERS, grouped=False, variables={"WIRESUM_SWITCH": control, "WIRESUM_THREADS": "1"})
    workers.run(joins, str(tmp_path))
    workers.run(overlapping_sums)
    workers.run(other_collectives)
    (job,) = Service(control, timeout_s=PATIENCE_S).report().jobs
    assert [(bool(node.parent), node.workers) for node in job.switches] == [(False, 0), (True, 2), (True, 2)]
    assert len({worker.contributions for worker in job.workers}) == 1
    assert len({node.results for node in job.switches}) == 1, "each sum went through all three"
    assert {node.contributions for node in job.switches if node.parent} == {job.results}
    workers.stop()
