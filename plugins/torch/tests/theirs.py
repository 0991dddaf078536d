"""PyTorch's own tests of its backends, as its wheel ships them, in the workers of a cluster.

They are methods of the class that the suites of Gloo and NCCL are derived from. PyTorch combines it with a test case
that starts new processes for each test. Here the processes stay, and each test gets a new process group.
test_theirs.py runs a selection; as a program, this file runs the named tests, or all, and prints the outcomes:

    python plugins/torch/tests/theirs.py [--backend gloo] [NAME ...]
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import sys
import tempfile
import unittest
import unittest.mock
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

import wiresum.torch
from wiresum_lab.patience import TimedOutError
from wiresum_lab.processes import SwitchProcess
from wiresum_lab.ranks.cluster import Cluster, WorkerFailedError

SIZE = 4
AS_GLOO = frozenset(
    f"test_accumulate_gradients_no_sync{how}"
    for how in ("", "_allreduce_hook", "_allreduce_with_then_hook", "_grad_is_view")
)
"""Tests that prepare a model on the CPU for a backend named gloo, and none at all for one that they do not know."""
NAMED_GLOO = frozenset(["test_monitored_barrier_gloo", "test_monitored_barrier_gloo_subgroup"])
"""Tests of dist.monitored_barrier, which refuses groups that are not named gloo, so it gets this name."""
NAME_GLOO = (AS_GLOO | NAMED_GLOO).union(
    [
        *(
            f"test_all_reduce_coalesced{group}_{operator}"
            for group in ("", "_group", "_full_group")
            for operator in ("sum", "product", "min", "max")
        ),
        "test_barrier_timeout_full_group",
        "test_batch_isend_irecv_gloo",
        "test_batch_isend_irecv_gloo_tags",
        "test_get_future",
        "test_grads_same_across_ranks_with_no_sync",
        "test_monitored_barrier_gloo_rank_0_timeout",
        "test_scatter_object_list",
        "test_sparse_all_reduce_sum",
    ]
)
"""Tests that PyTorch lists for Gloo alone, though other backends pass them, too: they run here all the same."""
ON_CUDA = frozenset(
    [
        *(f"test_all_gather{kind}_cuda" for kind in ("", "_into_cat_tensor", "_into_stack_tensor", "_v")),
        "test_all_gather_cuda_complex",
        *(
            f"test_all_to_all_single_{split}_split{kind}"
            for split in ("equal", "unequal")
            for kind in ("_cuda", "_cuda_complex", "_full_group_cuda")
        ),
        "test_barrier_cuda",
        "test_broadcast_cuda",
        "test_coalescing_manager",
        "test_coalescing_manager_async",
        "test_gather_cuda",
        "test_reduce_scatter_tensor_cuda",
        "test_reduce_scatter_v_cuda",
        "test_reduce_sum_cuda",
        "test_reduce_sum_cuda_twice",
        "test_scatter_cuda",
        "test_scatter_cuda_complex",
        *(f"test_send_recv_nccl{kind}" for kind in ("", "_autograd_profiler", "_torch_profiler")),
        "test_sparse_all_reduce_sum_cuda",
    ]
)
"""Tests that PyTorch lists for NCCL, and whose workers may share a GPU."""
ENDS_ITS_GROUP = frozenset(
    ["test_barrier_timeout_full_group", "test_monitored_barrier_gloo", "test_monitored_barrier_gloo_rank_0_timeout"]
)
FOLDERS = ("barrier", "test_dir", "init_dir")


@functools.cache
def module(backend: str) -> ModuleType:
    """PyTorch's module of these tests, which reads its settings when it is imported."""
    os.environ.update(BACKEND=backend, WORLD_SIZE=str(SIZE), MASTER_ADDR="127.0.0.1")
    from torch.testing._internal.common_distributed import DistTestCases

    for feature in ("cuda", "ddp", "gpu", "plugin", "subgroup"):
        DistTestCases.backend_feature[feature].add(backend)
    from torch.testing._internal.distributed import distributed_test

    return distributed_test


