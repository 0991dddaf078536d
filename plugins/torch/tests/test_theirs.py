"""A selection of PyTorch's own tests of its backends, run with this one (theirs.py); all of them would take minutes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from wiresum_lab.processes import SwitchProcess
from wiresum_lab.ranks.cluster import Cluster

pytest.importorskip("expecttest", reason="PyTorch's own tests need it")

from . import theirs

REFUSED = {
    # DDP asks for the backend's name, and PyTorch calls every backend that it does not know "custom".
    "test_ddp_logging_data_cpu": "'custom' != 'wiresum'",
}
"""What does not pass, and what it says."""

SELECTED = [
    "test_DistributedDataParallelCPU",
    "test_all_gather_coalesced_full_group",
    "test_all_gather_complex",
    "test_all_gather_object_subgroup",
    "test_all_reduce_coalesced_full_group_sum",
    "test_all_reduce_complex_unsupported_ops",
    "test_all_reduce_full_group_max",
    "test_all_reduce_sum_async",
    "test_barrier_full_group",
    "test_batch_isend_irecv_gloo_tags",
    "test_broadcast_full_group",
    "test_ddp_create_graph",
    "test_destroy_full_group",
    "test_gather_object",
    "test_get_future",
    "test_grads_same_across_ranks_with_no_sync",
    "test_isend_torch_profiler",
    "test_new_subgroups_with_group_param",
    "test_reduce_sum_twice",
    "test_scatter_object_list",
    "test_send_recv_any_source_torch_profiler",
    "test_sparse_all_reduce_sum",
    "test_static_graph_api_cpu",
]


@pytest.fixture(scope="module")
def workers(compiled: None, switch: SwitchProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(switch, theirs.SIZE, tmp_path_factory.mktemp("theirs"), grouped=False) as cluster:
        yield cluster


@pytest.mark.slow
@pytest.mark.parametrize("name", SELECTED)
def test_pytorchs_own_test_passes(workers: Cluster, tmp_path: Path, name: str) -> None:
    assert workers.run(theirs.run, name, str(tmp_path)) == [""] * theirs.SIZE, "it was skipped"


@pytest.mark.parametrize("name", REFUSED)
def test_a_known_failure_still_fails(workers: Cluster, tmp_path: Path, name: str) -> None:
    with pytest.raises(AssertionError, match=REFUSED[name]):
        workers.run(theirs.run, name, str(tmp_path))
