"""PyTorch's own tests of its backends, run with this one (theirs.py). The processes start once for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from wiresum_lab.processes import SwitchProcess
from wiresum_lab.ranks.cluster import Cluster

pytest.importorskip("expecttest", reason="PyTorch's own tests need it")

from . import theirs

PREPARED_S_MAX = 300.0

REFUSED = {
    # DDP asks for the backend's name, and PyTorch calls every backend that it does not know "custom".
    "test_ddp_logging_data_cpu": "'custom' != 'wiresum'",
}
"""Tests that do not pass, and the text of each error."""

SELECTED = [
    "test_Backend_enum_class",
    "test_DistributedDataParallelCPU",
    "test_DistributedDataParallelCPU_grad_is_view",
    "test_DistributedDataParallel_requires_grad",
    "test_accumulate_gradients_no_sync",
    "test_accumulate_gradients_no_sync_allreduce_hook",
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook",
    "test_accumulate_gradients_no_sync_grad_is_view",
    "test_all_gather",
    "test_all_gather_coalesced_complex",
    "test_all_gather_coalesced_full_group",
    "test_all_gather_coalesced_simple",
    "test_all_gather_coalesced_with_empty",
    "test_all_gather_complex",
    "test_all_gather_full_group",
    "test_all_gather_object_default_pg",
    "test_all_gather_object_subgroup",
    "test_all_reduce_coalesced_full_group_max",
    "test_all_reduce_coalesced_full_group_min",
    "test_all_reduce_coalesced_full_group_product",
    "test_all_reduce_coalesced_full_group_sum",
    "test_all_reduce_coalesced_max",
    "test_all_reduce_coalesced_max_complex_unsupported",
    "test_all_reduce_coalesced_min",
    "test_all_reduce_coalesced_product",
    "test_all_reduce_coalesced_sum",
    "test_all_reduce_complex_unsupported_ops",
    "test_all_reduce_full_group_max",
    "test_all_reduce_full_group_min",
    "test_all_reduce_full_group_product",
    "test_all_reduce_full_group_sum",
    "test_all_reduce_max",
    "test_all_reduce_min",
    "test_all_reduce_product",
    "test_all_reduce_sum",
    "test_all_reduce_sum_async",
    "test_all_reduce_sum_complex",
    "test_barrier",
    "test_barrier_full_group",
    "test_barrier_timeout_full_group",
    "test_batch_isend_irecv_gloo",
    "test_batch_isend_irecv_gloo_tags",
    "test_broadcast",
    "test_broadcast_full_group",
    "test_ddp_create_graph",
    "test_destroy_full_group",
    "test_destroy_group",
    "test_dump_DDP_relevant_env_vars",
    "test_gather",
    "test_gather_checks",
    "test_gather_full_group",
    "test_gather_object",
    "test_gather_object_subgroup",
    "test_get_backend",
    "test_get_future",
    "test_get_rank",
    "test_get_rank_size_full_group",
    "test_get_rank_size_group",
    "test_grads_same_across_ranks_with_no_sync",
    "test_irecv",
    "test_isend",
    "test_isend_autograd_profiler",
    "test_isend_torch_profiler",
    "test_monitored_barrier_gloo",
    "test_monitored_barrier_gloo_rank_0_timeout",
    "test_monitored_barrier_gloo_subgroup",
    "test_new_subgroups_with_group_param",
    "test_reduce_full_group_max",
    "test_reduce_full_group_min",
    "test_reduce_full_group_product",
    "test_reduce_full_group_sum",
    "test_reduce_max",
    "test_reduce_min",
    "test_reduce_product",
    "test_reduce_sum",
    "test_reduce_sum_twice",
    "test_scatter",
    "test_scatter_checks",
    "test_scatter_complex",
    "test_scatter_full_group",
    "test_scatter_object_list",
    "test_send_recv",
    "test_send_recv_any_source",
    "test_send_recv_any_source_autograd_profiler",
    "test_send_recv_any_source_torch_profiler",
    "test_send_recv_autograd_profiler",
    "test_send_recv_torch_profiler",
    "test_send_recv_with_tag",
    "test_send_recv_with_tag_autograd_profiler",
    "test_send_recv_with_tag_torch_profiler",
    "test_sparse_all_reduce_sum",
    "test_static_graph_api_cpu",
]
"""Tests that pass here; with REFUSED, all that pass with Gloo."""


@pytest.fixture(scope="module")
def workers(compiled: None, switch: SwitchProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(switch, theirs.SIZE, tmp_path_factory.mktemp("theirs"), grouped=False) as cluster:
        cluster.run(theirs.prepare, timeout_s=PREPARED_S_MAX)
        yield cluster


@pytest.mark.nightly
@pytest.mark.parametrize("name", SELECTED)
def test_pytorchs_own_test_passes(workers: Cluster, tmp_path: Path, name: str) -> None:
    assert workers.run(theirs.run, name, str(tmp_path)) == [""] * theirs.SIZE, "it was skipped"


@pytest.mark.nightly
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU for CUDA here")
@pytest.mark.parametrize("name", sorted(theirs.ON_CUDA))
def test_pytorchs_own_test_passes_on_cuda(workers: Cluster, tmp_path: Path, name: str) -> None:
    assert workers.run(theirs.run, name, str(tmp_path)) == [""] * theirs.SIZE, "it was skipped"


@pytest.mark.nightly
@pytest.mark.parametrize("name", REFUSED)
def test_a_known_failure_still_fails(workers: Cluster, tmp_path: Path, name: str) -> None:
    with pytest.raises(AssertionError, match=REFUSED[name]):
        workers.run(theirs.run, name, str(tmp_path))
