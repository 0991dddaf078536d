"""Sparse tensors: the pure steps by themselves, and sums over loopback, compared with Gloo's and with the exact sum."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import wiresum.torch
from wiresum.agent.errors import ImpossibleSumError
from wiresum.torch import rows
from wiresum_lab.ranks import network_sum
from wiresum_lab.ranks.cluster import Cluster, await_marks, runs_in
from wiresum_lab.ranks.cluster_worker import lanes

SHAPE = (1000, 8)


def sparse_tensor(
    rank: int, *, nnz: int, shape: tuple[int, ...] = SHAPE, sparse_dim: int = 1, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Random rows under random keys, some of them repeated."""
    generator = torch.Generator().manual_seed(rank)
    indices = torch.stack([torch.randint(0, size, (nnz,), generator=generator) for size in shape[:sparse_dim]])
    values = (10 * torch.randn(nnz, *shape[sparse_dim:], generator=generator)).to(dtype)
    return torch.sparse_coo_tensor(indices, values, shape, check_invariants=True)


# The pure steps.


@pytest.mark.parametrize(("shape", "sparse_dim"), [((50, 3), 1), ((7, 9, 2), 2), ((4, 5, 6), 3), ((30,), 1)])
def test_a_tensor_survives_conversion_to_rows_and_back(shape: tuple[int, ...], sparse_dim: int) -> None:
    tensor = sparse_tensor(3, nnz=20, shape=shape, sparse_dim=sparse_dim)
    keys, values = rows.rows_of(tensor)
    assert torch.equal(keys, keys.unique())
    assert values.shape == (len(keys), rows.row_elements(tensor))
    other = sparse_tensor(4, nnz=3, shape=shape, sparse_dim=sparse_dim)
    rows.write_rows(other, keys, values)
    assert other.is_coalesced()
    assert torch.equal(other.to_dense(), tensor.coalesce().to_dense())


def test_rows_are_laid_out_in_the_order_of_the_union() -> None:
    tensor = torch.sparse_coo_tensor([[2, 7]], [[1.0, 2.0], [3.0, 4.0]], (10, 2), check_invariants=True)
    keys, values = rows.rows_of(tensor)
    plan = rows.sum_plan(tensor, keys, values, torch.tensor([0, 2, 5, 7]), integer_divisor=1)
    assert plan.rows.tolist() == [[0, 0], [1, 2], [0, 0], [3, 4]]
    assert [region.elements for region in plan.regions] == [8]
    plan.finish()
    assert tensor.coalesce().indices().tolist() == [[0, 2, 5, 7]]


def test_counting_is_chosen_where_it_takes_fewer_bytes_than_sending_keys() -> None:
    assert rows.counting_is_cheaper(torch.tensor([10, 10]), 100)
    assert not rows.counting_is_cheaper(torch.tensor([10, 10]), 1000)


KEYS = torch.tensor([2, 7])


@pytest.mark.parametrize("counts", [[2, 0], [2, 10]])
def test_numbers_of_rows_that_workers_can_have_are_taken(counts: list[int]) -> None:
    rows.require_sizes(torch.tensor(counts, dtype=torch.int32), KEYS, 10, rank=0)


@pytest.mark.parametrize("counts", [[1, 3], [3, 0], [2, -1], [2, 11], [2, 2**31 - 1], [0, 0]])
def test_numbers_of_rows_that_no_workers_have_are_refused(counts: list[int]) -> None:
    with pytest.raises(ImpossibleSumError, match="numbers of rows"):
        rows.require_sizes(torch.tensor(counts, dtype=torch.int32), KEYS, 10, rank=0)


@pytest.mark.parametrize("union", [[2, 7], [0, 2, 7, 9], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]])
def test_a_union_with_the_workers_own_rows_is_taken(union: list[int]) -> None:
    assert rows.places_in(torch.tensor(union), KEYS, 10).tolist() == [union.index(2), union.index(7)]
    assert not len(rows.places_in(torch.tensor(union), KEYS[:0], 10))


@pytest.mark.parametrize("union", [[], [2], [7], [2, 8], [-1, 2, 7], [2, 7, 10], [-(2**63), 2, 7, 2**63 - 1]])
def test_a_union_of_impossible_rows_or_without_the_workers_own_is_refused(union: list[int]) -> None:
    with pytest.raises(ImpossibleSumError, match="rows came back"):
        rows.places_in(torch.tensor(union, dtype=torch.int64), KEYS, 10)


