"""Asynchronous collectives: works, futures, time-outs, and the lifetime of memory."""

from __future__ import annotations

import datetime
import gc
import os
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager

import wiresum.torch
from wiresum.agent.session import Session
from wiresum.agent.statistics import Moved
from wiresum.torch.work import NetworkWork
from wiresum_lab.processes import wait_until
from wiresum_lab.ranks.cluster import runs_in
from wiresum_lab.ranks.cluster_worker import implementation, world


@pytest.mark.usefixtures("work_exceptions")
@runs_in("pair")
def test_several_in_flight_may_be_awaited_in_any_order(rank: int, size: int) -> None:
    tensors = [torch.full((1 + 997 * k,), float(k + rank)) for k in range(40)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for k, (tensor, work) in reversed(list(enumerate(zip(tensors, works, strict=True)))):
        assert work is not None and work.wait()
        if not tensor.is_cpu:  # complete when the device has reached the call
            torch.accelerator.synchronize()
        assert work.is_completed() and work.is_success() and work.exception() is None
        assert work.result()[0] is tensor
        assert (tensor == sum(k + r for r in range(size))).all()


@runs_in("pair")
def test_polling_finds_strided_results_in_place(rank: int, size: int) -> None:
    tensor = torch.ones(1000, 2)[:, 0]
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    wait_until(work.is_completed, "the work is completed")
    assert (tensor == size).all()


@runs_in("pair")
def test_a_future_resolves_without_a_wait(rank: int, size: int) -> None:
    tensor = torch.full((5000,), float(rank))
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    future = work.get_future()
    assert isinstance(future, torch._C.Future)
    doubled = future.then(lambda done: done.value()[0] * 2)
    assert torch.equal(doubled.wait(), torch.full((5000,), 2.0 * sum(range(size))))
    assert future.wait()[0] is tensor and future.done()
    late = work.get_future()
    assert late.done() and late.value()[0] is tensor


@runs_in("pair")
def test_a_callback_may_wait_for_another_collective(rank: int, size: int) -> None:
    def reduce_again(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        tensor = done.value()[0]
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        return work.get_future().wait()[0]

    tensor = torch.ones(3000)
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    assert (work.get_future().then(reduce_again).wait() == size * size).all()


@runs_in("pair")
def test_a_dropped_work_keeps_its_tensors_until_it_is_done(rank: int, size: int) -> None:
    for round_ in range(20):
        dist.all_reduce(torch.full((200_000,), float(round_)), async_op=True)
        gc.collect(0)
        torch.full((200_000,), -1.0)  # this tensor would reuse the memory if it had been freed
    tensor = torch.ones(100)
    dist.all_reduce(tensor)
    assert (tensor == size).all()
    wait_until(lambda: not implementation().network._pending, "nothing keeps works that nobody waits for")


@runs_in("pair")
def test_a_wait_that_times_out_leaves_the_collective_running(rank: int, size: int) -> None:
    tensor = torch.ones(10)
    if rank == 0:
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        said = r"^rank 0: Timed out waiting 0.05 s for all_reduce\(SUM, float32\[10\]\) \(10 elements\), .* goes on"
        with pytest.raises(TimeoutError, match=said) as caught:
            work.wait(datetime.timedelta(milliseconds=50))
        assert isinstance(caught.value, dist.DistBackendError)
        dist.send(tensor * 0, 1)
        assert work.wait()
    else:
        dist.recv(torch.zeros(10), 0)
        dist.all_reduce(tensor)
    assert (tensor == size).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["network", "gloo"])
@runs_in("pair")
def test_a_result_that_cannot_be_stored_ends_the_future(rank: int, size: int, dtype: torch.dtype) -> None:
    once = torch.ones(1, dtype=dtype).expand(10_000)  # PyTorch does not write to such a tensor
    work = dist.all_reduce(once, async_op=True)
    assert work is not None
    future = work.get_future()
    wait_until(future.done, "the future ends")
    for wait in (future.wait, work.wait):
        with pytest.raises(RuntimeError, match="single memory location"):
            wait()


@runs_in("pair")
def test_methods_of_the_group_take_bare_arguments(rank: int, size: int) -> None:
    group = world()
    tensor = torch.ones(4)
    group.allreduce(tensor).wait()
    group.allreduce([tensor], dist.ReduceOp.SUM).wait()
    assert tensor.tolist() == [float(size**2)] * 4
    group.broadcast(tensor * 0 + rank, root=1).wait()
    outputs = [torch.zeros(4) for _ in range(size)]
    group.allgather(outputs, tensor).wait()
    group.reduce(tensor, 0).wait()
    group.barrier().wait()
    assert group.rank() == rank and group.size() == size and dist.get_backend(group) == "wiresum"


@runs_in("pair")
def test_coalescing_manager_on_a_device(rank: int, size: int) -> None:
    tensors = [torch.full((100,), float(k)) for k in range(3)]
    with _coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        for tensor in tensors:
            dist.broadcast(tensor.add_(rank), src=0, async_op=True)
    manager.wait()
    assert [tensor[0].item() for tensor in tensors] == [0.0, 1.0, 2.0]
    group = world()
    group._start_coalescing(torch.device("cpu"))
    for tensor in tensors:
        group.allreduce([tensor])
    work = group._end_coalescing(torch.device("cpu"))
    assert [tensor[0].item() for tensor in work.get_future().wait()] == [0.0, 2.0, 4.0]


@runs_in("pair")
def test_statistics_count_network_and_gloo_calls(rank: int, size: int) -> None:
    before = wiresum.torch.stats()
    dist.all_reduce(torch.ones(100_000))
    dist.broadcast(torch.ones(1000), src=0)
    dist.all_reduce(torch.ones(10_000, dtype=torch.float64))
    after = wiresum.torch.stats()
    assert after.bytes_reduced - before.bytes_reduced == 400_000
    assert after.bytes_copied - before.bytes_copied == 4000
    assert after.collectives_network["all_reduce"] - before.collectives_network["all_reduce"] == 1
    assert after.collectives_gloo["all_reduce"] - before.collectives_gloo["all_reduce"] == 1
    assert before.network is not None and after.network is not None
    assert after.network.bytes_sent - before.network.bytes_sent > 400_000
    assert after.job and after.service == os.environ["WIRESUM_SWITCH"] and after.moved is None
    moved = Moved(1.5, "its switch is gone")
    with mock.patch.object(Session, "moved", moved):
        assert wiresum.torch.stats().moved is moved


@runs_in("pair")
def test_a_time_limit_is_for_all_collectives_of_a_group_together(rank: int, size: int) -> None:
    first, second = torch.ones(10), torch.ones(20)
    if rank != 0:
        dist.all_reduce(first)
        dist.recv(torch.zeros(1), 0)
        dist.all_reduce(second)
    else:
        world()._start_coalescing(torch.device("cpu"))
        earlier = world().allreduce([first])
        world().allreduce([second])
        group = world()._end_coalescing(torch.device("cpu"))
        earlier.wait()
        with pytest.raises(TimeoutError, match=r"Timed out waiting 0.05 s for all_reduce\(SUM, float32\[20\]\)"):
            group.wait(datetime.timedelta(milliseconds=50))
        dist.send(torch.zeros(1), 1)
        assert group.wait(datetime.timedelta.max)
    assert (first == size).all() and (second == size).all()


def test_a_time_limit_is_for_all_operations_of_a_work_together() -> None:
    now, limits = [100.0], []

    class Slow:
        """An operation that takes three seconds."""

        error = None

        def wait(self, timeout_s: float) -> None:
            limits.append(timeout_s)
            now[0] += min(timeout_s, 3.0)
            if timeout_s < 3.0:
                raise TimeoutError

    late = NetworkWork(
        [],
        [],
        late=lambda _, waited_s: TimeoutError(waited_s),
        forget=lambda _: None,
        translate=lambda error: error,
        clock=lambda: now[0],
    )
    for _ in range(2):
        late.add(Slow())  # type: ignore[arg-type]
    with pytest.raises(TimeoutError) as caught:
        late.wait(datetime.timedelta(seconds=5))
    assert limits == [5.0, 2.0] and caught.value.args == (5.0,)
