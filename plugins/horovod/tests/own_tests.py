"""Runs Horovod's own tests against `wiresum.horovod.torch`, in one rank: torchrun starts as many as are wanted.

    torchrun --nproc-per-node 4 own_tests.py FOLDER [arguments for pytest]

FOLDER is a checkout of Horovod, of which only `test/` is used: nothing of it is built or installed. `horovod.torch` is
ours under that name; of `horovod.runner` the tests' helpers want one function.
"""

from __future__ import annotations

import os
import sys
import threading
import unittest.mock
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest
import torch

import wiresum.horovod.torch


def in_thread(
    target: Callable[..., object], args: tuple[object, ...] = (), name: str | None = None
) -> threading.Thread:
    thread = threading.Thread(target=target, args=args, name=name, daemon=True)
    thread.start()
    return thread


def stand_in(name: str, **attributes: object) -> None:
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    module.__path__ = []
    vars(module).update(attributes)
    sys.modules[name] = module


def main() -> int:
    checkout, *arguments = sys.argv[1:]
    os.environ["HOROVOD_RANK"] = os.environ["RANK"]  # makes each test end with shutdown and init
    os.environ["HOROVOD_SIZE"] = os.environ["WORLD_SIZE"]
    stand_in("horovod", torch=wiresum.horovod.torch)
    stand_in("horovod.runner")
    stand_in("horovod.runner.util")
    stand_in("horovod.runner.util.threads", in_thread=in_thread)
    sys.modules["horovod.torch"] = wiresum.horovod.torch
    sys.modules.setdefault("mock", unittest.mock)
    # Excludes Muon: the tests give vectors to every optimizer, and Muon takes matrices only.
    torch.optim.Muon.__module__ = "young"
    tests = Path(checkout, "test", "parallel", "test_torch.py")
    sys.path.insert(0, str(Path(checkout, "test", "utils")))
    quiet = [] if os.environ["RANK"] == "0" else ["-q"]
    return pytest.main([str(tests), "-p", "no:cacheprovider", "-rs", "--tb=short", *quiet, *arguments])


if __name__ == "__main__":
    sys.exit(main())
