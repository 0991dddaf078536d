"""Makes rig.py importable, and gives clusters of three worker processes (wiresum_lab.ranks.cluster)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from wiresum_lab.processes import SwitchProcess
from wiresum_lab.ranks.cluster import Cluster
from wiresum_lab.ranks.on_device import prepare

WORKERS = 3


@pytest.fixture(scope="package")
def over_gloo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(None, WORKERS, tmp_path_factory.mktemp("gloo"), backend="gloo", prepare=prepare()) as cluster:
        yield cluster


@pytest.fixture(scope="package")
def switched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster over a software switch."""
    with (
        SwitchProcess(tmp_path_factory.mktemp("switch")) as switch,
        Cluster(switch, WORKERS, tmp_path_factory.mktemp("wiresum"), prepare=prepare()) as cluster,
    ):
        yield cluster


@pytest.fixture(
    params=[pytest.param("over_gloo", marks=pytest.mark.nightly, id="gloo"), pytest.param("switched", id="wiresum")]
)
def trio(request: pytest.FixtureRequest) -> Cluster:
    cluster: Cluster = request.getfixturevalue(request.param)
    return cluster
