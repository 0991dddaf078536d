"""Collectives that are done without Python (direct.hpp) behave exactly as those through Python, and are only faster."""

from __future__ import annotations

import contextlib
import datetime
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllreduceOptions

import wiresum.torch
from wiresum_lab.processes import wait_until
from wiresum_lab.ranks.cluster import Cluster, await_marks, runs_in
from wiresum_lab.ranks.cluster_worker import implementation, world

SIZES = [2, 5, 360, 4096, 5000, 100_003]
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int32]
SUMMED = [torch.float8_e4m3fn, torch.float8_e5m2, *DTYPES]
OTHERS = [torch.float64, torch.int64, torch.int8, torch.uint8, torch.bool]


pytestmark = pytest.mark.usefixtures("compiled")


def values(dtype: torch.dtype, size: int, seed: int) -> torch.Tensor:
    """Values of many magnitudes, some of them zero."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, (size,), generator=generator).to(dtype)
    if dtype in OTHERS and dtype != torch.float64:
        return torch.randint(0, 256, (8 * size,), generator=generator, dtype=torch.uint8)[:: 8 // dtype.itemsize].view(
            dtype
        )
    if dtype == torch.int32:
        return torch.randint(-(2**29), 2**29, (size,), generator=generator, dtype=dtype)
    exponents = torch.randint(-12, 9, (size,), generator=generator)
    made = torch.randn(size, generator=generator) * torch.pow(2.0, exponents)
    return torch.where(torch.rand(size, generator=generator) < 0.1, 0.0, made).to(dtype)


def strided(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in a strided tensor, which Python has to prepare."""
    return torch.stack([tensor, tensor], dim=-1)[..., 0]


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


def gathered(tensor: torch.Tensor, **options: Any) -> torch.Tensor:
    """What all workers give, by dist.all_gather."""
    parts = [torch.zeros_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor, **options)
    return torch.stack(parts)


def goes_direct(call: Any, *arguments: Any, **options: Any) -> bool:
    before = implementation().direct.calls
    call(*arguments, **options)
    return bool(implementation().direct.calls > before)


@runs_in("pair")
def test_contiguous_dense_tensors_go_direct_and_others_through_python(rank: int, size: int) -> None:
    average, largest, single = dist.ReduceOp.AVG, dist.ReduceOp.MAX, world()._allgather_base
    for dtype in SUMMED:
        assert goes_direct(dist.all_reduce, torch.ones(10, dtype=dtype))
    for dtype in SUMMED[:-1]:
        assert goes_direct(dist.all_reduce, torch.ones(10, dtype=dtype), op=average)
    assert goes_direct(dist.all_reduce, torch.ones(2, 3, 4, requires_grad=True))
    for dtype in (*DTYPES, *OTHERS):
        assert goes_direct(dist.all_reduce, torch.ones(10, dtype=dtype), op=largest)
        assert goes_direct(gathered, torch.ones(10, dtype=dtype))
        assert goes_direct(lambda ones: single(ones.new_empty(10 * size), ones).wait(), torch.ones(10, dtype=dtype))
    assert goes_direct(gathered, torch.tensor(1j)) and goes_direct(gathered, torch.ones(100_000))
    for others in (
        lambda: dist.all_reduce(torch.ones(10, dtype=torch.int32), op=average),
        lambda: dist.all_reduce(torch.ones(10, dtype=torch.float64), op=average),
        lambda: dist.all_reduce(torch.ones(10_000, dtype=torch.float64)),
        lambda: dist.all_reduce(torch.ones(10, dtype=torch.float64), op=dist._make_nccl_premul_sum(2.0)),
        lambda: dist.all_reduce(strided(torch.ones(10, dtype=torch.int64)), op=largest),
        lambda: gathered(strided(torch.ones(10))),
        lambda: gathered(torch.ones(0)),
        lambda: dist.all_gather([torch.ones(2), torch.ones(3)], torch.ones(rank + 2)),
        lambda: dist.all_reduce(strided(torch.ones(10))),
        lambda: dist.all_reduce(torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last)),
        lambda: dist.all_reduce(torch.ones(0)),
        lambda: dist.all_reduce(torch.ones(10).to_sparse()),
        lambda: dist.all_reduce_coalesced([torch.ones(10), torch.ones(10)]),
        dist.barrier,
    ):
        assert not goes_direct(others)


@pytest.mark.usefixtures("work_exceptions")
@runs_in("pair")
def test_a_successful_direct_call_runs_no_python(rank: int, size: int) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("Python was asked")

    tensor = torch.full((321,), rank + 1.0)
    number = torch.tensor(rank, dtype=torch.int64)
    largest = dist.ReduceOp.MAX

    def calls() -> list[Any]:
        dist.all_reduce(summed := tensor.clone())
        dist.all_reduce(maximum := number.clone(), op=largest)
        return [summed[0].item(), maximum.item(), gathered(number).tolist()]

    expected = calls()  # registers the forms of these calls, which Python does once
    backend = implementation()
    for name in ("allreduce", "allgather"):
        setattr(backend, name, refuse)
    backend.network.form_of = backend.network.adopt = refuse  # type: ignore[method-assign]
    try:
        assert calls() == expected == [sum(range(1, size + 1)), size - 1, list(range(size))]
        dist.all_reduce(tensor)
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None and work.wait() and work.is_completed() and work.is_success()
        assert work.exception() is None
    finally:
        del backend.allreduce, backend.allgather, backend.network.form_of, backend.network.adopt
    assert (tensor == size * sum(range(1, size + 1))).all()


