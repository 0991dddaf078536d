"""Clusters of worker processes (wiresum_lab.ranks.cluster) that meet as torchrun's do, at a store that the test
owns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from torch._C._distributed_c10d import TCPStore

from wiresum_lab.processes import SwitchProcess
from wiresum_lab.ranks.cluster import Cluster

from . import horovod_ranks


@pytest.fixture(scope="package")
def switch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SwitchProcess]:
    with SwitchProcess(tmp_path_factory.mktemp("switch")) as process:
        yield process


@pytest.fixture(scope="package")
def launch(switch: SwitchProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Cluster]]:
    """Starts ranks that have not called hvd.init() yet."""
    with ExitStack() as stack:

        def make(size: int, **variables: str) -> Cluster:
            store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            stack.callback(lambda: store)  # keeps the store listening while the ranks live
            meeting = {
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(store.port),
                "TORCHELASTIC_USE_AGENT_STORE": "True",
            }
            folder = tmp_path_factory.mktemp("ranks")
            cluster = Cluster(switch, size, folder, grouped=False, variables={**meeting, **variables})
            return stack.enter_context(cluster)

        yield make


@pytest.fixture(scope="package")
def trio(launch: Callable[..., Cluster]) -> Iterator[Cluster]:
    """Three initialized ranks, for all tests that leave them initialized."""
    cluster = launch(3)
    cluster.run(horovod_ranks.begin)
    yield cluster
    cluster.run(horovod_ranks.end)