@pytest.mark.parametrize("size", [2, 127, 128, 256, 4096])
def test_a_count_of_all_workers_fits_its_bits(size: int) -> None:
    tensor = sparse_tensor(0, nnz=10)
    plan = rows.presence_plan(tensor, rows.rows_of(tensor)[0], size=size)
    assert size < 2 ** (plan.integer_bits - 1)


# Complete sums.


def same_sparse_everywhere(tensor: torch.Tensor, size: int) -> None:
    whole = tensor.coalesce()
    for part in (whole.indices(), whole.values().contiguous()):
        everybody = [torch.zeros_like(part) for _ in range(size)]
        dist.all_gather(everybody, part)
        assert all(torch.equal(other, part) for other in everybody)


def expected_rows(inputs: list[torch.Tensor], *, average: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """The union of the keys, and the sum of the rows in the order of the keys."""
    pairs = [rows.rows_of(tensor) for tensor in inputs]
    union = torch.cat([keys for keys, _ in pairs]).unique()
    aligned = []
    for tensor, (keys, values) in zip(inputs, pairs, strict=True):
        memory = torch.zeros(len(union), rows.row_elements(tensor), dtype=tensor.dtype)
        memory[torch.searchsorted(union, keys)] = values
        aligned.append(memory)
    total = network_sum.all_reduce(aligned, lanes=lanes(), average=average)
    return union, total


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32], ids=str)
@pytest.mark.parametrize("nnz", [10, 400])
@runs_in("trio")
def test_sparse_sums_are_exact_and_identical_for_both_encodings_of_keys(
    rank: int, size: int, dtype: torch.dtype, nnz: int, average: bool
) -> None:
    before = wiresum.torch.stats()
    inputs = [sparse_tensor(k, nnz=nnz + 5 * k, dtype=dtype) for k in range(size)]
    tensor = inputs[rank].clone()
    dist.all_reduce(tensor, op=dist.ReduceOp.AVG if average else dist.ReduceOp.SUM)
    keys, values = rows.rows_of(tensor)
    union, total = expected_rows(inputs, average=average and dtype.is_floating_point)
    if average and not dtype.is_floating_point:
        total = total.div(size, rounding_mode="trunc")
    assert tensor.layout is torch.sparse_coo
    assert torch.equal(keys, union)
    assert torch.equal(values, total)
    same_sparse_everywhere(tensor, size)
    after = wiresum.torch.stats()
    assert after.collectives_gloo == before.collectives_gloo
    assert after.collectives_network["all_reduce"] == before.collectives_network["all_reduce"] + 1


@runs_in("quartet")
def test_sparse_sums_match_gloo(rank: int, size: int) -> None:
    gloo = dist.new_group(backend="gloo")
    for shape, sparse_dim in (((300, 16), 1), ((20, 30, 4), 2), ((5000,), 1)):
        ours = sparse_tensor(rank, nnz=100, shape=shape, sparse_dim=sparse_dim)
        theirs = ours.clone()
        dist.all_reduce(ours)
        dist.all_reduce(theirs, group=gloo)
        theirs = theirs.coalesce()
        assert torch.equal(ours.coalesce().indices(), theirs.indices())
        torch.testing.assert_close(ours.coalesce().values(), theirs.values(), rtol=1e-5, atol=1e-5)


@runs_in("trio")
def test_one_worker_or_all_may_have_no_rows(rank: int, size: int) -> None:
    for present in (False, True):
        tensor = sparse_tensor(rank, nnz=4 if present and rank == 0 else 0)
        expected = sparse_tensor(0, nnz=4 if present else 0)
        dist.all_reduce(tensor)
        assert torch.equal(tensor.to_dense(), expected.to_dense())


@runs_in("trio")
def test_sparse_and_dense_sums_in_flight_together(rank: int, size: int) -> None:
    tensors = [sparse_tensor(10 * k + rank, nnz=50) for k in range(4)]
    dense = [torch.ones(5000) for _ in range(4)]
    expected = [sum(sparse_tensor(10 * k + other, nnz=50).to_dense() for other in range(size)) for k in range(4)]
    works = []
    for sparse, plain in zip(tensors, dense, strict=True):
        works += [dist.all_reduce(sparse, async_op=True), dist.all_reduce(plain, async_op=True)]
    for work in works:
        assert work is not None
        work.wait()
    for tensor, total in zip(tensors, expected, strict=True):
        assert isinstance(total, torch.Tensor)
        torch.testing.assert_close(tensor.to_dense(), total, rtol=1e-5, atol=1e-4)
    assert all((plain == size).all() for plain in dense)


