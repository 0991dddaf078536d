"""A worker of cluster.py: makes its process group, and runs functions on command."""

from __future__ import annotations

import contextlib
import datetime
import faulthandler
import functools
import importlib
import importlib.util
import inspect
import itertools
import multiprocessing.connection
import os
import signal
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

import wiresum.torch
from wiresum.agent import membership
from wiresum.agent.life_table import TIMERS, Event
from wiresum.torch import waits
from wiresum.torch.backend import WiresumBackend, backend_of
from wiresum_lab.patience import PATIENCE_S


def world() -> Any:
    """The default process group as an object, for tests that use its methods and attributes."""
    return dist.group.WORLD


def implementation(group: dist.ProcessGroup | None = None) -> WiresumBackend:
    """The backend object of a group of the wiresum backend; None means the default group."""
    found = backend_of(group if group is not None else world())
    assert found is not None, "the group is of another backend"
    return found


def lanes(group: dist.ProcessGroup | None = None) -> int:
    """How many words a packet of this group has."""
    network = implementation(group).network
    assert network is not None, "the group has no session"
    return network.session.lanes


def main(
    channel: multiprocessing.connection.Connection, setup: dict[str, Any], variables: dict[str, str], log: str
) -> None:
    """The worker's main function. It ends on command, or when the test's process is gone."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.clear()
    os.environ.update(variables)
    # PyTorch has read its debug level on import, before the fork, so it must read it again.
    dist.set_debug_level_from_env()  # type: ignore[attr-defined]
    faulthandler.enable(file=2)
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
    torch.set_num_threads(1)
    wait_long()
    if setup["prepare"]:
        importlib.import_module(setup["prepare"]).load()
    rank, size, regroups = setup["rank"], setup["size"], setup["regroups"]
    channel.send(answer(functools.partial(join_group, **setup) if setup["grouped"] else lambda: None))
    turns = itertools.count()
    with contextlib.suppress(EOFError):
        while (message := channel.recv()) is not None:
            function = functools.partial(call, rank, size, *message)
            channel.send(answer(functools.partial(regroup, setup, next(turns), function) if regroups else function))
    if dist.is_initialized():
        dist.destroy_process_group()
    sys.stdout.flush()


def wait_long() -> None:
    """Makes time-outs long, so that an error keeps its cause, even if other ranks, the store or the service are slow to
    report it."""
    waits.CAUSE_S = waits.CALLS_S = waits.DEPARTURE_S = waits.DRAIN_S = PATIENCE_S / 4
    membership.LEAVE_S_MAX = TIMERS[Event.GIVE_UP] = PATIENCE_S / 4  # type: ignore[attr-defined]


def regroup(setup: dict[str, Any], turn: int, function: Any) -> Any:
    """The function's result in a new group. The former group is left only now, since its function may have run longer
    at other ranks than here."""
    if dist.is_initialized():
        dist.destroy_process_group()
    join_group(**setup, turn=turn)
    return function()


def join_group(
    *, rank: int, size: int, store_port: int, backend: str, timeout_s: float, turn: int = 0, **_: object
) -> None:
    wiresum.torch.register()
    store = PrefixStore(f"{turn}", TCPStore("127.0.0.1", store_port, is_master=False))
    timeout = datetime.timedelta(seconds=timeout_s)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)


def call(rank: int, size: int, path: str, name: str, arguments: tuple[Any, ...]) -> Any:
    return inspect.unwrap(getattr(load(path), name))(rank, size, *arguments)  # `runs_in` has wrapped the function


def answer(function: Any) -> tuple[str, Any]:
    try:
        return "result", function()
    except BaseException:
        return "error", traceback.format_exc()


@functools.cache
def load(path: str) -> ModuleType:
    """Loads a module of tests in a package for its folder, so that it may import its neighbours."""
    folder = Path(path).parent
    package = f"tests_{abs(hash(folder))}"
    if package not in sys.modules:
        sys.modules[package] = ModuleType(package)
        sys.modules[package].__path__ = [str(folder)]
    name = f"{package}.{Path(path).stem}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
