"""Tensors on the accelerator that PyTorch finds, or on the device for tests (wiresum_lab.doubles.device), whose streams
are as asynchronous as a GPU's."""

from __future__ import annotations

import datetime
import hashlib
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.nn.parallel import DistributedDataParallel

import wiresum.torch
from wiresum.torch.accelerators import RING_BYTES, Pipeline
from wiresum.torch.pieces import PIECE_BYTES, WHOLE_BYTES_MAX
from wiresum_lab.doubles.device import BUILD_TIMEOUT_S
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import wait_until
from wiresum_lab.ranks.cluster import Cluster, await_marks, runs_in
from wiresum_lab.ranks.cluster_worker import implementation
from wiresum_lab.ranks.on_device import bits, contexts, device, hold, keep_busy, started, values

LONG = 3 * PIECE_BYTES // 4 + 777
"""The number of four-byte elements in three pieces."""

# The device is compiled here if PyTorch is newer than the setup.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("compiled"), pytest.mark.timeout(BUILD_TIMEOUT_S)]


def module() -> Any:
    return torch.get_device_module(device())


def pipeline() -> Pipeline:
    network = implementation().network
    assert network is not None
    return network._pipeline


# What a call waits for, and what it does not.


@runs_in("duo")
def test_a_call_returns_before_its_stream_has_come_to_it_and_sums_what_the_stream_has_written(
    rank: int, size: int
) -> None:
    tensor = torch.zeros(1000, device=device())
    dist.all_reduce(tensor.fill_(0.0))  # the first call of a process makes streams, which waits for CUDA
    release = hold()
    tensor.fill_(rank + 1.0)
    written = torch.accelerator.current_stream().record_event()
    work = started(dist.all_reduce(tensor, async_op=True))
    assert not written.query() and not work.is_completed()
    release()
    work.wait()
    assert (tensor.cpu() == 3.0).all()


@runs_in("duo")
def test_wait_orders_the_callers_stream_and_does_not_wait_for_the_device(rank: int, size: int) -> None:
    for elements in (1000, LONG):
        tensor = torch.full((elements,), rank + 1.0, device=device())
        seen = torch.zeros_like(tensor)
        with pipeline().streams(device())[1]:
            release = hold()
        work = started(dist.all_reduce(tensor, async_op=True))
        work.wait()
        assert not work.is_completed()  # the copies back are behind what holds their stream
        release()
        seen.copy_(tensor)
        tensor.add_(1.0)
        assert (seen.cpu() == 3.0).all() and (tensor.cpu() == 4.0).all()
        assert work.is_completed() and work.is_success()


@runs_in("duo")
def test_a_wait_with_a_time_out_of_its_own_is_for_all_pieces_together(rank: int, size: int) -> None:
    tensor = torch.full((LONG,), rank + 1.0, device=device())
    release = hold()
    work = started(dist.all_reduce(tensor, async_op=True))
    with pytest.raises(
        wiresum.torch.WiresumTimeoutError, match=r"Timed out waiting 0.01 s for .* the collective goes on"
    ):
        work.wait(datetime.timedelta(seconds=0.01))
    release()
    work.wait(datetime.timedelta(seconds=PATIENCE_S))
    assert (tensor.cpu() == 3.0).all()


@runs_in("duo")
def test_a_future_and_its_callbacks_are_ordered_after_the_copies_back(rank: int, size: int) -> None:
    tensor = torch.full((1000,), rank + 1.0, device=device())
    seen, later = torch.zeros_like(tensor), torch.zeros_like(tensor)
    with pipeline().streams(device())[1]:
        keep_busy()
    future = started(dist.all_reduce(tensor, async_op=True)).get_future()
    chained = future.then(lambda done: later.copy_(done.value()[0]))
    assert future.wait()[0] is tensor
    seen.copy_(tensor)
    assert (seen.cpu() == 3.0).all()
    chained.wait()
    assert (later.cpu() == 3.0).all()


