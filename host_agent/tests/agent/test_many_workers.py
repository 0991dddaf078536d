"""One job of 128 workers over eight leaves and a spine: real sockets, real joins, and engines, without PyTorch."""

from __future__ import annotations

import array
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from wiresum.agent import AgentConfig, Dtype, Region, Session
from wiresum.controller import JoinServer
from wiresum_lab.loopback_tree import host_of, loopback_tree
from wiresum_lab.patience import PATIENCE_S

WORKERS, LEAVES = 128, 8
NETWORK = "127.0.6"
ELEMENTS = 3000
SUMS = 3


@pytest.fixture
def control() -> Iterator[str]:
    """The address where the workers of all leaves join."""
    with ExitStack() as stack:
        nodes = loopback_tree(NETWORK, LEAVES, slots=512, lanes_max=64)
        for node in nodes:
            stack.callback(node.close)
        server = JoinServer(nodes)
        stack.callback(server.stop, 1.0)
        yield f"127.0.0.1:{server.start('127.0.0.1', 0)}"


@pytest.mark.nightly
@pytest.mark.timeout(4 * PATIENCE_S)
def test_128_workers_sum_exactly_with_overlapping_calls(control: str) -> None:
    def join(rank: int) -> Session:
        leaf = rank * LEAVES // WORKERS
        config = AgentConfig(
            switch=control, address=host_of(NETWORK, leaf), join_timeout_s=2 * PATIENCE_S, threads=1, slots=64
        )
        return Session.join(config, job_name="many", rank=rank, world_size=WORKERS)

    chance = random.Random(17)
    tensors = [
        [array.array("i", (chance.randrange(-(2**23), 2**23) for _ in range(ELEMENTS))) for _ in range(WORKERS)]
        for _ in range(SUMS)
    ]
    sums = [[sum(column) for column in zip(*one, strict=True)] for one in tensors]
    with ThreadPoolExecutor(WORKERS) as pool, ExitStack() as stack:
        sessions = list(pool.map(join, range(WORKERS)))
        for session in sessions:
            stack.callback(session.close)
        operations = [
            session.submit([whole(one[rank])], dtype=Dtype.I32)
            for one in tensors
            for rank, session in enumerate(sessions)
        ]
        for operation in operations:
            operation.wait(2 * PATIENCE_S)
    for one, total in zip(tensors, sums, strict=True):
        assert all(list(tensor) == total for tensor in one)


def whole(values: array.array[int]) -> Region:
    address, elements = values.buffer_info()
    return Region(address, address, elements)
