"""Models on an accelerator: on the one that PyTorch finds, else on the device for tests
(wiresum_lab.doubles.device)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import wiresum.compress as wc
from wiresum.compress import host_copy
from wiresum.compress.ddp_hook import Granularity
from wiresum.compress.memory import memory_of
from wiresum_lab.doubles.device import BUILD_TIMEOUT_S
from wiresum_lab.processes import SwitchProcess
from wiresum_lab.ranks.cluster import Cluster, runs_in
from wiresum_lab.ranks.on_device import contexts, device, found_or_double, hold, keep_busy

from .methods import METHODS
from .test_ddp_hook import GRANULARITIES

SHAPES = ((40, 30), (7,), (5, 6, 3), (100,), (1,))
BUSY_S = 0.7
STEPS = 3
Keep: TypeAlias = Callable[[], object] | None

# A PyTorch that came after the setup: the device is compiled here.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(BUILD_TIMEOUT_S)]


@pytest.fixture(scope="module")
def duo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two workers with an accelerator."""
    prepare = found_or_double()
    with (
        SwitchProcess(tmp_path_factory.mktemp("switch")) as switch,
        Cluster(switch, 2, tmp_path_factory.mktemp("duo"), prepare=prepare) as cluster,
    ):
        yield cluster


class _Product(torch.autograd.Function):
    """A loss with a given gradient, which any device computes exactly. It is written by its stream some time after the
    call, as a GPU writes its own: after what `keep` does to its stream."""

    @staticmethod
    def forward(context: Any, parameter: torch.Tensor, gradient: torch.Tensor, keep: Keep) -> torch.Tensor:
        context.save_for_backward(gradient)
        context.keep = keep
        return torch.zeros((), device=parameter.device, dtype=parameter.dtype)

    @staticmethod
    def backward(context: Any, *_: torch.Tensor) -> Any:
        (gradient,) = context.saved_tensors
        made = torch.zeros_like(gradient)
        if context.keep is not None:
            context.keep()
        made.copy_(gradient)
        return made, None, None


