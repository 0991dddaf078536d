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
from wiresum.switch import SoftwareSwitch

WORKERS, LEAVES = 128, 8
PATIENCE_S = 90.0
ELEMENTS = 3000
SUMS = 3


class Node(SoftwareSwitch):
    """A switch of a tree on loopback, where each leaf has its own addresses for its hosts."""

    parent = ""

    def __init__(self, address: str, parent: str = "", host: str = "") -> None:
        super().__init__(bind=address, port=0, threads=1, slots=512, lanes_max=64)
        self.parent, self._host = parent, host

    def reaches(self, address: str) -> bool:
        return address == self._host


@pytest.fixture
def control() -> Iterator[str]:
    """The address where the workers of 127.0.6.101 and its neighbours join."""
    with ExitStack() as stack:
        spine = Node("127.0.6.1")
        stack.callback(spine.close)
        nodes = [spine]
        for leaf in range(LEAVES):
            nodes.append(Node(f"127.0.6.{2 + leaf}", spine.name, host_of(leaf)))
            stack.callback(nodes[-1].close)
        server = JoinServer(nodes)
        stack.callback(server.stop, 1.0)
        yield f"127.0.0.1:{server.start('127.0.0.1', 0)}"


def host_of(leaf: int) -> str:
    return f"127.0.6.{101 + leaf}"


@pytest.mark.timeout(200)
def test_128_workers_sum_exactly_with_overlapping_calls(control: str) -> None:
    def join(rank: int) -> Session:
        leaf = rank * LEAVES // WORKERS
        config = AgentConfig(switch=control, address=host_of(leaf), join_timeout_s=PATIENCE_S, threads=1, slots=64)
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
            operation.wait(PATIENCE_S)
    for one, total in zip(tensors, sums, strict=True):
        assert all(list(tensor) == total for tensor in one)


def whole(values: array.array[int]) -> Region:
    address, elements = values.buffer_info()
    return Region(address, address, elements)
