"""`load()` makes device.cpp a device of PyTorch, named "queued", in this process."""

from __future__ import annotations

import functools
import types
from pathlib import Path
from typing import Any

import torch
from torch.utils import backend_registration

from wiresum.torch.extension import COMPILE_TIMEOUT_S, Extension
from wiresum_lab.patience import FACTOR

NAME = "queued"
# Without optimization, which would take the compiler most of its time: tests have small tensors.
EXTENSION = Extension("wiresum_queued_device", Path(__file__).with_suffix(".cpp"), optimization="-O0")
BUILD_TIMEOUT_S = COMPILE_TIMEOUT_S * FACTOR


@functools.cache
def load() -> Any:
    """Registers the device and returns its module, `torch.queued`. Call this function before anything asks PyTorch for
    accelerators."""
    native = EXTENSION.load()
    module: Any = types.ModuleType(f"torch.{NAME}")
    module.is_available = module.is_initialized = lambda: True
    module._is_in_bad_fork = lambda: False
    module.manual_seed_all = lambda seed: None
    module.device_count = lambda: native.DEVICES
    for name in ("current_device", "set_device", "has_context", "sleep", "hold", "pinned_bytes", "set_capturing"):
        setattr(module, name, getattr(native, name))
    backend_registration.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, module)
    backend_registration.generate_methods_for_privateuse1_backend()
    return module


if __name__ == "__main__":  # compiles the extension, in a process that does not use the device
    EXTENSION.build(BUILD_TIMEOUT_S)
