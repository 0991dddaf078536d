"""Fixtures: a real switch, and clusters of real worker processes over loopback (see wiresum_lab.ranks.cluster)."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch

from wiresum.controller import JoinServer, Limits
from wiresum.switch import SoftwareSwitch
from wiresum.torch import extension
from wiresum_lab.doubles.device import BUILD_TIMEOUT_S
from wiresum_lab.processes import SwitchProcess
from wiresum_lab.ranks.cluster import Cluster
from wiresum_lab.ranks.on_device import found_or_double, prepare

APART = {"WIRESUM_SHARE": "0"}


@pytest.fixture(scope="session")
def compiled() -> None:
    """Compiles the C++ part of the backend before any worker with a time-out would have to. Skips where there is no
    compiler. A compiler that fails is an error here, because the backend itself falls back silently."""
    if shutil.which("c++") is None:
        pytest.skip("the C++ part of the backend is not tested: there is no compiler")
    extension.BACKEND.build(BUILD_TIMEOUT_S)


@pytest.fixture
def work_exceptions() -> None:
    """Skips tests that call Work.exception(), whose result PyTorch cannot hand to Python before 2.13."""
    if torch.__version__ < "2.13":
        pytest.skip(f"Work.exception() raises a TypeError in PyTorch {torch.__version__}")


@pytest.fixture(scope="session")
def switch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SwitchProcess]:
    """One switch for all tests that do not damage it: every test runs a new job on it."""
    with SwitchProcess(tmp_path_factory.mktemp("switch")) as process:
        yield process


@pytest.fixture
def own_switch(tmp_path: Path) -> Iterator[Callable[..., SwitchProcess]]:
    """Makes switches that this test may kill."""
    made: list[SwitchProcess] = []

    def make(*arguments: str) -> SwitchProcess:
        folder = tmp_path / f"switch{len(made)}"
        folder.mkdir()
        made.append(SwitchProcess(folder, *arguments))
        return made[-1]

    yield make
    for process in made:
        process.stop()


@pytest.fixture
def hasty_service() -> Iterator[str]:
    """A service that soon takes a worker with a broken connection for lost. A worker with a whole connection
    has 30 s."""
    with closing(SoftwareSwitch(bind="127.0.0.1", port=0, threads=1)) as switch:
        server = JoinServer(switch, Limits(connection_lost_ms=500, suspect_ms=500, counted_ms=200))
        yield f"127.0.0.1:{server.start('127.0.0.1', 0)}"
        server.stop(1.0)


@pytest.fixture
def make_cluster(switch: SwitchProcess, tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Makes clusters whose workers this test may kill."""
    made: list[Cluster] = []

    def make(size: int, *, at: SwitchProcess | None = None, **options: object) -> Cluster:
        folder = tmp_path / f"cluster{len(made)}"
        folder.mkdir()
        made.append(Cluster(at or switch, size, folder, **{"prepare": prepare(), **options}))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for cluster in made:
        cluster.stop()


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    """The folder for the files by which workers tell their progress (await_marks)."""
    folder = tmp_path / "marks"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def pair(switch: SwitchProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two workers, shared by the tests of a module."""
    with Cluster(switch, 2, tmp_path_factory.mktemp("pair"), prepare=prepare()) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def trio(switch: SwitchProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three workers, which is not a power of two. Each has a stream of its own, as on hosts of their own."""
    with Cluster(switch, 3, tmp_path_factory.mktemp("trio"), prepare=prepare(), variables=APART) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def quartet(switch: SwitchProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Four workers, enough for two groups of two."""
    with Cluster(switch, 4, tmp_path_factory.mktemp("quartet"), prepare=prepare()) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def new_pair(switch: SwitchProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two workers for all tests that end their group, but no process: each test has a new group."""
    with Cluster(switch, 2, tmp_path_factory.mktemp("new_pair"), prepare=prepare(), regroups=True) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def new_trio(switch: SwitchProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three workers as in `trio`, for tests that end their group."""
    with Cluster(
        switch, 3, tmp_path_factory.mktemp("new_trio"), prepare=prepare(), variables=APART, regroups=True
    ) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def on_accelerator() -> str:
    """Code that workers run before they use an accelerator."""
    return found_or_double()


@pytest.fixture(scope="module")
def duo(on_accelerator: str, switch: SwitchProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two workers with an accelerator."""
    with Cluster(switch, 2, tmp_path_factory.mktemp("duo"), prepare=on_accelerator) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def new_duo(on_accelerator: str, switch: SwitchProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two workers with an accelerator, and a new group for each test, which may end it."""
    folder = tmp_path_factory.mktemp("new_duo")
    with Cluster(switch, 2, folder, prepare=on_accelerator, regroups=True) as cluster:
        yield cluster


@pytest.fixture
def make_duo(make_cluster: Callable[..., Cluster], on_accelerator: str) -> Callable[..., Cluster]:
    """Makes clusters with an accelerator, for tests that need new processes."""
    return lambda size=2, **options: make_cluster(size, prepare=on_accelerator, **options)
