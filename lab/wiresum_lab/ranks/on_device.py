"""Runs tests that were written for the CPU on an accelerator: `load()` puts all tensors that a worker makes there.

TESTS_ON in the environment chooses the device: `accelerator` is the one that PyTorch finds, `double` the device for
tests. The other functions are for tests and measurements that name the device themselves.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

from wiresum_lab.doubles import device as double

PREPARE_VARIABLE = "TESTS_ON"
CLOCK_HZ_MAX = 3e9
"""A bound above the clock rates of GPUs."""
_moving = contextlib.ExitStack()


class _Moving(TorchFunctionMode):
    """Makes tensors without a device on the CPU, and moves them to the device. torch.set_default_device would refuse
    the CPU's random generators, which the tests use."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        made = func(*args, **given)
        if func not in _device_constructors() or given.get("device") is not None or not isinstance(made, torch.Tensor):
            return made
        return made.detach().to(self._device).requires_grad_(made.requires_grad)


def load() -> None:
    if os.environ.get(PREPARE_VARIABLE) == "double":
        double.load()
    device = torch.accelerator.current_accelerator(check_available=True)
    if device is None:
        raise RuntimeError(f"{PREPARE_VARIABLE} is set, and PyTorch finds no accelerator here")
    _moving.enter_context(_Moving(device))


def prepare() -> str:
    """The module that a cluster's workers load: this one if TESTS_ON is set, else none."""
    return __name__ if os.environ.get(PREPARE_VARIABLE) else ""


def found_or_double() -> str:
    """The module that workers load before they use an accelerator: none if PyTorch finds one, else the device for
    tests."""
    if torch.accelerator.is_available():
        return ""
    subprocess.run([sys.executable, "-m", double.__name__], check=True, timeout=double.BUILD_TIMEOUT_S)
    return double.__name__


def device(index: int = 0) -> torch.device:
    kind = torch.accelerator.current_accelerator()
    assert kind is not None, "no accelerator was found or loaded"
    return torch.device(kind.type, index)


def contexts() -> list[bool]:
    """Whether this process has made a context on each of two devices. Empty if there are fewer devices, or PyTorch
    cannot tell."""
    module: Any = torch.get_device_module(device())
    has_context = getattr(module, "has_context", None) or getattr(torch._C, "_cuda_hasPrimaryContext", None)
    if has_context is None or torch.accelerator.device_count() < 2:
        return []
    return [bool(has_context(index)) for index in range(2)]


def keep_busy(seconds: float = 0.7) -> None:
    """Queues work on the current stream that takes at least so long."""
    module: Any = torch.get_device_module(device())
    if hasattr(module, "sleep"):
        module.sleep(seconds)
    elif hasattr(module, "_sleep"):
        module._sleep(int(seconds * CLOCK_HZ_MAX))


def hold(seconds: float = 0.7) -> Callable[[], object]:
    """Keeps the current stream busy until the returned function is called; on a real accelerator for at least so
    long."""
    module: Any = torch.get_device_module(device())
    if hasattr(module, "hold"):
        release: Callable[[], object] = module.hold()
        return release
    keep_busy(seconds)
    return lambda: None


def values(elements: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Random values of many magnitudes, on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    if not dtype.is_floating_point:
        return torch.randint(-1000, 1000, (elements,), generator=generator, dtype=dtype, device="cpu")
    exponents = torch.randint(-6, 5, (elements,), generator=generator, device="cpu")
    return (torch.randn(elements, generator=generator, device="cpu") * torch.pow(2.0, exponents)).to(dtype)


def started(work: Any) -> dist.Work:
    assert isinstance(work, dist.Work)
    return work


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.cpu().contiguous().reshape(-1).view(torch.uint8)