@runs_in("trio")
def test_direct_and_python_calls_give_the_same_bits_and_may_be_mixed(rank: int, size: int) -> None:
    for dtype in SUMMED:
        for elements in SIZES:
            for operator in (dist.ReduceOp.SUM, dist.ReduceOp.AVG)[: 1 if dtype == torch.int32 else 2]:
                mine = values(dtype, elements, seed=1000 * rank + elements)
                direct, through_python, mixed = mine.clone(), strided(mine), mine.clone()
                assert goes_direct(dist.all_reduce, direct, op=operator)
                assert not goes_direct(dist.all_reduce, through_python, op=operator)
                assert torch.equal(bits(direct), bits(through_python)), (dtype, elements, operator)
                mixed = strided(mixed) if rank else mixed
                dist.all_reduce(mixed, op=operator)
                assert torch.equal(bits(direct), bits(mixed)), (dtype, elements, operator)


@pytest.mark.parametrize("name", ["SUM", "PRODUCT", "MIN", "MAX", "BOR"])
@runs_in("trio")
def test_direct_and_python_reductions_give_the_same_bits_and_may_be_mixed(rank: int, size: int, name: str) -> None:
    operator = getattr(dist.ReduceOp, name)
    for dtype in (*OTHERS, *(DTYPES if name not in ("SUM", "BOR") else ())):
        if name == "BOR" and dtype.is_floating_point:
            continue
        for elements in (2, 7, 2048 // dtype.itemsize):
            mine = values(dtype, elements, seed=1000 * rank + elements)
            direct, through_python, mixed = mine.clone(), strided(mine), mine.clone()
            assert goes_direct(dist.all_reduce, direct, op=operator)
            assert not goes_direct(dist.all_reduce, through_python, op=operator)
            assert torch.equal(bits(direct), bits(through_python)), (dtype, elements)
            mixed = strided(mixed) if rank else mixed
            dist.all_reduce(mixed, op=operator)
            assert torch.equal(bits(direct), bits(mixed)), (dtype, elements)


@runs_in("trio")
def test_all_gathers_bring_the_bits_of_all_workers_however_they_are_made(rank: int, size: int) -> None:  # R6.8
    for elements in (1, 3, 359, 360, 1021, 5000, 100_003):
        for dtype in (torch.uint8, torch.float64):
            given = [values(dtype, elements, seed=1000 * k + elements) for k in range(size)]
            expected = torch.stack(given)
            direct = gathered(given[rank])
            mixed = gathered(strided(given[rank])) if rank else gathered(given[rank])
            assert torch.equal(bits(direct), bits(expected)) and torch.equal(bits(mixed), bits(expected))
            whole = torch.zeros(size * elements, dtype=dtype)
            mine = whole[rank * elements : (rank + 1) * elements].copy_(given[rank])
            world()._allgather_base(whole, mine).wait()  # in place
            assert torch.equal(bits(whole), bits(expected.reshape(-1)))
    parts = [torch.zeros(k) for k in range(size)]  # of sizes of their own, one of them empty
    dist.all_gather(parts, torch.full((rank,), float(rank)))
    assert [part.tolist() for part in parts] == [[float(k)] * k for k in range(size)]


@pytest.mark.parametrize("elements", [100, 2_000_000])
@runs_in("pair")
def test_tensors_of_a_call_may_share_memory(rank: int, size: int, elements: int) -> None:
    """The values are Gloo's, whatever the size: each tensor counts as it was when the call began."""
    whole, total = torch.full((elements,), rank + 1.0), size * (size + 1) / 2
    dist.all_reduce_coalesced([whole, whole])
    assert (whole == total).all()
    whole = torch.full((3 * elements,), rank + 1.0)
    dist.all_reduce_coalesced([whole[: 2 * elements], whole[elements:]])
    assert (whole == total).all()
    for place in range(size):  # where all workers have their contribution
        rows = torch.full((size, elements), rank + 1.0)
        dist.all_gather_into_tensor(rows.view(-1), rows[place])
        assert torch.equal(rows[:, 0], torch.arange(1.0, size + 1)) and (rows == rows[:, :1]).all()
        rows = torch.full((size, elements), rank + 1.0)
        dist.all_gather(list(rows), rows[place])
        assert torch.equal(rows[:, 0], torch.arange(1.0, size + 1)) and (rows == rows[:, :1]).all()


@runs_in("trio")
def test_overlapping_calls_of_all_kinds_complete_correctly(rank: int, size: int) -> None:
    generator = torch.Generator().manual_seed(7)  # the same seed, so the same calls, at all workers
    expected_sum = float(sum(range(1, size + 1)))
    works: list[tuple[Any, torch.Tensor, Any]] = []
    for step in range(150):
        elements = int(torch.randint(1, 3000, (1,), generator=generator))
        scale = float(step % 13 + 1)
        kind = int(torch.randint(0, 7, (1,), generator=generator))
        tensor = torch.full((elements,), scale * (rank + 1))
        if kind == 0:
            tensor = strided(tensor)
        if kind == 1:
            keys, rows = torch.tensor([[rank, 4]]), torch.full((2,), scale * (rank + 1))
            tensor = torch.sparse_coo_tensor(keys, rows, (elements + 5,))
        if kind == 5:
            work = dist.all_reduce(tensor := tensor.long(), op=dist.ReduceOp.MAX, async_op=True)
        elif kind == 6:
            tensor, mine = torch.zeros(size, elements), tensor
            work = world()._allgather_base(tensor, mine)  # the work keeps what it reads
            del mine
        elif kind == 2:
            work = dist.broadcast(tensor, src=1, async_op=True)
        else:
            work = dist.all_reduce(tensor, async_op=True)
        expected: Any = scale * {2: 2.0, 5: float(size)}.get(kind, expected_sum)
        if kind == 6:
            expected = scale * torch.arange(1.0, size + 1)[:, None]
        if kind == 1:
            expected = [scale * (k + 1) for k in range(size)] + [0.0] * (4 - size) + [scale * expected_sum]
        works.append((work, tensor, expected))
    for step, (work, tensor, expected) in reversed(list(enumerate(works))):
        work.get_future().wait() if step % 3 == 0 else work.wait()
        if isinstance(expected, list):
            assert tensor.to_dense()[:5].tolist() == expected
        else:
            assert (tensor == expected).all(), step


@runs_in("pair")
def test_a_signal_interrupts_a_wait_and_the_sum_completes(rank: int, size: int, tmp_path: Path) -> None:
    def ring(*_: object) -> None:
        raise InterruptedError("the alarm rang")

    def ring_when_submitted(calls: int) -> None:
        wait_until(lambda: implementation().direct.calls > calls, "the sum was submitted")
        os.kill(os.getpid(), signal.SIGALRM)

    tensor = torch.ones(10)
    if rank == 0:
        before = signal.signal(signal.SIGALRM, ring)
        bell = threading.Thread(target=ring_when_submitted, args=[implementation().direct.calls])
        bell.start()
        try:
            with pytest.raises(InterruptedError, match="rang"):
                dist.all_reduce(tensor)
        finally:
            bell.join()
            signal.signal(signal.SIGALRM, before)
        (tmp_path / "rang").touch()
        dist.barrier()  # ordered after the sum, so the sum is complete
    else:
        await_marks(tmp_path, 1)
        dist.all_reduce(tensor)
        dist.barrier()
    assert (tensor == size).all()


def leaves_with_works(rank: int, size: int) -> str:
    tensor = torch.ones(100_000)
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    dist.destroy_process_group()
    assert work.is_completed() and work.is_success()
    assert (tensor == size).all()
    return "summed"


def test_leaving_completes_works_that_were_not_waited_for(new_pair: Cluster) -> None:
    assert new_pair.run(leaves_with_works) == ["summed", "summed"]


def unawaited(rank: int, size: int) -> str:
    if rank == 0:
        options = AllreduceOptions()
        options.timeout = datetime.timedelta(seconds=1)
        work = world().allreduce([torch.ones(10)], options)
        wait_until(lambda: implementation().network.session.failure is not None, "somebody notices that the sum failed")
        assert work.is_completed() and not work.is_success()
        with pytest.raises(wiresum.torch.WiresumTimeoutError, match="Timed out waiting 1 s for all_reduce"):
            raise work.exception()
        with pytest.raises(wiresum.torch.WiresumTimeoutError, match="Timed out waiting 1 s for all_reduce"):
            work.wait()
        with pytest.raises(wiresum.torch.WiresumTimeoutError, match="Timed out waiting 1 s for all_reduce"):
            work.get_future().wait()
        return "noticed"
    with contextlib.suppress(RuntimeError):
        dist.recv(torch.ones(1), src=0)
    failure = implementation().network.session.failure
    return str(failure)


@pytest.mark.usefixtures("work_exceptions")
def test_other_workers_hear_of_a_failure_that_was_not_waited_for(new_pair: Cluster) -> None:
    noticed, told = new_pair.run(unawaited)
    assert noticed == "noticed" and "rank 0" in told and "Timed out" in told


@runs_in("new_pair")
def test_after_a_failure_the_call_itself_raises(rank: int, size: int) -> None:
    implementation().network.session.abort("enough of this")
    for call in (lambda: dist.all_reduce(torch.ones(10)), lambda: dist.all_reduce(torch.ones(10), async_op=True)):
        with pytest.raises(dist.DistBackendError, match=r"enough of this|ended"):
            call()
