"""DistributedDataParallel over the backend: parameters have the same bits at all workers, and are close to those of a
training in one process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import wiresum.torch
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.ranks.cluster import Cluster, runs_in
from wiresum_lab.ranks.cluster_worker import implementation

STEPS = 6
BATCH = 12


class Network(torch.nn.Module):
    """Convolution, normalisation with buffers, and a branch that some inputs skip."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(1, 8, 3)
        self.normalisation = torch.nn.BatchNorm2d(8)
        self.hidden = torch.nn.Linear(8 * 6 * 6, 64)
        self.detour = torch.nn.Linear(64, 64)
        self.output = torch.nn.Linear(64, 10)

    def forward(self, images: torch.Tensor, detour: bool = True) -> torch.Tensor:
        features = torch.relu(self.normalisation(self.convolution(images)))
        hidden = torch.relu(self.hidden(features.flatten(1)))
        if detour:
            hidden = hidden + torch.relu(self.detour(hidden))
        return self.output(hidden)


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(BATCH, 1, 8, 8, generator=generator), torch.randint(0, 10, (BATCH,), generator=generator)


def part(rank: int, size: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = batch(step)
    return images[rank::size], labels[rank::size]


def train(model: torch.nn.Module, data: Callable[[int], tuple[torch.Tensor, torch.Tensor]], **forward: Any) -> None:
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(STEPS):
        images, labels = data(step)
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(images, **forward), labels).backward()
        optimiser.step()


def flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().reshape(-1).double() for parameter in model.parameters()])


def assert_identical_everywhere(model: torch.nn.Module, size: int) -> None:
    mine = flat(model)
    everybody = [torch.zeros_like(mine) for _ in range(size)]
    dist.all_gather(everybody, mine)
    assert all(torch.equal(other, mine) for other in everybody)


def fresh(rank: int, **options: Any) -> DistributedDataParallel:
    torch.manual_seed(rank)  # different at each worker, so that DDP has to broadcast rank 0's parameters
    return DistributedDataParallel(Network(), **options)


@runs_in("trio")
def test_training_matches_one_process(rank: int, size: int) -> None:
    torch.manual_seed(0)
    alone = Network()
    alone.normalisation.eval()  # batch statistics would differ: one process sees larger batches
    train(alone, batch)
    before = wiresum.torch.stats()
    model = fresh(rank, bucket_cap_mb=0.02)
    model.module.normalisation.eval()
    train(model, lambda step: part(rank, size, step))
    assert_identical_everywhere(model, size)
    torch.testing.assert_close(flat(model), flat(alone), rtol=1e-4, atol=1e-5)
    after = wiresum.torch.stats()
    reduced = after.collectives_network["all_reduce"] - before.collectives_network["all_reduce"]
    assert reduced > STEPS, f"{reduced}: several buckets in each step were expected"
    assert after.collectives_gloo["all_reduce"] == before.collectives_gloo["all_reduce"]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"static_graph": True},
        {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.01},
        {"broadcast_buffers": False},
    ],
    ids=str,
)
@runs_in("trio")
def test_parameters_are_bit_identical(rank: int, size: int, options: dict[str, Any]) -> None:
    model = fresh(rank, **options)
    train(model, lambda step: part(rank, size, step))
    assert_identical_everywhere(model, size)


@runs_in("trio")
def test_unused_parameters(rank: int, size: int) -> None:
    model = fresh(rank, find_unused_parameters=True)
    train(model, lambda step: part(rank, size, step), detour=rank == 0)
    assert_identical_everywhere(model, size)
    model = fresh(rank, find_unused_parameters=True)
    train(model, lambda step: part(rank, size, step), detour=False)
    assert_identical_everywhere(model, size)


@runs_in("trio")
def test_no_sync_accumulates(rank: int, size: int) -> None:
    model = fresh(rank)
    model.module.normalisation.eval()
    before = wiresum.torch.stats().collectives_network["all_reduce"]
    for step in range(2):
        with model.no_sync() if step == 0 else contextlib.nullcontext():
            images, labels = part(rank, size, step)
            torch.nn.functional.cross_entropy(model(images), labels).backward()
    assert wiresum.torch.stats().collectives_network["all_reduce"] - before <= 2
    gradients = torch.cat([p.grad.reshape(-1).double() for p in model.parameters() if p.grad is not None])
    everybody = [torch.zeros_like(gradients) for _ in range(size)]
    dist.all_gather(everybody, gradients)
    assert all(torch.equal(other, gradients) for other in everybody)