class Given(torch.nn.Module):
    """Parameters whose gradients are given."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        values = [torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES]
        self.layers = torch.nn.ParameterList([torch.nn.Parameter(value) for value in values])

    def forward(self, gradients: list[torch.Tensor], keep: Keep = None) -> torch.Tensor:
        losses = [_Product.apply(*pair, keep) for pair in zip(self.layers, gradients, strict=True)]  # type: ignore[no-untyped-call]
        return torch.stack(losses).sum()


def given(rank: int, step: int, on: torch.device, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * rank + step)
    return [torch.randn(shape, generator=generator, device="cpu").to(dtype).to(on) for shape in SHAPES]


def attached(
    method: wc.Compressor, on: torch.device, granularity: Granularity = "layer", dtype: torch.dtype = torch.float32
) -> tuple[DistributedDataParallel, torch.optim.Optimizer, wc.Attachment]:
    model = DistributedDataParallel(Given(dtype).to(on), bucket_cap_mb=0.0001)
    momentum = 0.0 if memory_of(method.memory).has_momentum else 0.5
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=momentum)  # powers of two: FMA changes no bits
    return model, optimizer, wc.attach(model, optimizer, method, granularity=granularity, seed=3)


def bits_of_training(
    rank: int, on: torch.device, method: wc.Compressor, granularity: Granularity, dtype: torch.dtype = torch.float32
) -> list[bytes]:
    """Gradients of each step; after the first one, compression is restored from a checkpoint."""
    model, optimizer, attachment = attached(method, on, granularity, dtype)
    found = []
    for step in range(STEPS):
        optimizer.zero_grad()
        model(given(rank, step, on, dtype)).backward()
        means = [parameter.grad for parameter in model.parameters()]
        assert all(mean is not None and mean.device == on for mean in means)
        found += [mean.cpu().double().numpy().tobytes() for mean in means if mean is not None]
        optimizer.step()
        if step == 0 and granularity != "bucket":
            attachment.load_state_dict(attachment.state_dict())
    return found


def same_bits(rank: int, size: int, names: list[str]) -> None:
    for name, granularity in zip(names, GRANULARITIES, strict=True):
        for dtype in (torch.float32, torch.bfloat16, torch.float64):
            expected, seen = (
                bits_of_training(rank, on, METHODS[name], granularity, dtype) for on in (torch.device("cpu"), device())
            )
            assert expected == seen, (name, granularity, dtype)


def test_gradients_on_an_accelerator_get_the_bits_of_those_on_the_cpu(duo: Cluster) -> None:
    duo.run(same_bits, ["IntDIANA", "TopK", "PowerSGD"])


@runs_in("duo")
def test_the_hook_returns_before_the_device_has_the_bucket_and_sums_what_it_writes(rank: int, size: int) -> None:
    model, _, attachment = attached(wc.Identity(), device())
    expected = [sum(parts) / size for parts in zip(*(given(r, 0, device()) for r in range(size)), strict=True)]
    arrived, early = attachment.arrived, []

    def noting(bucket: Any) -> Any:
        if bucket.is_last():  # the last bucket waits for the others
            return arrived(bucket)
        release = hold(BUSY_S)
        written = torch.accelerator.current_stream().record_event()
        future = arrived(bucket)
        early.append(not written.query())
        release()
        return future

    model(given(rank, 0, device())).backward()  # DDP makes small buckets after the first pass
    model.zero_grad()
    attachment.arrived = noting  # type: ignore[method-assign]
    model(given(rank, 0, device()), partial(keep_busy, BUSY_S / len(SHAPES))).backward()
    assert early and all(early), early
    for parameter, mean in zip(model.parameters(), expected, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, mean)


@runs_in("duo")
def test_what_follows_backward_sees_the_average_and_backward_does_not_wait_for_its_copy(rank: int, size: int) -> None:
    model, _, attachment = attached(wc.Identity(), device())
    gradients = given(rank, 0, device())
    expected = [sum(parts) / size for parts in zip(*(given(r, 0, device()) for r in range(size)), strict=True)]
    with attachment._streams.of(device())[1]:
        release = hold(BUSY_S)
        copies = torch.accelerator.current_stream().record_event()
    model(gradients).backward()
    assert not copies.query()
    release()
    seen = [torch.zeros_like(parameter) for parameter in model.parameters()]
    for copy, parameter in zip(seen, model.parameters(), strict=True):
        assert parameter.grad is not None
        copy.copy_(parameter.grad)
    for copy, mean in zip(seen, expected, strict=True):
        torch.testing.assert_close(copy, mean)


@runs_in("duo")
def test_a_device_that_hangs_is_an_error_that_says_so(rank: int, size: int) -> None:
    model, _, attachment = attached(wc.Identity(), device())
    held: list[Callable[[], object]] = []
    limit_s, host_copy.TIMEOUT_S = host_copy.TIMEOUT_S, 0.0
    try:
        with pytest.raises(RuntimeError, match="has not come to a bucket of gradients within"):
            model(given(rank, 0, device()), lambda: held.append(hold(BUSY_S))).backward()
    finally:
        host_copy.TIMEOUT_S = limit_s
        for release in held:
            release()
    attachment.detach()
    torch.accelerator.synchronize()
    dist.barrier()


def uses_the_second_device(rank: int, size: int) -> list[bool]:
    if not contexts():
        return []
    torch.accelerator.set_device_index(1)
    for granularity in GRANULARITIES:
        bits_of_training(rank, device(1), METHODS["IntDIANA"], granularity)
    return contexts()


def test_nothing_is_made_on_a_device_that_the_program_does_not_use(tmp_path: Path) -> None:
    with SwitchProcess(tmp_path) as switch, Cluster(switch, 2, tmp_path, prepare=found_or_double()) as cluster:
        for found in cluster.run(uses_the_second_device):
            if not found:
                pytest.skip("there are not two devices, or PyTorch does not say what was made there")
            assert found == [False, True]


@runs_in("duo")
def test_a_default_device_does_not_move_what_compression_has_on_the_host(rank: int, size: int) -> None:
    model, _, attachment = attached(METHODS["IntDIANA"], device())
    with torch.device(device()):
        model(given(rank, 0, device())).backward()
        attachment.synchronize()
        model(given(rank, 1, device())).backward()
    assert attachment.report().steps == 2


def _with_one_nan(tensor: torch.Tensor) -> torch.Tensor:
    """Processors multiply a NaN by something to NaNs of different bits."""
    return torch.where(tensor.isnan(), torch.nan, tensor)


def scaled(rank: int, on: torch.device) -> list[bytes]:
    """Trains with a loss scaler whose scale is on the device and halves after an Inf; then clips gradients."""
    model, optimizer, attachment = attached(METHODS["TopK"], on)
    attachment.detach()
    scaler = torch.amp.GradScaler(on.type, init_scale=256.0, growth_interval=2)
    wc.attach(model, optimizer, METHODS["TopK"], scaler=scaler)
    found = []
    for step in range(5):
        scale = scaler.scale(torch.ones((), device=on))
        gradients = [gradient * scale for gradient in given(rank, step, on)]
        if (step, rank) == (2, 1):
            gradients[0].fill_(float("inf"))
        optimizer.zero_grad()
        model(gradients).backward()
        scaler.unscale_(optimizer)
        found += [_with_one_nan(p.grad).cpu().numpy().tobytes() for p in model.parameters() if p.grad is not None]
        scaler.step(optimizer)
        scaler.update()
        found.append(str(scaler.get_scale()).encode())
    return found


@runs_in("duo")
def test_memories_follow_a_loss_scaler_whose_scale_the_device_has(rank: int, size: int) -> None:
    expected, seen = (scaled(rank, on) for on in (torch.device("cpu"), device()))
    assert expected == seen
    assert len({text for text in expected if text[-2:] == b".0"}) > 1  # the scale has changed


@runs_in("duo")
def test_a_group_without_a_backend_for_host_memory_is_refused(rank: int, size: int) -> None:
    group = dist.new_group([0, 1], backend=f"{device().type}:wiresum")
    model = DistributedDataParallel(Given().to(device()), process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with pytest.raises(RuntimeError, match="has no backend: name one in"):
        wc.attach(model, optimizer, wc.TopK(0.1))
    dist.destroy_process_group(group)


def mean_of_rows(rank: int, on: torch.device) -> torch.Tensor:
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.EmbeddingBag(50, 8, sparse=True).to(on))
    wc.attach(model, torch.optim.SGD(model.parameters(), lr=0.5), wc.TopK(0.1))
    words = torch.randint(0, 50, (6, 3), generator=torch.Generator().manual_seed(rank))
    model(words.to(on)).square().sum().backward()
    gradient = model.module.weight.grad
    assert gradient is not None and gradient.is_sparse and gradient.device == on
    return gradient.to_dense().cpu()


@runs_in("duo")
def test_sparse_gradients_are_averaged_on_an_accelerator_too(rank: int, size: int) -> None:
    torch.testing.assert_close(mean_of_rows(rank, device()), mean_of_rows(rank, torch.device("cpu")))
