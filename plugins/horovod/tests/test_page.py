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

from . import host_device

REPOSITORY = Path(__file__).resolve().parents[3]
PAGE = (REPOSITORY / "docs/horovod.md").read_text()


def of_the_process(rank: int, size: int) -> None:
    assert hvd.is_initialized() and (hvd.rank(), hvd.size()) == (rank, size)
    assert (hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()) == (rank, size, 0, 1)
    assert hvd.is_homogeneous()
    with pytest.raises(NotImplementedError, match=r"init\(comm\) is not supported"):
        hvd.init(comm=[0])


def reduces(rank: int, size: int) -> None:
    ones = torch.ones(3)
    for op, expected in ((hvd.Average, 1), (hvd.Sum, size), (hvd.Min, 1), (hvd.Max, 1), (hvd.Product, 1)):
        assert (hvd.allreduce(ones, op=op) == expected).all()
        assert (hvd.synchronize(hvd.grouped_allreduce_async_([ones.clone()], op=op))[0] == expected).all()
    assert (hvd.allreduce(ones, prescale_factor=2.0, postscale_factor=3.0) == 6).all()
    for name in ("allreduce", "grouped_allreduce"):
        assert all(callable(getattr(hvd, name + ending)) for ending in ("", "_", "_async", "_async_"))


def moves(rank: int, size: int) -> None:
    rows = torch.full((rank + 1,), float(rank))
    assert hvd.grouped_allgather([rows])[0].tolist() == [0.0, 1.0, 1.0, 2.0, 2.0, 2.0]
    assert hvd.synchronize(hvd.broadcast_async(rows[:1], 2)).tolist() == [2.0]
    assert hvd.alltoall(torch.arange(3)).tolist() == [rank] * 3
    assert hvd.reducescatter(torch.ones(4), op=hvd.Sum).tolist() == [3.0] * (2 if rank == 0 else 1)


def reduces_sparse(rank: int, size: int) -> None:
    wait = hvd.sparse_allreduce_async(torch.sparse_coo_tensor([[rank % 2]], [1.0], (4,)), "rows", hvd.Sum)
    assert wait().coalesce().indices().tolist() == [[0, 1]]


def optimizes(rank: int, size: int) -> None:
    model = torch.nn.Linear(2, 1)
    hvd.broadcast_parameters(model.state_dict(), 0)
    options = {"backward_passes_per_step": 1, "compression": hvd.Compression.fp16, "groups": 1}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options |= {"gradient_predivide_factor": 2.0, "sparse_as_dense": True, "process_set": hvd.global_process_set}
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), **options)
    model(torch.full((1, 2), float(rank))).sum().backward()
    optimizer.step()
    assert len({tuple(weights) for weights in hvd.allgather(model.weight.detach()).tolist()}) == 1
    assert model.weight.grad is not None and model.weight.grad.tolist() == [[1.0, 1.0]]


def compresses(rank: int, size: int) -> None:
    class Halved(hvd.Compression.none):  # type: ignore[misc,name-defined]
        @staticmethod
        def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, None]:
            return tensor / 2, None

    for compression, expected in ((hvd.Compression.none, 1.0), (hvd.Compression.fp16, 1.0), (Halved, 0.5)):
        assert hvd.allreduce(torch.ones(1), compression=compression).item() == expected


def broadcasts_states(rank: int, size: int) -> None:
    parameter = torch.full((1,), float(rank), requires_grad=True)
    hvd.broadcast_parameters({"parameter": parameter}, 1)
    optimizer = torch.optim.SGD([parameter], lr=float(rank + 1))
    hvd.broadcast_optimizer_state(optimizer, 1)
    assert (parameter.item(), optimizer.param_groups[0]["lr"]) == (1.0, 2.0)


def moves_objects(rank: int, size: int) -> None:
    assert [function() for function in hvd.allgather_object(lambda: rank)] == [0, 1, 2]
    assert hvd.broadcast_object(lambda: rank, root_rank=2)() == 2


def waits(rank: int, size: int) -> None:
    handle = hvd.allreduce_async(torch.ones(1))
    hvd.synchronize(handle)
    assert hvd.poll(handle)
    hvd.barrier()
    assert hvd.join() in range(size)


def has_process_sets(rank: int, size: int) -> None:
    added = hvd.add_process_set(hvd.ProcessSet([0, 1]))
    if added.included():
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=added).item() == 2
        assert hvd.stats(added).job != hvd.stats().job
    assert hvd.remove_process_set(added)


def normalizes(rank: int, size: int) -> None:
    everywhere = hvd.allgather(hvd.SyncBatchNorm(1)(torch.full((2, 1), float(rank))).detach())
    assert everywhere.mean().item() == pytest.approx(0.0, abs=1e-5)


def copies_from_devices(rank: int, size: int) -> None:
    result = hvd.allreduce(torch.ones(2).to(host_device.install()), op=hvd.Sum)
    assert result.device.type == host_device.NAME and result.cpu().tolist() == [size] * 2


def says_what_is_built(rank: int, size: int) -> None:
    assert hvd.gloo_built() and not (hvd.mpi_built() or hvd.nccl_built() or hvd.cuda_built() or hvd.rocm_built())


def counts(rank: int, size: int) -> None:
    before = hvd.stats()
    hvd.allreduce(torch.ones(1000))
    assert hvd.stats().network.packets_sent > before.network.packets_sent


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


CHECKS: dict[str, Callable[[int, int], None]] = {
    "`init`, `shutdown`": of_the_process,
    "`allreduce`": reduces,
    "`allgather`": moves,
    "`sparse_allreduce_async`": reduces_sparse,
    "`DistributedOptimizer`": optimizes,
    "`Compression.none`": compresses,
    "`broadcast_parameters`": broadcasts_states,
    "`broadcast_object`": moves_objects,
    "`join`": waits,
    "`ProcessSet`": has_process_sets,
    "`SyncBatchNorm`": normalizes,
    "tensors on a GPU": copies_from_devices,
    "`mpi_built`": says_what_is_built,
    "(not in Horovod) `stats`": counts,
    "Adasum": has_no_adasum,
    "`elastic`": is_not_elastic,
    "`start_timeline`": has_no_timeline,
    "`horovod.tensorflow`": has_no_other_frameworks,
    "`horovod.spark`": has_no_launcher,
    "`hvd.mpi_ops.rank`": has_no_basics_in_mpi_ops,
}
"""By how a row of the page's table begins."""


def rows() -> list[str]:
    section = PAGE.split("\n## What is supported\n")[1].split("\n## ")[0]
    return [line.strip("| ") for line in section.splitlines() if line.startswith("|")][2:]


def test_every_row_of_the_table_has_a_check_and_every_check_a_row() -> None:
    assert len(rows()) == len(CHECKS)
    for row, begin in zip(rows(), CHECKS, strict=True):
        assert row.startswith(begin), row
        assert ("not there" in row) == CHECKS[begin].__name__.startswith(("has_no_", "is_not_")), row


@pytest.mark.parametrize("check", CHECKS)
@runs_in("trio")
def test_a_row_of_the_table_is_true(rank: int, size: int, check: str) -> None:
    CHECKS[check](rank, size)


def test_commands_name_files_by_their_paths_in_the_repository() -> None:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    commands = "".join(text for language, text in blocks if not language)
    named = re.findall(r"\S+\.py\b", commands)
    assert named and all((REPOSITORY / name).is_file() for name in named)