HOOKS = ("allreduce_hook", "fp16_compress_hook", "powerSGD_hook", "powerSGD_hook in fp16")
"""PyTorch's own hooks. PyTorch allows bf16_compress_hook on GPUs only."""


def hooked(rank: int, size: int, name: str, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """The parameters after a training with a communication hook."""
    model = fresh(rank, process_group=group)
    model.module.normalisation.eval()
    if name.startswith("powerSGD"):
        state = powerSGD_hook.PowerSGDState(
            group, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=1
        )
        hook: Any = powerSGD_hook.powerSGD_hook
        model.register_comm_hook(state, default_hooks.fp16_compress_wrapper(hook) if "fp16" in name else hook)
    else:
        model.register_comm_hook(group, getattr(default_hooks, name))
    train(model, lambda step: part(rank, size, step))
    assert_identical_everywhere(model, size)
    return flat(model)


@pytest.mark.parametrize("name", HOOKS)
@runs_in("trio")
def test_communication_hooks_train_as_with_gloo(rank: int, size: int, name: str) -> None:
    gloo = dist.new_group(backend="gloo")
    assert gloo is not None
    expected = hooked(rank, size, name, gloo)
    before = wiresum.torch.stats().collectives_network["all_reduce"]
    torch.testing.assert_close(hooked(rank, size, name), expected, rtol=1e-3, atol=1e-4)
    assert wiresum.torch.stats().collectives_network["all_reduce"] - before >= STEPS


@pytest.mark.slow
def test_communication_hooks_train_alike_at_debug_level_detail(make_cluster: Callable[..., Cluster]) -> None:
    plain, checked = make_cluster(2), make_cluster(2, variables={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})
    for name in HOOKS:
        (expected, _), (found, _) = plain.run(hooked, name), checked.run(hooked, name)
        assert torch.equal(found, expected), name


@runs_in("trio")
def test_uneven_inputs_join(rank: int, size: int) -> None:
    model = fresh(rank, broadcast_buffers=False)
    with Join([model]):
        for step in range(3 + rank):
            images, labels = part(rank, size, step)
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter.sub_(0.01 * parameter.grad)
                    parameter.grad = None
    everybody: list[torch.Tensor] = [torch.zeros_like(flat(model)) for _ in range(size)]
    dist.all_gather(everybody, flat(model))
    assert torch.isfinite(torch.stack(everybody)).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
@runs_in("trio")
def test_models_in_half_and_double_precision(rank: int, size: int, dtype: torch.dtype) -> None:
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(20, 30).to(dtype))
    for step in range(3):
        model(torch.full((4, 20), step + rank + 1.0, dtype=dtype)).square().mean().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.sub_(1e-4 * parameter.grad)
                parameter.grad = None
    assert_identical_everywhere(model, size)


class Numbers(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), float(index), device="cpu")  # a forked child cannot use CUDA


@runs_in("trio")
def test_data_loaders_that_fork(rank: int, size: int) -> None:
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=2, multiprocessing_context="fork")
    for _ in range(2):
        for rows in loader:
            model(rows.to(model.module.weight.device)).sum().backward()
    assert_identical_everywhere(model, size)


@runs_in("trio")
def test_a_forked_child_may_drop_a_collective_whatever_a_thread_of_the_parent_holds(rank: int, size: int) -> None:
    begin, held, forked = torch.zeros(1), threading.Event(), threading.Event()
    if rank != 0:
        dist.recv(begin, 0)
    works = [dist.all_reduce(torch.ones(10), async_op=True)]
    if rank == 0:

        def hold() -> None:
            with implementation().network._attendant.changed:
                held.set()
                forked.wait(PATIENCE_S)

        holder = threading.Thread(target=hold)
        holder.start()
        held.wait()
        process = torch.multiprocessing.get_context("fork").Process(target=works.clear)
        process.start()
        forked.set()
        holder.join()
        process.join(PATIENCE_S)
        exit_code = process.exitcode
        process.kill()
        for peer in range(1, size):
            dist.send(begin, peer)
        assert exit_code == 0
    works[0].wait()


@runs_in("trio")
def test_a_collective_in_a_forked_child_is_an_error(rank: int, size: int) -> None:
    context = torch.multiprocessing.get_context("fork")
    parent, child = context.Pipe()

    def in_child() -> None:
        try:
            dist.all_reduce(torch.ones(1))
        except RuntimeError as error:
            child.send(str(error))

    process = context.Process(target=in_child)
    process.start()
    assert parent.poll(PATIENCE_S) and "forked" in parent.recv()
    process.join(PATIENCE_S)
    assert process.exitcode == 0
    tensor = torch.ones(10)
    dist.all_reduce(tensor)
    assert (tensor == size).all()
