"""`load()` makes an accelerator the default device of a worker, so that tests written for the CPU run on it.

The environment's TESTS_ON says which: `accelerator` is the one that PyTorch finds, `double` the device for tests.
"""

from __future__ import annotations

import os

import torch

from wiresum_lab.doubles import device as double

PREPARE_VARIABLE = "TESTS_ON"


def load() -> None:
    if os.environ.get(PREPARE_VARIABLE) == "double":
        double.load()
    device = torch.accelerator.current_accelerator(check_available=True)
    if device is None:
        raise RuntimeError(f"{PREPARE_VARIABLE} is set, and PyTorch finds no accelerator here")
    torch.set_default_device(device)


def prepare() -> str:
    """What a cluster's workers load: this module, if TESTS_ON is set."""
    return __name__ if os.environ.get(PREPARE_VARIABLE) else ""
