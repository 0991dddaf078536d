"""Rank, size and meeting point of a process, from the environment variables of each launcher."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch._C._distributed_c10d import HashStore

from wiresum.horovod.torch.launch import Launch, RankLayout, find_place, meeting_store
from wiresum.horovod.torch.settings import Settings

ENVIRONMENTS = {
    "torchrun": {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"},
    "horovodrun": {"HOROVOD_RANK": "2", "HOROVOD_SIZE": "4", "HOROVOD_LOCAL_RANK": "0", "HOROVOD_LOCAL_SIZE": "2"},
    "Open MPI": {
        "OMPI_COMM_WORLD_RANK": "2",
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    },
    "MPICH": {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"},
}


@pytest.mark.parametrize("launcher", ENVIRONMENTS)
def test_each_launcher_is_recognised_by_its_variables(launcher: str) -> None:
    assert Launch.from_environment(ENVIRONMENTS[launcher]) == Launch(launcher, 2, 4, 0, 2)


def test_a_slurm_step_has_ranks_and_its_batch_script_has_none() -> None:
    batch = {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0"}
    assert Launch.from_environment(batch).size == 1
    assert Launch.from_environment({**batch, "SLURM_STEP_NUM_TASKS": "8"}) == Launch("Slurm", 0, 8, 0, -1)


def test_without_a_launcher_there_is_one_process() -> None:
    launch = Launch.from_environment({})
    assert find_place(launch, meeting_store(launch, {})) == RankLayout(0, 1, 0, 1, 0, 1, homogeneous=True)


@pytest.mark.parametrize(("name", "value"), [("RANK", "one"), ("RANK", "4"), ("WORLD_SIZE", "-1")])
def test_an_impossible_number_is_refused_with_its_variables_name(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=name):
        Launch.from_environment({**ENVIRONMENTS["torchrun"], name: value})


def test_without_a_master_address_the_error_names_the_variables_to_set() -> None:
    launch = Launch.from_environment(ENVIRONMENTS["Open MPI"])
    with pytest.raises(ValueError, match=r"Open MPI .*rank 2 of 4, but MASTER_PORT is not set.*mpirun -x"):
        meeting_store(launch, {"MASTER_ADDR": "127.0.0.1"})


def test_local_ranks_are_counted_by_host_where_the_launcher_does_not_give_them(monkeypatch: pytest.MonkeyPatch) -> None:
    store, host = HashStore(), threading.local()
    monkeypatch.setattr(socket, "gethostname", lambda: host.name)

    def place(rank: int) -> RankLayout:
        host.name = "ab"[rank % 3 == 2]  # a a b a a
        return find_place(Launch("test", rank, 5), store)

    with ThreadPoolExecutor(5) as pool:
        places = list(pool.map(place, range(5)))
    assert [(p.local_rank, p.local_size) for p in places] == [(0, 4), (1, 4), (0, 1), (2, 4), (3, 4)]
    assert [(p.cross_rank, p.cross_size) for p in places] == [(0, 2), (0, 1), (1, 2), (0, 1), (0, 1)]
    assert not places[0].homogeneous


def test_settings_come_from_horovods_variables() -> None:
    settings = Settings.from_environment(
        {
            "HOROVOD_FUSION_THRESHOLD": "1024",
            "HOROVOD_STALL_CHECK_TIME_SECONDS": "5",
            "HOROVOD_STALL_CHECK_DISABLE": "0",
        }
    )
    assert (settings.fusion_bytes_max, settings.stall_check_s) == (1024, 5.0)
    assert Settings.from_environment({"HOROVOD_STALL_CHECK_DISABLE": "1"}).stall_check_s == float("inf")
    assert Settings.from_environment({"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "0"}).stall_shutdown_s == float("inf")
    with pytest.raises(ValueError, match="HOROVOD_FUSION_THRESHOLD is 'much'"):
        Settings.from_environment({"HOROVOD_FUSION_THRESHOLD": "much"})
