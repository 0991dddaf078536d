"""Tensors on an accelerator, the one that PyTorch finds, else the device for tests: copied to host memory and back, for
every collective."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable

import pytest
import torch

import wiresum.horovod.torch as hvd
from wiresum_lab.doubles.device import BUILD_TIMEOUT_S
from wiresum_lab.ranks import on_device
from wiresum_lab.ranks.cluster import Cluster, runs_in

from . import horovod_ranks


def device_by(module: str) -> torch.device:
    if module:
        importlib.import_module(module).load()
    return on_device.device()


def calls_every_collective(rank: int, size: int, module: str) -> None:
    device = device_by(module)
    horovod_ranks.begin(rank, size)

    def check(result: torch.Tensor, expected: object) -> None:
        assert result.device.type == device.type
        assert result.cpu().tolist() == expected

    mine = torch.arange(4.0).add(rank).to(device)
    total = [1.0, 3.0, 5.0, 7.0]
    check(hvd.allreduce(mine, op=hvd.Sum), total)
    check(hvd.allreduce(mine, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.5), total)
    check(hvd.allreduce(torch.arange(4).to(device), op=hvd.Max), [0, 1, 2, 3])
    check(hvd.grouped_allreduce([mine, mine], op=hvd.Sum)[1], total)
    check(hvd.allgather(mine), [0.0, 1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 4.0])
    check(hvd.broadcast(mine, 1), [1.0, 2.0, 3.0, 4.0])
    check(hvd.alltoall(mine), [[0.0, 1.0, 1.0, 2.0], [2.0, 3.0, 3.0, 4.0]][rank])
    check(hvd.reducescatter(mine, op=hvd.Sum), [total[:2], total[2:]][rank])
    check(mine, torch.arange(4.0).add(rank).tolist())
    hvd.allreduce_(mine, op=hvd.Sum)
    check(mine, total)
    target = torch.full((2,), float(rank)).to(device)
    hvd.broadcast_parameters({"target": target}, 1)
    check(target, [1.0, 1.0])


def trains(rank: int, size: int, module: str) -> None:
    device = device_by(module)
    horovod_ranks.begin(rank, size)
    leaf = torch.full((2,), float(rank), requires_grad=True)
    hvd.allreduce(leaf.to(device), op=hvd.Sum).cpu().sum().backward()
    assert leaf.grad is not None and leaf.grad.tolist() == [2.0, 2.0]
    parameter = torch.zeros(2).to(device).requires_grad_()
    optimizer = torch.optim.SGD([parameter], lr=0.1 + rank, momentum=0.9)
    optimizer.state[parameter]["momentum_buffer"] = torch.full((2,), 5.0 + rank).to(device)
    hvd.broadcast_optimizer_state(optimizer, 0)
    buffer = optimizer.state[parameter]["momentum_buffer"]
    assert buffer.device.type == device.type and buffer.cpu().tolist() == [5.0, 5.0]
    assert optimizer.param_groups[0]["lr"] == 0.1


@pytest.mark.slow
@pytest.mark.timeout(2 * BUILD_TIMEOUT_S)
@pytest.mark.skipif(shutil.which("ninja") is None, reason="no ninja for the device of tests")
@pytest.mark.parametrize("test", [calls_every_collective, trains])
def test_tensors_of_a_device_are_copied_to_host_memory_and_back(
    launch: Callable[..., Cluster], test: Callable[..., None]
) -> None:
    launch(2).run(test, on_device.found_or_double())


@runs_in("trio")
def test_what_goes_over_the_network_is_not_made_on_the_default_device(rank: int, size: int) -> None:
    """Ranks other than the root once received objects there. (Meta tensors have no memory to receive them.)"""
    parameters = [torch.zeros(size, requires_grad=True), torch.zeros(size, 2, requires_grad=True)]
    optimizer = torch.optim.SGD(parameters, lr=1.0 + rank, momentum=0.9)
    with torch.device("meta"):
        assert hvd.broadcast_object({"rank": rank}, root_rank=1) == {"rank": 1}
        assert hvd.allgather_object(rank) == list(range(size))
        hvd.DistributedOptimizer(optimizer, groups=1)
        (hvd.allgather(parameters[0]).sum() + hvd.reducescatter(parameters[1]).sum()).backward()
        received, counts = hvd.alltoall(parameters[0], splits=[1] * size)
        optimizer.step(lambda: float(rank))
        hvd.broadcast_optimizer_state(optimizer, root_rank=1)
    assert optimizer.param_groups[0]["lr"] == 2.0 and counts.tolist() == [1] * size
    assert received.is_cpu and all(state["momentum_buffer"].is_cpu for state in optimizer.state.values())