def prepare(rank: int, size: int) -> None:
    """Imports the tests' modules, which takes several seconds."""
    module("wiresum")


def names() -> list[str]:
    """The names of all tests in the module."""
    base = module("wiresum").DistributedTest._DistTestBase
    return sorted(name for name in dir(base) if name.startswith("test_"))


def run(rank: int, size: int, name: str, folder: str, backend: str = "wiresum") -> str:
    """Runs one test, which raises an exception if it fails. Returns the reason if it was skipped, else ""."""
    theirs = module(backend)
    method = getattr(theirs.DistributedTest._DistTestBase, name)
    if getattr(method, "__unittest_skip__", False) and name not in NAME_GLOO | ON_CUDA:
        return str(method.__unittest_skip_why__)
    theirs.BACKEND = "gloo" if name in AS_GLOO else backend
    os.environ["TEMP_DIR"] = folder
    for subfolder in FOLDERS:
        Path(folder, subfolder).mkdir(exist_ok=True)
    timeout = timedelta(seconds=theirs.CUSTOM_PG_TIMEOUT.get(name, theirs.default_pg_timeout))
    wiresum.torch.register()
    dist.init_process_group(backend, init_method=f"file://{folder}/{name}", rank=rank, world_size=size, timeout=timeout)
    try:
        theirs.Barrier.barrier_id = 0
        test = _case(theirs)(name)
        test.rank, test.file_name = rank, f"{folder}/{name}.file"
        with _prepared_for(name, theirs):
            getattr(test, name)()
        if name not in ENDS_ITS_GROUP:
            dist.barrier()
    except unittest.SkipTest as skipped:
        return str(skipped)
    except SystemExit as left:
        reasons = [skip.message for skip in theirs.TEST_SKIPS.values() if skip.exit_code == left.code]
        if not reasons:
            raise
        return str(reasons[0])
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    return ""


def _prepared_for(name: str, theirs: ModuleType) -> Any:
    """Settings for a test that is meant for another backend."""
    if name in NAMED_GLOO:
        return unittest.mock.patch("torch.distributed.distributed_c10d.get_backend", return_value="gloo")
    return _shared_gpus(theirs) if name in ON_CUDA else contextlib.nullcontext()


@contextlib.contextmanager
def _shared_gpus(theirs: ModuleType) -> Iterator[None]:
    """Lets the workers share GPUs. PyTorch wants one for each, since NCCL's workers cannot share."""
    torch.cuda.init()  # CUDA asks each device for its kind here, so before it is told of more
    count = torch.cuda.device_count()
    gpus = {rank: [rank % count] for rank in range(SIZE)}
    with (
        unittest.mock.patch.object(torch.cuda, "device_count", return_value=SIZE),
        unittest.mock.patch.object(theirs, "init_multigpu_helper", return_value=gpus),
    ):
        yield


@functools.cache
def _case(theirs: ModuleType) -> Any:
    return type("Theirs", (theirs.TestDistBackend, theirs.DistributedTest._DistTestBase), {})


def main() -> None:
    parser = argparse.ArgumentParser(description="runs PyTorch's own tests of a backend")
    parser.add_argument("--backend", default="wiresum")
    parser.add_argument("names", nargs="*", help="all, if none is given")
    arguments = parser.parse_args()
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as made, SwitchProcess(Path(made)) as switch:
        cluster = Cluster(switch, SIZE, Path(made), grouped=False)
        for name in arguments.names or names():
            folder = Path(made, name)
            folder.mkdir()
            try:
                reason = cluster.run(run, name, str(folder), arguments.backend)[0]
            except (WorkerFailedError, TimedOutError) as error:
                say(f"FAILED  {name}\n{error}")
                counts["failed"] += 1
            else:
                say(f"skipped {name}: {reason}" if reason else f"passed  {name}")
                counts["skipped" if reason else "passed"] += 1
        cluster.stop()
    say(", ".join(f"{count} {what}" for what, count in sorted(counts.items())))


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
