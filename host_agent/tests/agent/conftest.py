from __future__ import annotations

from collections.abc import Iterator

import pytest

from wiresum_lab.doubles.resuming import DataPath, FallbackOf, Job, Start
from wiresum_lab.doubles.virtual_network import Network, Service


@pytest.fixture
def network() -> Iterator[Network]:
    network = Network()
    yield network
    for running in list(network.services.values()):
        running.owner.kill()
    network.expect_no_threads()


@pytest.fixture
def service(network: Network) -> Service:
    return Service(network).start()


@pytest.fixture
def start(network: Network) -> Iterator[Start]:
    jobs: list[Job] = []

    def start_one(switch: str, paths: list[DataPath], fallback: FallbackOf | None = None, **fields: object) -> Job:
        jobs.append(Job(network, switch, paths, fallback, **fields))
        return jobs[-1]

    yield start_one
    for job in jobs:
        job.leave()


@pytest.fixture
def fallback(network: Network) -> FallbackOf:
    return FallbackOf(Service(network))
