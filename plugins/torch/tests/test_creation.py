from __future__ import annotations

import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ProcessGroupGloo
from torch.torch_version import TorchVersion

import wiresum.torch
from wiresum.agent.config import AgentConfig
from wiresum.join import name_problem
from wiresum.torch import creation
from wiresum.torch.backend import backend_of
from wiresum.torch.flight_recorder import Group
from wiresum.torch.network import Network
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import wait_until
from wiresum_lab.ranks.cluster import Cluster, runs_in


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.parametrize(
    ("variables", "job", "expected"),
    [
        ({}, "", "job-RANDOM"),
        ({"TORCHELASTIC_RUN_ID": "night"}, "", "night-RANDOM"),
        ({"TORCHELASTIC_RUN_ID": "none"}, "", "job-RANDOM"),
        ({"SLURM_JOB_ID": "4711", "TORCHELASTIC_RUN_ID": "4711"}, "", "slurm-4711-RANDOM"),
        ({"SLURM_JOB_ID": "4711", "TORCHELASTIC_RESTART_COUNT": "2"}, "", "slurm-4711-RANDOM-restart2"),
        ({"SLURM_JOB_ID": "4711"}, "mine", "mine"),
    ],
)
def test_the_default_job_name_comes_from_the_launcher(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], job: str, expected: str
) -> None:
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    name = creation._job_name(AgentConfig(job=job), "", "")
    assert re.fullmatch(expected.replace("RANDOM", "[0-9a-f]{8}"), name)
    assert not name_problem(name)


def test_the_package_lists_lazily_imported_names_and_its_version() -> None:
    assert {"Options", "GroupStats", "WiresumTimeoutError", "stats", "__version__"} <= set(dir(wiresum.torch))
    assert wiresum.torch.__version__ == metadata.version("wiresum")


def test_an_older_pytorch_is_refused_and_the_package_asks_for_a_newer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert f'torch = ["torch>={creation.OLDEST}",' in Path(__file__).parents[3].joinpath("pyproject.toml").read_text()
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.9.1"))
    with pytest.raises(
        RuntimeError, match=rf"needs PyTorch {re.escape(creation.OLDEST)} or later, and this is 2\.9\.1"
    ):
        creation.create_group(None, None)


@runs_in("make_cluster", 2, grouped=False)
def test_no_member_has_its_group_before_all_are_connected(rank: int, size: int, tmp_path: Path) -> None:
    """A member that leaves at once would cut off others that still connect. Rank 1 connects when rank 0 waits
    for it."""
    waits, connected = tmp_path / "waits", tmp_path / "connected"
    make_gloo, meet = creation.make_gloo, Network.meet

    def make_late(*arguments: Any) -> ProcessGroupGloo:
        made = make_gloo(*arguments)
        if rank == 1:
            wait_until(waits.exists, "rank 0 waits for the others")
            connected.touch()
        return made

    def mark_and_meet(*arguments: Any) -> None:
        waits.touch()
        meet(*arguments)

    creation.make_gloo, Network.meet = make_late, mark_and_meet  # type: ignore[method-assign]
    dist.init_process_group("wiresum", init_method=f"file://{tmp_path}/store", rank=rank, world_size=size)
    assert connected.exists()
    dist.destroy_process_group()


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
    cluster.kill(0)  # rank 0 waits for rank 1


def of_a_subgroup(store: dist.HashStore, rank: int) -> list[Callable[[], object]]:
    """Steps of making a subgroup that fail at this rank."""
    group, offer, no_time = (
        Group("g", "undefined", [1, 3]),
        creation._Offer("job", 1, "", "127.0.0.1:1", ""),
        timedelta(milliseconds=1),
    )
    return [
        lambda: creation._meet(store, rank, group, offer, no_time),
        lambda: creation._all_joined(store, rank, group, "j", None),
        lambda: creation._at_local_switch(AgentConfig(), offer, rank, group),
        lambda: creation._at_local_switch(AgentConfig(switch="local"), offer, rank, group),
    ]


@pytest.mark.parametrize(
    ("rank", "step", "said"),
    [
        (0, 0, "rank 0, global rank 1 waited 0 s for rank 1, global rank 3 to make"),
        (1, 0, "rank 1, global rank 3 waited 0 s for rank 0, global rank 1 to make"),
        (0, 1, "rank 1, global rank 3 could not join job 'j': the reason"),
        (1, 2, "`local` at rank 0, global rank 1, and not at rank 1, global rank 3: "),
        (1, 3, "rank 1, global rank 3 is on another than rank 0, global rank 1: "),
    ],
)
def test_errors_of_making_a_subgroup_name_both_ranks(rank: int, step: int, said: str) -> None:
    store = dist.HashStore()
    store.set("outcome/1", "failed the reason")
    with pytest.raises((RuntimeError, ValueError), match=said):
        of_a_subgroup(store, rank)[step]()


def test_a_subgroups_member_without_the_extension_is_named_by_both_ranks(caplog: pytest.LogCaptureFixture) -> None:
    store, group = dist.HashStore(), Group("g", "undefined", [1, 3])
    with ThreadPoolExecutor() as threads:
        other = threads.submit(creation._agree, None, store, 1, group)
        creation._agree(cast(ModuleType, object()), store, 0, group)
        other.result(PATIENCE_S)
    assert "rank 1, global rank 3 has no C++ part" in caplog.text


@runs_in("make_cluster", 2, grouped=False)
def test_what_rank_0_says_of_a_fallback_counts(rank: int, size: int, tmp_path: Path) -> None:
    targets = []
    for name, of_rank_0, of_rank_1 in (("a", "auto", "off"), ("b", "off", "auto"), ("c", "192.0.2.1:4000", "auto")):
        os.environ["WIRESUM_FALLBACK"] = of_rank_1 if rank else of_rank_0
        dist.init_process_group("wiresum", init_method=f"file://{tmp_path}/{name}", rank=rank, world_size=size)
        backend = backend_of(dist.group.WORLD)
        assert backend is not None and backend.network is not None
        found = backend.network.session._membership._fallback
        said = [""] * size
        dist.all_gather_object(said, found.target if found is not None else "none")
        assert len(set(said)) == 1
        targets.append(said[0])
        dist.destroy_process_group()
    assert targets[0].startswith("127.0.0.1:") and targets[1:] == ["none", "192.0.2.1:4000"]
