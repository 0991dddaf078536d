"""Makes rig.py importable, and gives clusters of worker processes (wiresum_lab.ranks.cluster)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from wiresum_lab.processes import SwitchProcess
from wiresum_lab.ranks.cluster import Cluster

WORKERS = 3


@pytest.fixture(scope="package")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Cluster]]:
    """Three workers over Gloo, and three over a software switch."""
    with (
        SwitchProcess(tmp_path_factory.mktemp("switch")) as switch,
        Cluster(None, WORKERS, tmp_path_factory.mktemp("gloo"), backend="gloo") as gloo,
        Cluster(switch, WORKERS, tmp_path_factory.mktemp("wiresum")) as wiresum,
    ):
        yield {"gloo": gloo, "wiresum": wiresum}


@pytest.fixture(params=["gloo", "wiresum"])
def trio(request: pytest.FixtureRequest, clusters: dict[str, Cluster]) -> Cluster:
    return clusters[request.param]


@pytest.fixture
def switched(clusters: dict[str, Cluster]) -> Cluster:
    return clusters["wiresum"]
