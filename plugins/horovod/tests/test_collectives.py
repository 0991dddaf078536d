"""Horovod's collectives among real ranks, over a real switch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import wiresum.horovod.torch as hvd
from wiresum.horovod.torch import runtime
from wiresum_lab.ranks.cluster import Cluster, await_marks, runs_in

from . import horovod_ranks

STALL_S = 0.5


@runs_in("trio")
def test_ranks_may_call_in_any_order_from_any_thread(rank: int, size: int) -> None:
    names = [f"tensor{k}" for k in range(40)]
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(rank)).tolist()
    before = hvd.stats().collectives_network["all_reduce_coalesced"]
    handles = {}

    def submit(part: list[int]) -> None:
        for k in part:
            handles[k] = hvd.allreduce_async(torch.full((100,), float(rank * k)), name=names[k], op=hvd.Sum)

    for _ in range(3):  # the second and third responses come from the cache
        threads = [threading.Thread(target=submit, args=(order[half::2],)) for half in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for k in range(len(names)):
            assert (hvd.synchronize(handles[k]) == k * sum(range(size))).all()
    assert hvd.stats().collectives_network["all_reduce_coalesced"] - before < 3 * len(names)  # all-reduces were fused


def lost(*shape: int) -> torch.Tensor:
    """A tensor whose memory is gone, except for the first element."""
    tensor = torch.ones(shape)
    tensor.untyped_storage().resize_(4)
    return tensor


@runs_in("trio")
def test_a_tensor_without_its_memory_is_refused_by_every_call(rank: int, size: int) -> None:
    indices = torch.tensor([[0, 1]])
    sparse = torch.sparse_coo_tensor(indices, torch.ones(2), (4,), is_coalesced=True)
    sparse._values().untyped_storage().resize_(0)
    halves = hvd.Compression.fp16
    for call in (
        lambda: hvd.allreduce(lost(6)),
        lambda: hvd.allreduce(lost(6), op=hvd.Max),
        lambda: hvd.allreduce(lost(6), compression=halves),
        lambda: hvd.allreduce_(lost(6)),
        lambda: hvd.allreduce_async_(lost(6), prescale_factor=2.0),
        lambda: hvd.grouped_allreduce_([torch.ones(6), lost(6)]),
        lambda: hvd.sparse_allreduce_async(sparse, "sparse", hvd.Sum),
        lambda: hvd.allgather(lost(6, 2)),
        lambda: hvd.broadcast(lost(6), 0),
        lambda: hvd.broadcast_(lost(6), 1),
        lambda: hvd.alltoall(lost(6)),
        lambda: hvd.reducescatter(lost(6)),
        lambda: hvd.grouped_reducescatter([lost(6)], compression=halves),
    ):
        with pytest.raises(ValueError, match="bytes of its storage"):
            call()
    weights = torch.nn.Parameter(torch.ones(6))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weights], lr=1.0), named_parameters=[("weights", weights)])
    weights.grad = lost(6)
    with pytest.raises(ValueError, match="bytes of its storage"):
        optimizer.step()
    assert hvd.allreduce(torch.ones(6), op=hvd.Sum).tolist() == [size] * 6


@runs_in("trio")
def test_every_type_and_operation(rank: int, size: int) -> None:
    everybody = range(1, size + 1)
    for dtype in (
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
    ):
        mine = torch.full((3, 5), rank + 1, dtype=dtype)
        for op, expected in (
            (hvd.Sum, sum(everybody)),
            (hvd.Average, 2),
            (hvd.Min, 1),
            (hvd.Max, size),
            (hvd.Product, 6),
        ):
            result = hvd.allreduce(mine, op=op)
            assert result.dtype == dtype and (result == expected).all(), (dtype, op, result)
        assert (mine == rank + 1).all()
        hvd.allreduce_(mine, op=hvd.Sum)
        assert (mine == sum(everybody)).all()
    for dtype in (torch.bool, torch.int16, torch.complex64):
        mine = torch.tensor([[rank == 1]] * (rank + 1), dtype=dtype)
        assert hvd.allgather(mine).tolist() == torch.tensor([[0], [1], [1], [0], [0], [0]], dtype=dtype).tolist()
        assert (hvd.broadcast(mine[:1], 1) == 1).all()
        assert hvd.alltoall(torch.tensor([rank == k for k in range(size)]).to(dtype)).tolist() == [
            k == rank for k in range(size)
        ]


@runs_in("trio")
def test_shapes_of_all_kinds(rank: int, size: int) -> None:
    columns = torch.arange(12.0).reshape(3, 4).t()  # a transposed tensor, not contiguous
    assert torch.equal(hvd.allreduce(columns, op=hvd.Sum), size * columns)
    hvd.allreduce_(columns, op=hvd.Sum)
    assert torch.equal(columns, size * torch.arange(12.0).reshape(3, 4).t())
    assert hvd.allreduce(torch.tensor(2.0), op=hvd.Sum).shape == ()
    gathered = hvd.allgather(torch.full((rank, 2), float(rank)))  # rank 0 contributes no rows
    assert gathered.tolist() == [[1.0, 1.0], [2.0, 2.0], [2.0, 2.0]]
    assert hvd.allgather(torch.empty(0, 7)).shape == (0, 7)
    assert hvd.reducescatter(torch.arange(5.0), op=hvd.Sum).tolist() == [[0.0, 3.0], [6.0, 9.0], [12.0]][rank]
    assert hvd.reducescatter(torch.arange(5), op=hvd.Max).tolist() == [[0, 1], [2, 3], [4]][rank]
    sent = torch.arange(6) + 10 * rank
    received, counts = hvd.alltoall(sent, splits=[1, 2, 3])
    begin = [0, 1, 3][rank]
    assert received.tolist() == [10 * k + begin + i for k in range(size) for i in range(rank + 1)]
    assert counts.tolist() == [rank + 1] * size
    assert hvd.grouped_allgather([torch.ones(rank)])[0].shape == (3,)
    assert hvd.synchronize(hvd.broadcast_async(torch.tensor([rank]), 2)).tolist() == [2]
    assert hvd.synchronize(hvd.grouped_allreduce_async_([torch.ones(3)], op=hvd.Sum))[0].tolist() == [3.0] * 3
    half = hvd.grouped_allreduce([torch.ones(2), torch.ones(3)], prescale_factor=0.5, postscale_factor=4.0, op=hvd.Sum)
    assert [tensor.tolist() for tensor in half] == [[6.0] * 2, [6.0] * 3]
    assert hvd.broadcast_object({"rank": rank}, root_rank=2) == {"rank": 2}
    assert hvd.allgather_object("x" * rank) == ["", "x", "xx"]


@runs_in("trio")
def test_gradients_flow_through_collectives(rank: int, size: int) -> None:
    mine = torch.full((2,), float(rank), requires_grad=True)
    hvd.allreduce(mine, op=hvd.Sum).sum().backward()
    assert mine.grad is not None and (mine.grad == size).all()
    rows = torch.ones(rank + 1, requires_grad=True)
    (hvd.allgather(rows) * torch.arange(6.0)).sum().backward()
    assert rows.grad is not None and rows.grad.tolist() == [[0.0], [1.0, 2.0], [3.0, 4.0, 5.0]][rank]
    root = torch.ones(2, requires_grad=True)
    (hvd.broadcast(root, 1) * (rank + 1)).sum().backward()
    assert root.grad is not None and (root.grad == (2 if rank == 1 else 0)).all()


@pytest.mark.parametrize("collective", ["allreduce", "allgather", "broadcast", "alltoall", "reducescatter"])
@runs_in("trio")
def test_second_derivatives_flow_through_collectives(rank: int, size: int, collective: str) -> None:
    """Those of all-reduces once vanished without an error, and those of broadcasts waited for ranks that did not take
    part."""
    mine = torch.full((1 if collective == "allgather" else 3,), rank + 1.0, requires_grad=True)
    run, expected = {
        "allreduce": (lambda: hvd.allreduce(mine, op=hvd.Sum, prescale_factor=0.5), 1.5 * 1.5 * 6 * 3),
        "allgather": (lambda: hvd.allgather(mine), 2.0 * (rank + 1)),
        "broadcast": (lambda: hvd.broadcast(mine, 1), 4.0 if rank == 1 else 0.0),
        "alltoall": (lambda: hvd.alltoall(mine), 6.0 * (rank + 1)),
        "reducescatter": (lambda: hvd.reducescatter(mine, op=hvd.Sum), 3 * 3 * 6 * 6.0),
    }[collective]
    (slope,) = torch.autograd.grad((run() ** 3).sum(), mine, create_graph=True)
    (slope.sum() + (mine**2).sum()).backward()
    assert mine.grad is not None
    torch.testing.assert_close(mine.grad, torch.full_like(mine, expected + 2 * (rank + 1)))


@runs_in("trio")
def test_process_sets_are_jobs_of_their_own(rank: int, size: int) -> None:
    outer = hvd.add_process_set([0, 2])
    assert outer.included() == (rank != 1) and outer.size() == 2
    if outer.included():
        assert outer.rank() == rank // 2
        assert (hvd.allreduce(torch.full((9,), float(rank)), op=hvd.Sum, process_set=outer) == 2).all()
        assert hvd.broadcast(torch.tensor([rank]), root_rank=2, process_set=outer).item() == 2
        assert hvd.stats(outer).job != hvd.stats().job
        hvd.barrier(outer)
    else:
        with pytest.raises(ValueError, match=r"rank 1 is not in the process set of ranks \[0, 2\]"):
            hvd.allreduce(torch.ones(1), process_set=outer)
    with pytest.raises(ValueError, match="duplicate process set"):
        hvd.add_process_set([2, 0])
    hvd.allreduce(torch.ones(3))
    assert hvd.remove_process_set(outer) and not hvd.remove_process_set(outer)
    assert list(hvd.get_process_set_ids_and_ranks()) == [0]


@runs_in("trio")
def test_a_rank_without_data_joins_and_adds_zeros(rank: int, size: int) -> None:
    for step in range(rank + 1):  # the last rank has the most data
        present = size - step
        assert (hvd.allreduce(torch.full((5,), 6.0), name="step", op=hvd.Sum) == 6 * present).all()
        assert (hvd.allreduce(torch.full((5,), 6.0), name="mean") == 6 * present / size).all()
        hvd.allreduce(torch.ones(1))  # unnamed, and rank 2 makes the most of these calls
    assert hvd.join() == 2
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == size


@runs_in("trio")
def test_mismatched_calls_raise_at_every_rank_and_the_job_goes_on(rank: int, size: int) -> None:
    for tensor in (torch.ones(3 + rank), torch.ones(3, dtype=[torch.float32, torch.int32, torch.int64][rank])):
        with pytest.raises(hvd.HorovodInternalError, match=r"rank 0 has .*; rank 1 has .*; rank 2 has "):
            hvd.allreduce(tensor, name="mistake")
    with pytest.raises(hvd.HorovodInternalError, match=r"rank 0 has barrier; ranks 1, 2 have allreduce"):
        hvd.barrier() if rank == 0 else hvd.allreduce(torch.ones(1))
    with pytest.raises(hvd.HorovodInternalError, match=r"'shared': ranks 0, 2 have allreduce; rank 1 has allgather"):
        hvd.allgather(torch.ones(4), name="shared") if rank == 1 else hvd.allreduce(torch.ones(4), name="shared")
    with pytest.raises(hvd.HorovodInternalError, match=r"rank 0 has broadcast; ranks 1, 2 have allgather"):
        hvd.broadcast_object("x", name="thing") if rank == 0 else hvd.allgather_object("x", name="thing")
    with pytest.raises(ValueError, match="invalid root rank 3"):
        hvd.broadcast(torch.ones(1), 3)
    with pytest.raises(NotImplementedError, match=r"init\(comm\) is not supported"):
        hvd.init(comm=[0])
    if rank == 0:
        handle = hvd.allreduce_async(torch.ones(1), name="same")
        with pytest.raises(ValueError, match="use a different tensor name"):
            hvd.allreduce_async(torch.ones(1), name="same")
    hvd.barrier()
    if rank != 0:
        handle = hvd.allreduce_async(torch.ones(1), name="same")
    hvd.synchronize(handle)
    assert hvd.poll(handle)


@runs_in("trio")
def test_sums_are_done_by_the_switch(rank: int, size: int) -> None:
    before = hvd.stats()
    for _ in range(5):
        hvd.allreduce(torch.ones(100_000), name="big")
    after = hvd.stats()
    assert before.network is not None and after.network is not None
    assert after.bytes_reduced - before.bytes_reduced >= 5 * 400_000
    assert after.network.packets_sent - before.network.packets_sent >= 5 * 100_000 // 360
    assert after.collectives_gloo == before.collectives_gloo


def shuts_down_and_initializes_again(rank: int, size: int) -> None:
    horovod_ranks.begin(rank, size)
    first = hvd.stats().job
    hvd.shutdown()
    assert not hvd.is_initialized()
    with pytest.raises(ValueError, match=r"use hvd\.init\(\)"):
        hvd.rank()
    hvd.init(process_sets=[hvd.ProcessSet([0])])
    assert hvd.stats().job != first
    assert (hvd.allreduce(torch.ones(4), op=hvd.Sum) == size).all()
    assert (hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()) == (rank, size, 0, 1)
    assert hvd.is_homogeneous() and (hvd.rank(), hvd.size()) == (rank, size)


def leaves_early(rank: int, size: int, folder: str) -> None:
    handle = hvd.allreduce_async(torch.ones(4), name="last") if rank == 0 else None
    if rank == 0:
        Path(folder, "called").touch()
        with pytest.raises(hvd.HorovodInternalError, match="rank 1 called shutdown"):
            hvd.synchronize(handle)
        with pytest.raises(hvd.HorovodInternalError, match="rank 1 called shutdown"):
            hvd.allreduce(torch.ones(4))
    else:
        await_marks(Path(folder), 1)
    hvd.shutdown()


def test_shutdown_reaches_the_other_ranks_and_init_works_again(launch: Callable[..., Cluster], tmp_path: Path) -> None:
    pair = launch(2)
    pair.run(shuts_down_and_initializes_again)
    pair.run(leaves_early, str(tmp_path))


def stalls(rank: int, size: int, folder: str) -> None:
    horovod_ranks.begin(rank, size)
    hvd.allreduce(torch.ones(4), name="known")
    if rank == 1:
        handle = hvd.allreduce_async(torch.ones(4), name="known")
        await_marks(Path(folder), 1)
        hvd.synchronize(handle)
    else:
        await_marks(Path(folder), 1)
        hvd.allreduce(torch.ones(4), name="known")
    hvd.barrier()


@pytest.mark.slow
def test_a_stall_warning_names_the_missing_ranks(launch: Callable[..., Cluster], tmp_path: Path) -> None:
    pair = launch(2, HOROVOD_STALL_CHECK_TIME_SECONDS=str(STALL_S))
    pair.start(stalls, str(tmp_path))
    expected = "allreduce.known [missing: rank 0; ready: rank 1]"
    horovod_ranks.await_text(lambda: pair.log(1), expected)
    (tmp_path / "go on").touch()
    pair.collect()
    assert expected not in pair.log(0)


def dies(rank: int, size: int, folder: str) -> str:
    horovod_ranks.begin(rank, size)
    hvd.barrier()
    Path(folder, str(rank)).touch()
    with pytest.raises(hvd.HorovodInternalError) as failure:
        hvd.allreduce(torch.ones(4)) if rank != 1 else threading.Event().wait()
    return str(failure.value)


def test_the_others_get_an_error_that_names_a_dead_rank(launch: Callable[..., Cluster], tmp_path: Path) -> None:
    trio = launch(3)
    trio.start(dies, str(tmp_path))
    await_marks(tmp_path, 3)
    trio.kill(1)
    assert all("rank 1" in text for text in trio.collect(ranks=[0, 2]))


@runs_in("launch", 3)
def test_a_failed_negotiation_at_one_rank_ends_it_at_all(rank: int, size: int, tmp_path: Path) -> None:
    horovod_ranks.begin(rank, size)
    hvd.barrier()
    (tmp_path / str(rank)).touch()
    await_marks(tmp_path, size)
    if rank == 1:  # stands for a bug of the coordinator

        def exchange(*_: object) -> None:
            raise MemoryError("no memory for messages")

        runtime.current().coordinator(runtime.GLOBAL)._execution.exchange = exchange  # type: ignore[assignment]
    with pytest.raises(hvd.HorovodInternalError, match="no memory for messages" if rank == 1 else "rank 1"):
        hvd.allreduce(torch.ones(4))


@runs_in("launch", 1)
def test_a_single_rank_needs_no_switch(rank: int, size: int) -> None:
    horovod_ranks.begin(rank, size)
    assert hvd.allreduce(torch.arange(3.0), op=hvd.Sum).tolist() == [0.0, 1.0, 2.0]
    assert hvd.allgather(torch.arange(3)).tolist() == hvd.alltoall(torch.arange(3)).tolist() == [0, 1, 2]
    assert hvd.reducescatter(torch.ones(2)).tolist() == [1.0, 1.0]
    assert hvd.broadcast_object("x") == "x" and hvd.join() == 0
    model = torch.nn.Linear(1, 1)
    hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters()).step()
    hvd.shutdown()


def gives_up(rank: int, size: int, folder: str) -> None:
    horovod_ranks.begin(rank, size)
    if rank == 0:
        with pytest.raises(hvd.HorovodInternalError, match=r"stalled for more than 0\.5 seconds: .*missing: rank 1"):
            hvd.allreduce(torch.ones(4), name="lonely")
        Path(folder, "gave up").touch()
    else:
        await_marks(Path(folder), 1)
    hvd.shutdown()


@pytest.mark.slow
def test_a_stall_ends_after_the_shutdown_time(launch: Callable[..., Cluster], tmp_path: Path) -> None:
    launch(2, HOROVOD_STALL_SHUTDOWN_TIME_SECONDS=str(STALL_S)).run(gives_up, str(tmp_path))