@runs_in("duo")
def test_a_callback_may_wait_for_another_collective(rank: int, size: int) -> None:
    def sum_again(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        again: torch.Tensor = started(dist.all_reduce(done.value()[0], async_op=True)).get_future().wait()[0]
        return again

    for elements in (1000, LONG):
        tensor = torch.ones(elements, device=device())
        future = started(dist.all_reduce(tensor, async_op=True)).get_future()
        assert (future.then(sum_again).wait().cpu() == size * size).all()


@runs_in("duo")
def test_the_result_is_not_written_before_the_callers_stream_has_read_what_was_there(rank: int, size: int) -> None:
    tensor = torch.full((1000,), rank + 1.0, device=device())
    before = torch.zeros_like(tensor)
    if rank == 1:  # rank 1 has nothing to copy in, so nothing else to wait for
        keep_busy()
    before.copy_(tensor)
    dist.broadcast(tensor, src=0)
    assert (before.cpu() == rank + 1.0).all() and (tensor.cpu() == 1.0).all()


@runs_in("duo")
def test_calls_from_another_stream_are_ordered_by_that_stream(rank: int, size: int) -> None:
    tensor, seen = torch.zeros(1000, device=device()), torch.zeros(1000, device=device())
    torch.accelerator.synchronize()
    own = torch.Stream(device=device())
    with own:
        keep_busy()
        tensor.fill_(rank + 1.0)
        dist.all_reduce(tensor)
        seen.copy_(tensor)
    own.synchronize()
    assert (seen.cpu() == 3.0).all()


def sum_and_drop(rank: int, *, dense: bool) -> None:
    tensor = torch.full((5000, 2), rank + 1.0, device=device())
    if not dense:
        tensor = tensor.t()
    with pipeline().streams(device())[1]:
        keep_busy()
    work = started(dist.all_reduce(tensor, async_op=True))
    kept = weakref.ref(tensor)
    del tensor, work
    wait_until(lambda: kept() is None, "nothing has a tensor that was dropped and summed")


@runs_in("duo")
def test_a_tensor_that_is_dropped_keeps_its_memory_until_it_has_been_copied(rank: int, size: int) -> None:
    for dense in (True, False):
        sum_and_drop(rank, dense=dense)
        torch.accelerator.current_stream().synchronize()  # the stream has come to where the memory was freed
        others = [torch.full((5000, 2), 7.0, device=device()) for _ in range(4)]
        torch.accelerator.synchronize()
        assert all((other.cpu() == 7.0).all() for other in others)


# Results.


def digests(rank: int, size: int) -> list[str]:
    """Digests of sums of long tensors, on the accelerator if there is one."""
    on = device() if torch.accelerator.is_available() else torch.device("cpu")
    found = []
    for dtype in (torch.float32, torch.bfloat16, torch.int32):
        tensor = values(LONG + 4096 * 360, rank, dtype).to(on)
        dist.all_reduce(tensor)
        found.append(hashlib.sha256(bits(tensor).numpy().tobytes()).hexdigest())
    tensors = [values(elements, rank).to(on) for elements in (LONG // 2, 10, 3, LONG // 3, 300_000)]
    dist.all_reduce_coalesced(tensors)
    return [*found, *(hashlib.sha256(bits(tensor).numpy().tobytes()).hexdigest() for tensor in tensors)]


def test_sums_in_pieces_have_the_bits_of_sums_of_the_whole(pair: Cluster, duo: Cluster) -> None:
    if torch.accelerator.is_available():
        pytest.skip("no group here sums the whole: every worker has an accelerator")
    (whole, _), (pieces, other) = pair.run(digests), duo.run(digests)
    assert whole == pieces == other


@runs_in("duo")
def test_workers_may_have_the_tensor_on_different_devices(rank: int, size: int) -> None:
    for elements in (3, 5000, WHOLE_BYTES_MAX // 4, WHOLE_BYTES_MAX // 4 + 1, LONG):
        for on in (device(), torch.device("cpu")) if rank else (torch.device("cpu"), device()):
            tensor = values(elements, rank).to(on)
            dist.all_reduce(tensor)
            parts = [torch.empty_like(tensor) for _ in range(size)]
            dist.all_gather(parts, tensor)
            assert torch.equal(bits(parts[0]), bits(parts[1]))
            torch.testing.assert_close(tensor.cpu(), values(elements, 0) + values(elements, 1))


@runs_in("duo")
def test_sums_on_an_accelerator_do_not_go_direct(rank: int, size: int) -> None:
    direct = implementation().direct
    before = direct.calls
    dist.all_reduce(torch.ones(10, device=device()))
    assert direct.calls == before
    network = implementation().network
    assert network is not None
    network._order.drain(PATIENCE_S)  # its thread may not have ended the step yet
    dist.all_reduce(torch.ones(10))
    dist.all_reduce(torch.ones(WHOLE_BYTES_MAX // 4))
    assert direct.calls == before + 2
    dist.all_reduce(torch.ones(WHOLE_BYTES_MAX // 4 + 1))  # cut, as at a worker with the tensor on the device
    assert direct.calls == before + 2


def every_collective(rank: int, size: int, on: torch.device) -> list[torch.Tensor]:
    """The results of all collectives that the backend offers."""

    def mine(elements: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return values(elements, 10 * rank + 1, dtype).to(on)

    results: list[torch.Tensor] = []

    def keep(*tensors: torch.Tensor) -> None:
        results.extend(tensor.cpu() for tensor in tensors)

    for elements in (1, 1003, LONG):
        for operator in (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX):
            for dtype in (torch.float32, torch.int32, torch.float64)[: 1 if elements == LONG else 3]:
                dist.all_reduce(summed := mine(elements, dtype), op=operator)
                keep(summed)
    for dtype in (torch.bool, torch.int64, torch.float64):
        dist.broadcast(spread := (mine(1003) > 0).to(dtype), src=1)
        keep(spread)
    dist.broadcast(spread := mine(LONG), src=0)
    dist.reduce(summed := mine(1003), dst=1)
    keep(spread, *([summed] if rank == 1 else []))
    for elements in (7, LONG):
        dist.all_gather(gathered := [torch.zeros(elements, device=on) for _ in range(size)], mine(elements))
        dist.all_gather_into_tensor(whole := torch.zeros(size * elements, device=on), mine(elements))
        dist.reduce_scatter_tensor(part := torch.zeros(elements, device=on), mine(size * elements))
        dist.reduce_scatter(other := torch.zeros(elements, device=on), list(mine(size * elements).chunk(size)))
        keep(*gathered, whole, part, other)
    strided = torch.stack([mine(1000), mine(1000)], dim=-1)[..., 0]
    last = mine(2 * 3 * 4 * 5).reshape(2, 3, 4, 5).to(memory_format=torch.channels_last)
    leaf = mine(1000).requires_grad_()
    empty = torch.zeros(0, device=on)
    for tensor in (strided, last, leaf, empty):
        dist.all_reduce(tensor)
    keep(strided, last, leaf.detach(), empty)
    partly = mine(20)
    dist.all_reduce_coalesced([partly[10:10], partly[:7], partly[20:]])  # no elements, but an address
    keep(partly)
    with _coalescing_manager(device=on):
        together = [mine(10), mine(2000)]
        for tensor in together:
            dist.all_reduce(tensor)
    dist.barrier()
    keep(*together)
    exchanged = torch.zeros(size * 3, device=on)
    dist.all_to_all_single(exchanged, mine(size * 3))
    gathered = [torch.zeros(5, device=on) for _ in range(size)]
    dist.gather(mine(5), gathered if rank == 0 else None, dst=0)
    dist.scatter(part := torch.zeros(5, device=on), list(mine(10).chunk(2)) if rank == 0 else None, src=0)
    received = torch.zeros(9, device=on)
    dist.send(mine(9), 1) if rank == 0 else dist.recv(received, 0)
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": 0}, {"rank": 1}]
    keep(exchanged, *gathered, part, received)
    return results


@runs_in("duo")
def test_every_collective_gives_the_bits_that_it_gives_on_the_cpu(rank: int, size: int) -> None:
    expected, found = (every_collective(rank, size, on) for on in (torch.device("cpu"), device()))
    assert len(expected) == len(found)
    for number, (on_cpu, on_device) in enumerate(zip(expected, found, strict=True)):
        assert torch.equal(bits(on_cpu), bits(on_device)), (number, on_cpu, on_device)


@runs_in("duo")
def test_more_than_the_pinned_memory_may_be_in_flight(rank: int, size: int) -> None:
    tensors = [torch.full((PIECE_BYTES // 4 + 1000 * k,), float(k + rank), device=device()) for k in range(24)]
    assert sum(tensor.nbytes for tensor in tensors) > 2 * RING_BYTES
    small = [torch.full((3,), float(k + rank), device=device()) for k in range(24)]
    with pipeline().streams(device())[1]:
        keep_busy()
    works = [started(dist.all_reduce(t, async_op=True)) for both in zip(tensors, small, strict=True) for t in both]
    for work in reversed(works):
        work.wait()
    for k, both in enumerate(zip(tensors, small, strict=True)):
        assert all((tensor.cpu() == 2.0 * k + 1.0).all() for tensor in both)
    ring = pipeline()._ring
    assert ring is not None and len(ring.memory) == RING_BYTES
    if hasattr(module(), "pinned_bytes"):
        assert module().pinned_bytes() == RING_BYTES


@runs_in("duo")
def test_several_devices_and_groups_at_once(rank: int, size: int) -> None:
    groups = [None, dist.new_group([0, 1]), dist.new_group([0, 1])]
    works = []
    for k in range(12):
        on = device(k % torch.accelerator.device_count())
        tensor = torch.full((LONG if k % 3 == 0 else 1000,), float(k + rank), device=on)
        works.append((k, tensor, started(dist.all_reduce(tensor, group=groups[k % 3], async_op=True))))
    for k, tensor, work in works:
        work.wait()
        assert (tensor.cpu() == 2.0 * k + 1.0).all()
    for group in groups[1:]:
        dist.destroy_process_group(group)


def trained(rank: int, size: int, on: torch.device) -> torch.Tensor:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(20, 300), torch.nn.ReLU(), torch.nn.Linear(300, 10)).to(on)
    model = DistributedDataParallel(net, bucket_cap_mb=0.01)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(4):
        inputs = values(8 * 20, step).reshape(8, 20)[rank::size].to(on)
        optimiser.zero_grad()
        model(inputs).square().mean().backward()
        optimiser.step()
    return torch.cat([parameter.detach().reshape(-1).cpu() for parameter in model.parameters()])


@runs_in("duo")
def test_ddp_trains_as_on_the_cpu(rank: int, size: int) -> None:
    expected, found = trained(rank, size, torch.device("cpu")), trained(rank, size, device())
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    everybody = [torch.zeros_like(found) for _ in range(size)]
    dist.all_gather(everybody, found)
    assert torch.equal(everybody[0], everybody[1])


@runs_in("duo")
def test_training_without_the_extensions_future_is_ordered_too(rank: int, size: int) -> None:
    """process_group.py hands out the work's own future."""
    network = implementation().network
    assert network is not None
    tensor = torch.full((1000,), rank + 1.0, device=device())
    seen = torch.zeros_like(tensor)
    with pipeline().streams(device())[1]:
        keep_busy()
    options = dist.AllreduceOptions()
    options.asyncOp = True
    future = implementation().allreduce([tensor], options).get_future()
    assert future.wait()[0] is tensor
    seen.copy_(tensor)
    assert (seen.cpu() == 3.0).all()


# What is refused, and what fails.


@runs_in("duo")
def test_calls_in_a_captured_graph_are_refused(rank: int, size: int) -> None:
    tensors = [torch.ones(10, device=device()), torch.ones(10, device=device(), dtype=torch.float64)]
    for tensor in tensors:
        if device().type == "cuda":
            with pytest.raises(RuntimeError, match="captured graph"), torch.cuda.graph(torch.cuda.CUDAGraph()):
                dist.all_reduce(tensor)
        else:
            module().set_capturing(True)
            try:
                with pytest.raises(RuntimeError, match="captured graph"):
                    dist.all_reduce(tensor)
            finally:
                module().set_capturing(False)
    dist.all_reduce(tensors[0])
    assert (tensors[0].cpu() == 2.0).all()


def uses_the_second_device(rank: int, size: int, layout: torch.layout) -> list[bool]:
    if not contexts():
        return []
    torch.accelerator.set_device_index(1)
    on = device(1)
    if layout is torch.sparse_coo:
        tensors = [torch.sparse_coo_tensor(torch.arange(5, device=on)[None], torch.ones(5, device=on), (5,))]
    else:
        tensors = [torch.ones(elements, device=on) for elements in (1000, LONG, RING_BYTES // 2)]
        tensors.append(torch.ones(10_000, device=on, dtype=torch.float64))  # goes through Gloo
    for tensor in tensors:
        dist.all_reduce(tensor)
        (found,) = started(dist.all_reduce(tensor, async_op=True)).get_future().wait()
        assert (found.to_dense().cpu() == size**2).all()
    dist.destroy_process_group()
    return contexts()


@pytest.mark.parametrize("layout", [torch.strided, torch.sparse_coo], ids=str)
def test_nothing_is_made_on_a_device_that_the_program_does_not_use(make_duo: Any, layout: torch.layout) -> None:
    for found in make_duo().run(uses_the_second_device, layout):
        if not found:
            pytest.skip("there are not two devices, or PyTorch does not say what was made there")
        assert found == [False, True]


@runs_in("duo")
def test_tensors_of_one_call_on_several_devices_are_refused(rank: int, size: int) -> None:
    tensor = torch.ones(10, device=device())
    with pytest.raises(ValueError, match=r"must be on one device, not on \['cpu', "):
        dist.all_gather([torch.zeros(10) for _ in range(size)], tensor)


def hangs(rank: int, size: int, folder: Path) -> str:
    tensor = torch.ones(1000, device=device())
    dist.all_reduce(torch.zeros(1, device=device()))  # the first call of a process makes streams, which waits for CUDA
    torch.accelerator.synchronize()
    (folder / f"{rank} has summed").touch()
    await_marks(folder, 2 * size - 1 if rank == 0 else size)  # a worker that is aborted before it has the sum has none
    release = hold(4.0) if rank == 0 else lambda: None
    held = torch.accelerator.current_stream().record_event()
    options = dist.AllreduceOptions()
    options.timeout = datetime.timedelta(seconds=PATIENCE_S if rank else 1)
    options.asyncOp = True
    assert dist.group.WORLD is not None
    work = dist.group.WORLD.allreduce([tensor], options)
    (folder / f"{rank} has called").touch()
    with pytest.raises(dist.DistBackendError) as raised:
        work.wait()
    assert rank == 1 or not held.query()
    assert not work.is_success()
    (folder / str(rank)).touch()
    await_marks(folder, 3 * size)
    with pytest.raises(dist.DistBackendError):
        dist.all_reduce(tensor)
    release()
    torch.accelerator.synchronize()
    assert (tensor.cpu() == 1.0).all()
    assert (rank == 1) or isinstance(raised.value, wiresum.torch.WiresumTimeoutError)
    return str(raised.value)


def test_a_stream_that_hangs_is_a_time_out_that_says_so_and_ends_the_job(new_duo: Cluster, marks: Path) -> None:
    late, other = new_duo.run(hangs, marks)
    assert "rank 0: Timed out waiting 1 s for all_reduce(SUM, float32[1000])" in late
    assert "its device has not come to the call" in late
    assert "rank 0" in other


def loses_the_other(rank: int, size: int, folder: Path) -> str:
    tensor = torch.full((LONG,), 1.0, device=device())
    if rank == 1:
        (folder / "1").touch()
        implementation().abort()
        return ""
    await_marks(folder, 1)
    work = None
    with pytest.raises(dist.DistBackendError) as raised:
        work = dist.all_reduce(tensor, async_op=True)
        started(work).wait()
    wait_until(lambda: work is None or started(work).is_completed(), "all pieces have ended")
    assert work is None or not started(work).is_success()
    torch.accelerator.synchronize()
    assert (tensor.cpu() == 1.0).all()  # nothing was summed, so nothing may look like a sum
    return str(raised.value)


def test_a_failed_sum_raises_and_copies_nothing_back(new_duo: Cluster, marks: Path) -> None:
    said, _ = new_duo.run(loses_the_other, marks)
    assert "rank 1 called abort()" in said


def calls_another_length(rank: int, size: int) -> str:
    with pytest.raises(dist.DistBackendError) as raised:
        dist.all_reduce(torch.ones(LONG + PIECE_BYTES // 2 * rank, device=device()))
    return str(raised.value)


def test_sums_of_different_lengths_differ_from_the_first_piece_on(new_duo: Cluster) -> None:
    for said in new_duo.run(calls_another_length):
        assert f"rank 0 called all_reduce(SUM, float32[{LONG}])" in said and "rank 1 called all_reduce(SUM" in said


def leaves_early(rank: int, size: int) -> str:
    tensor = torch.full((LONG,), rank + 1.0, device=device())
    with pipeline().streams(device())[0]:
        keep_busy()
    work = started(dist.all_reduce(tensor, async_op=True))
    dist.destroy_process_group()
    assert work.is_success() or work.wait()
    torch.accelerator.synchronize()
    assert (tensor.cpu() == 3.0).all()
    return "summed"


def test_leaving_completes_what_was_not_waited_for(new_duo: Cluster) -> None:
    assert new_duo.run(leaves_early) == ["summed", "summed"]
