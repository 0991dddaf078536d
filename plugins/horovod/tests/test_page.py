"""docs/horovod.md is true: what it says is not there is absent, or an error that says so, and the rest works."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import wiresum.horovod
import wiresum.horovod.torch as hvd
from wiresum.horovod.torch import mpi_ops
from wiresum_lab.ranks.cluster import runs_in

from . import test_collectives as collectives
from . import test_devices as devices
from . import test_objects as objects
from . import test_optimizer as optimizer

REPOSITORY = Path(__file__).resolve().parents[3]
PAGE = (REPOSITORY / "docs/horovod.md").read_text()


def compresses(rank: int, size: int) -> None:
    class Halved(hvd.Compression.none):  # type: ignore[misc,name-defined]
        @staticmethod
        def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, None]:
            return tensor / 2, None

    for compression, expected in ((hvd.Compression.none, 1.0), (hvd.Compression.fp16, 1.0), (Halved, 0.5)):
        assert hvd.allreduce(torch.ones(1), compression=compression).item() == expected


def says_what_is_built(rank: int, size: int) -> None:
    assert hvd.gloo_built() and not (hvd.mpi_built() or hvd.nccl_built() or hvd.cuda_built() or hvd.rocm_built())


def has_no_adasum(rank: int, size: int) -> None:
    with pytest.raises(hvd.HorovodInternalError, match=r"Adasum is not supported.* Use op=Average"):
        hvd.allreduce(torch.ones(1), op=hvd.Adasum)
    optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"Adasum is not supported.* Use op=Average"):
        hvd.DistributedOptimizer(optimizer, op=hvd.Adasum)


def is_not_elastic(rank: int, size: int) -> None:
    for call in (hvd.elastic.run, hvd.elastic.State, hvd.elastic.TorchState, hvd.elastic.ElasticSampler):
        with pytest.raises(NotImplementedError, match=r"elastic training: .* fixed number .*--max-restarts"):
            call(print)


def has_no_timeline(rank: int, size: int) -> None:
    for call in (lambda: hvd.start_timeline("file"), hvd.stop_timeline):
        with pytest.raises(NotImplementedError, match="there is no timeline"):
            call()


def has_no_other_frameworks(rank: int, size: int) -> None:
    for name in ("tensorflow", "keras", "mxnet"):
        assert importlib.util.find_spec(f"wiresum.horovod.{name}") is None


def has_no_launcher(rank: int, size: int) -> None:
    for name in ("spark", "ray", "run", "runner"):
        assert importlib.util.find_spec(f"wiresum.horovod.{name}") is None
        assert not hasattr(wiresum.horovod, name)


def has_no_basics_in_mpi_ops(rank: int, size: int) -> None:
    basics = ("init", "shutdown", "is_initialized", "rank", "size", "local_rank", "cross_size", "is_homogeneous")
    assert all(hasattr(hvd, name) and not hasattr(mpi_ops, name) for name in basics)
    assert hvd.mpi_ops is mpi_ops


SHOWN_BY: dict[str, tuple[Callable[..., None], ...]] = {
    "`init`, `shutdown`": (collectives.test_shutdown_reaches_the_other_ranks_and_init_works_again,),
    "`allreduce`": (collectives.test_every_type_and_operation, collectives.test_gradients_flow_through_collectives),
    "`allgather`": (collectives.test_shapes_of_all_kinds, collectives.test_gradients_flow_through_collectives),
    "`sparse_allreduce_async`": (optimizer.test_sparse_gradients,),
    "`DistributedOptimizer`": (
        optimizer.test_ranks_train_as_one_process_on_all_rows,
        optimizer.test_sparse_gradients,
        optimizer.test_a_scheduler_may_be_made_before_the_optimizer_is_distributed,
        optimizer.test_step_hooks_and_what_users_put_around_methods_see_each_step_once,
        optimizer.test_parameters_that_are_added_later_are_reduced,
        optimizer.test_parameters_that_are_unfrozen_or_slipped_in_later_are_reduced,
        optimizer.test_a_rank_without_a_token_takes_part_in_a_sparse_step,
    ),
    "`broadcast_parameters`": (optimizer.test_broadcasts_give_all_ranks_the_roots_state,),
    "`broadcast_object`": (objects.test_lambdas_local_classes_and_tensors_arrive,),
    "`join`": (collectives.test_a_rank_without_data_joins_and_adds_zeros,),
    "`ProcessSet`": (collectives.test_process_sets_are_jobs_of_their_own,),
    "`SyncBatchNorm`": (optimizer.test_synchronized_batch_norm_equals_that_of_the_whole_batch,),
    "tensors on a GPU": (devices.test_tensors_of_a_device_are_copied_to_host_memory_and_back,),
    "(not in Horovod) `stats`": (collectives.test_sums_are_done_by_the_switch,),
}
"""The tests of what a row of the page's table says, by how the row begins."""
CHECKS: dict[str, Callable[[int, int], None]] = {
    "`Compression.none`": compresses,
    "`mpi_built`": says_what_is_built,
    "Adasum": has_no_adasum,
    "`elastic`": is_not_elastic,
    "`start_timeline`": has_no_timeline,
    "`horovod.tensorflow`": has_no_other_frameworks,
    "`horovod.spark`": has_no_launcher,
    "`hvd.mpi_ops.rank`": has_no_basics_in_mpi_ops,
}
"""The checks that no other test has, by how the row of the table begins."""


def rows() -> list[str]:
    section = PAGE.split("\n## What is supported\n")[1].split("\n## ")[0]
    return [line.strip("| ") for line in section.splitlines() if line.startswith("|")][2:]


def test_every_row_of_the_table_has_a_test_and_every_test_a_row() -> None:
    for row in rows():
        (begin,) = (begin for begin in (*SHOWN_BY, *CHECKS) if row.startswith(begin))
        is_absent = begin in CHECKS and CHECKS[begin].__name__.startswith(("has_no_", "is_not_"))
        assert ("not there" in row) == is_absent, row
    assert len(rows()) == len(SHOWN_BY) + len(CHECKS)


@pytest.mark.parametrize("check", CHECKS)
@runs_in("trio")
def test_a_row_of_the_table_is_true(rank: int, size: int, check: str) -> None:
    CHECKS[check](rank, size)


def test_commands_name_files_by_their_paths_in_the_repository() -> None:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    commands = "".join(text for language, text in blocks if not language)
    named = re.findall(r"\S+\.py\b", commands)
    assert named and all((REPOSITORY / name).is_file() for name in named)