@runs_in("trio")
def test_an_asynchronous_sparse_sum_works_in_inference_mode(rank: int, size: int) -> None:
    with torch.inference_mode():
        tensor = torch.eye(3).to_sparse()
        dist.all_reduce(tensor, async_op=True).wait()
        assert torch.equal(tensor.to_dense(), size * torch.eye(3))


@runs_in("trio")
def test_an_asynchronous_sparse_sum_does_not_wait_for_the_others(rank: int, size: int) -> None:
    tensor, plain = sparse_tensor(rank, nnz=50), torch.ones(5000)
    expected = sum(sparse_tensor(other, nnz=50).to_dense() for other in range(size))
    token = torch.zeros(1)
    if rank == 0:  # waits until the others have gone on, which they could not if their calls waited for rank 0
        for other in range(1, size):
            dist.recv(token, other)
    works = [dist.all_reduce(tensor, async_op=True), dist.all_reduce(plain, async_op=True)]
    if rank != 0:
        assert not any(work.is_completed() for work in works if work is not None)
        dist.send(token, 0)
    futures = [work.get_future() for work in works if work is not None]
    torch.futures.wait_all(futures)
    assert isinstance(expected, torch.Tensor)
    torch.testing.assert_close(tensor.to_dense(), expected, rtol=1e-5, atol=1e-4)
    assert (plain == size).all()


@runs_in("new_trio")
def test_an_abort_fails_an_asynchronous_sparse_sum_and_the_calls_queued_behind_it(
    rank: int, size: int, marks: Path
) -> None:
    if rank == 0:
        await_marks(marks, size - 1)  # a call made after the abort would raise by itself
        dist.group.WORLD.abort()
        return
    works = [dist.all_reduce(sparse_tensor(rank, nnz=5), async_op=True), dist.all_reduce(torch.ones(9), async_op=True)]
    (marks / str(rank)).touch()
    for work in works:
        assert work is not None
        with pytest.raises(RuntimeError, match="called abort"):
            work.wait()


def different_shapes(rank: int, size: int) -> str:
    try:
        dist.all_reduce(sparse_tensor(rank, nnz=5, shape=(100 + rank, 4)))
    except RuntimeError as error:
        return str(error)
    return "no error"


def test_sparse_tensors_of_different_shapes_are_refused(new_pair: Cluster) -> None:
    texts = new_pair.run(different_shapes)
    assert any("different collectives" in text for text in texts), texts


# DDP.


class Words(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.EmbeddingBag(2000, 16, sparse=True)
        self.output = torch.nn.Linear(16, 4)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.output(self.embedding(words))


def trained(rank: int, size: int, group: dist.ProcessGroup | None) -> torch.Tensor:
    torch.manual_seed(7)
    model = DistributedDataParallel(Words(), process_group=group)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(6):
        generator = torch.Generator().manual_seed(100 * step + rank)
        words = torch.randint(0, 2000, (8, 5), generator=generator)
        labels = torch.randint(0, 4, (8,), generator=generator)
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(words), labels).backward()
        optimiser.step()
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


@runs_in("trio")
def test_ddp_with_sparse_embeddings_trains_as_with_gloo(rank: int, size: int) -> None:
    before = wiresum.torch.stats()
    ours = trained(rank, size, None)
    after = wiresum.torch.stats()
    assert after.collectives_gloo["all_reduce"] == before.collectives_gloo["all_reduce"]
    theirs = trained(rank, size, dist.new_group(backend="gloo"))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    everybody = [torch.zeros_like(ours) for _ in range(size)]
    dist.all_gather(everybody, ours)
    assert all(torch.equal(other, ours) for other in everybody)


@runs_in("pair")
def test_a_callback_may_wait_for_a_sparse_sum(rank: int, size: int) -> None:
    def sum_rows(_: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        tensor = torch.sparse_coo_tensor([[rank, 4]], [1.0, 2.0], (6,), check_invariants=True)
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        work.get_future().wait()
        return tensor.to_dense()

    work = dist.all_reduce(torch.ones(10), async_op=True)
    assert work is not None
    assert work.get_future().then(sum_rows).wait().tolist() == [1.0, 1.0, 0.0, 0.0, 4.0, 0.0]
