"""PyTorch's own analyser of flight records reads ours, and names the rank that is missing."""

from __future__ import annotations

import datetime
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import wiresum.torch
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import wait_until
from wiresum_lab.ranks.cluster import Cluster, await_marks, runs_in
from wiresum_lab.ranks.cluster_worker import world

SIZE = 3
ABSENT = 2
PREFIX = "record_of_rank_"


def uses_collectives(rank: int, size: int) -> None:
    """Calls one collective of each kind, in the network and through Gloo."""
    tensor, parts = torch.ones(6), [torch.ones(6) for _ in range(size)]
    dist.all_reduce(tensor)
    dist.all_reduce(tensor.t(), op=dist.ReduceOp.AVG)
    dist.all_reduce(tensor.double())
    dist.broadcast(tensor, src=1)
    dist.reduce(tensor, dst=1)
    dist.all_gather(parts, tensor)
    dist.all_gather_into_tensor(torch.ones(6 * size), tensor)
    dist.reduce_scatter(tensor, parts)
    dist.reduce_scatter_tensor(tensor, torch.ones(6 * size))
    dist.reduce_scatter_tensor(tensor.double(), torch.ones(6 * size).double())
    dist.gather(tensor, parts if rank == 0 else None)
    dist.scatter(tensor, parts if rank == 0 else None)
    dist.all_to_all_single(torch.ones(size), torch.ones(size))
    dist.barrier()
    pair = dist.new_group([0, ABSENT])
    if rank in (0, ABSENT):
        dist.all_reduce(torch.ones(2), group=pair)
    dist.barrier()


def hangs(rank: int, size: int, folder: str, marks: Path) -> None:
    """Rank 0 times out while rank 1's call is under way, too."""
    uses_collectives(rank, size)
    if rank == ABSENT:
        (marks / str(rank)).touch()
        path = Path(folder, f"{PREFIX}{rank}")
        wait_until(path.exists, "the flight record of the worker that calls nothing is written")
    elif rank == 0:
        await_marks(marks, size - 1)
        world().set_timeout(datetime.timedelta(seconds=1))
        with pytest.raises(wiresum.torch.WiresumTimeoutError):
            dist.all_reduce(torch.ones(4, 5))
    else:
        work = dist.all_reduce(torch.ones(4, 5), async_op=True)
        (marks / str(rank)).touch()
        with pytest.raises(RuntimeError):
            work.wait()


def analysed(folder: Path, *arguments: str) -> str:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.flight_recorder.fr_trace",
        str(folder),
        "-p",
        PREFIX,
        *arguments,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
def test_the_analyser_names_the_rank_that_is_missing_and_the_collective(
    make_cluster: Callable[..., Cluster], compiled: None, tmp_path: Path, marks: Path
) -> None:
    folder = tmp_path / "records"
    variables = {"TORCH_FR_BUFFER_SIZE": "100", "TORCH_FR_DUMP_TEMP_FILE": str(folder / PREFIX)}
    make_cluster(SIZE, variables=variables).run(hangs, str(folder), marks)
    said = analysed(folder)
    assert said.count("Not all ranks joining collective") == 1, said
    assert "missing ranks: {2}" in said and "collective: gloo:all_reduce" in said, said
    assert "input sizes: [[4, 5]]" in said and "collective state: started" in said, said
    assert "error msg" not in said, said


@runs_in("pair")
def test_a_record_has_the_newest_collectives_with_their_states(rank: int, size: int) -> None:
    before = time.time_ns()
    dist.all_reduce(torch.ones(7, 3))
    dist.broadcast(torch.ones(5, dtype=torch.int64), src=1)
    works = [dist.all_reduce(torch.ones(9), async_op=True)] if rank == 0 else []
    record: dict[str, Any] = pickle.loads(wiresum.torch.flight_record())
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        store.set("recorded", "")
    else:  # no sooner: the sum would be complete in the record of rank 0
        store.wait(["recorded"])
        works.append(dist.all_reduce(torch.ones(9), async_op=True))
    dist.barrier()
    entries = [entry for entry in record["entries"] if entry["time_created_ns"] >= before]
    assert [entry["profiling_name"] for entry in entries[:2]] == ["gloo:all_reduce", "gloo:broadcast"]
    assert [entry["input_sizes"] for entry in entries[:2]] == [[[7, 3]], [[5]]]
    assert [entry["input_dtypes"] for entry in entries[:2]] == [["float32"], ["int64"]]
    assert [entry["state"] for entry in entries[:2]] == ["completed", "completed"]
    if rank == 0:
        assert entries[2]["state"] == "started" and entries[2]["input_sizes"] == [[9]]
    assert [entry["collective_seq_id"] for entry in entries] == [
        entries[0]["collective_seq_id"] + k for k in range(len(entries))
    ]
    (group,) = record["pg_config"].values()
    assert group["ranks"] == "[0, 1]"
