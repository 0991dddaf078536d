"""PyTorch's own tests of its backends, as its wheel ships them, in the workers of a cluster.

They are methods of a class that is meant to be mixed into a test case of processes, which starts new ones for each test.
Here the processes stay, and each test gets a process group of its own.
"""

from __future__ import annotations

import functools
import os
import unittest
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import torch.distributed as dist

import wiresum.torch

FOLDERS = ("barrier", "test_dir", "init_dir")


@functools.cache
def module(backend: str, size: int, folder: str) -> ModuleType:
    """Theirs. It reads its settings when it is imported."""
    os.environ.update(BACKEND=backend, WORLD_SIZE=str(size), TEMP_DIR=folder, INIT_METHOD="file://")
    from torch.testing._internal.common_distributed import DistTestCases

    for feature in ("ddp", "subgroup", "plugin"):
        DistTestCases.backend_feature[feature].add(backend)
    from torch.testing._internal.distributed import distributed_test

    return distributed_test


def names() -> list[str]:
    """Of all tests there are."""
    base = module("wiresum", 3, "").DistributedTest._DistTestBase
    return sorted(name for name in dir(base) if name.startswith("test_"))


def run(rank: int, size: int, name: str, folder: str, backend: str = "wiresum") -> str:
    """Why the test was skipped; "" if it passed. What it raises is its failure."""
    theirs = module(backend, size, folder)
    wiresum.torch.register()
    for subfolder in FOLDERS:
        Path(folder, subfolder).mkdir(exist_ok=True)
    timeout = timedelta(seconds=theirs.CUSTOM_PG_TIMEOUT.get(name, theirs.default_pg_timeout))
    dist.init_process_group(
        backend, init_method=f"file://{folder}/{name}", rank=rank, world_size=size, timeout=timeout
    )
    try:
        _forget_barriers(theirs, rank)
        test = _case(theirs)(name)
        test.rank, test.file_name = rank, f"{folder}/{name}.file"
        test.setUp = lambda: None
        getattr(test, name)()
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


@functools.cache
def _case(theirs: ModuleType) -> Any:
    return type("Theirs", (theirs.TestDistBackend, theirs.DistributedTest._DistTestBase), {})


def _forget_barriers(theirs: ModuleType, rank: int) -> None:
    """Those of the test before, in the files that it meets by."""
    dist.barrier()
    if rank == 0:
        theirs.Barrier.init()
    theirs.Barrier.barrier_id = 0
    dist.barrier()
