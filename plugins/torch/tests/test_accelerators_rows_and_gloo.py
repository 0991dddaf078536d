"""Tensors on an accelerator that are not cut into pieces: sparse ones, and tensors that go through Gloo. Further tests
are of the ways that calls took, and of default devices. test_accelerators.py says what the accelerator is."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
import torch
import torch.distributed as dist

import wiresum.torch
from wiresum_lab.doubles.device import BUILD_TIMEOUT_S
from wiresum_lab.processes import wait_until
from wiresum_lab.ranks.cluster import runs_in
from wiresum_lab.ranks.cluster_worker import implementation
from wiresum_lab.ranks.on_device import bits, device, hold, keep_busy, started, values

pytestmark = [pytest.mark.usefixtures("compiled"), pytest.mark.timeout(BUILD_TIMEOUT_S)]


def scattered(rank: int, on: torch.device, rows: int = 40) -> torch.Tensor:
    """A sparse tensor, some of whose keys are repeated."""
    keys = torch.randint(0, 100, (1, rows), generator=torch.Generator().manual_seed(rank), device="cpu")
    filled = values(rows * 8, rank).reshape(rows, 8)
    return torch.sparse_coo_tensor(keys.to(on), filled.to(on), (100, 8), check_invariants=False)


@runs_in("duo")
def test_sparse_tensors_are_summed_in_the_network_with_the_bits_of_the_cpu(rank: int, size: int) -> None:
    before = wiresum.torch.stats()
    for rows in (40, 0, 2000):
        expected, found = scattered(rank, torch.device("cpu"), rows), scattered(rank, device(), rows)
        for tensor in (expected, found):
            dist.all_reduce(tensor)
        assert found.device == device() and found.is_coalesced()
        assert torch.equal(bits(found.to_dense()), bits(expected.to_dense()))
        assert torch.equal(found.indices().cpu(), expected.indices())
    after = wiresum.torch.stats()
    assert after.collectives_network["all_reduce"] == before.collectives_network["all_reduce"] + 6
    assert after.collectives_gloo == before.collectives_gloo
    assert after.calls_by_way - before.calls_by_way == {"copied": 3, "accelerator": 3}


@runs_in("duo")
def test_statistics_say_which_way_calls_took(rank: int, size: int) -> None:
    before = wiresum.torch.stats()
    dist.all_reduce(torch.ones(10))
    dist.broadcast(torch.ones(20), src=0)
    dist.all_reduce(torch.ones(4, 5).t())
    dist.all_reduce(torch.ones(30, device=device()))
    dist.all_reduce(torch.ones(4, 5, device=device()).t())
    dist.all_reduce(torch.ones(10_000, dtype=torch.float64, device=device()))
    after = wiresum.torch.stats()
    calls, carried = after.calls_by_way - before.calls_by_way, after.bytes_by_way - before.bytes_by_way
    assert calls == {"in place": 2, "copied": 1, "accelerator": 2, "gloo": 1}
    assert carried == {"in place": 120, "copied": 80, "accelerator": 200, "gloo": 80_000}


@runs_in("duo")
def test_a_sum_of_sparse_tensors_reads_what_its_stream_writes_and_is_ordered_before_what_follows(
    rank: int, size: int
) -> None:
    keys, rows = torch.tensor([[rank, 5]]).to(device()), torch.zeros(2, 4, device=device())
    tensor = torch.sparse_coo_tensor(keys, rows, (9, 4), check_invariants=False)
    seen = torch.zeros(3, 4, device=device())
    torch.accelerator.synchronize()
    own = torch.Stream(device=device())
    with own:
        release = hold()
        rows.fill_(rank + 1.0)
        written = torch.accelerator.current_stream().record_event()
        work = started(dist.all_reduce(tensor, async_op=True))
        assert not written.query() and not work.is_completed()
        release()
        work.wait()
        seen.copy_(tensor._values())
    own.synchronize()
    assert tensor._indices().cpu().tolist() == [[0, 1, 5]]
    assert (seen.cpu() == torch.tensor([[1.0], [2.0], [3.0]])).all()


@runs_in("duo")
def test_a_future_of_sparse_tensors_is_ordered_after_the_copies_back(rank: int, size: int) -> None:
    tensor = scattered(rank, device())
    seen = torch.zeros(100, 8, device=device())
    work = started(dist.all_reduce(tensor, async_op=True))
    dense = work.get_future().then(lambda done: seen.copy_(done.value()[0].to_dense()))
    dense.wait()
    expected = scattered(0, torch.device("cpu")).to_dense() + scattered(1, torch.device("cpu")).to_dense()
    torch.testing.assert_close(seen.cpu(), expected)


@runs_in("duo")
def test_a_default_device_does_not_move_what_the_backend_has_on_the_host(rank: int, size: int) -> None:
    with torch.device(device()):
        dense, other = torch.full((10,), rank + 1.0), torch.full((10,), rank + 1.0, dtype=torch.float64)
        dist.all_reduce(dense)
        dist.all_reduce(other)
        rows = scattered(rank, torch.device("cpu"))
        dist.all_reduce(rows)
        group = dist.new_group([0, 1])
        dist.all_reduce(torch.ones(10, device=device()), group=group)
        ring = implementation(group).network._pipeline._ring  # type: ignore[union-attr]
        assert ring is not None and ring.memory.is_cpu
        dist.destroy_process_group(group)
    assert (dense.cpu() == 3.0).all() and (other.cpu() == 3.0).all()


# What goes through Gloo.


@runs_in("duo")
def test_what_gloo_carries_is_read_after_its_stream_has_written_it_and_is_there_after_wait(
    rank: int, size: int
) -> None:
    tensor = torch.zeros(10_000, dtype=torch.float64, device=device())
    torch.accelerator.synchronize()
    own = torch.Stream(device=device())
    with own:
        keep_busy()
        tensor.fill_(rank + 1.0)
        work = started(dist.all_reduce(tensor, op=dist.ReduceOp.AVG, async_op=True))
        work.wait()
    with torch.Stream(device=device()):  # a stream ordered with no other
        assert (tensor.cpu() == 1.5).all()


@runs_in("duo")
def test_what_gloo_carries_is_there_when_the_work_is_completed(rank: int, size: int) -> None:
    tensor = torch.full((10_000,), rank + 1.0, dtype=torch.float64, device=device())
    work = started(dist.all_reduce(tensor, op=dist.ReduceOp.AVG, async_op=True))
    keep_busy()  # the default stream, on which the result is copied back
    wait_until(work.is_completed, "the work is completed")
    with torch.Stream(device=device()):
        assert (tensor.cpu() == 1.5).all()


def sends_to_gloo_and_fails(rank: int, size: int) -> str:
    tensor = torch.full((10_000,), rank + 1.0, dtype=torch.float64, device=device())
    options = dist.AllreduceOptions()
    options.timeout = datetime.timedelta(seconds=1)
    if rank == 0:
        with pytest.raises(dist.DistBackendError) as raised:
            implementation().allreduce([tensor], options).wait()
        assert (tensor.cpu() == 1.0).all()
        return str(raised.value)
    return ""


def test_a_failed_call_of_gloo_leaves_the_tensor_as_it_was(make_duo: Any) -> None:
    assert "Timed out waiting 1 s" in make_duo().run(sends_to_gloo_and_fails)[0]
