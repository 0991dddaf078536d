"""Gloo inside: whatever the network does not do, over the same rendezvous."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ProcessGroupGloo, Store

from wiresum.agent.config import AgentConfig
from wiresum.torch.plan import in_place

BREAK_TIMEOUT = timedelta(milliseconds=1)
BREAK_TAG = 0x7FFFFFFF
"""No user's receive has this tag."""


def make_gloo(store: Store, rank: int, size: int, timeout: timedelta, config: AgentConfig) -> ProcessGroupGloo:
    """Connects all workers with each other.

    Not left to the first use: then two workers that send and receive would wait for all the others. Gloo listens
    where the data path does, since a host's name often resolves to an address that other hosts cannot reach;
    GLOO_SOCKET_IFNAME, if set, has the last word.
    """
    if os.environ.get("GLOO_SOCKET_IFNAME"):
        return ProcessGroupGloo(store, rank, size, timeout)
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [ProcessGroupGloo.create_device(hostname=config.address or _source_address(config))]
    options._timeout = timeout
    return ProcessGroupGloo(store, rank, size, options)


def whole_group(gloo: ProcessGroupGloo, store: Store, rank: int, size: int) -> dist.ProcessGroup:
    """Gloo as a complete ProcessGroup: the backend alone lacks the coalesced forms and the profiler's records."""
    group = dist.ProcessGroup(store, rank, size)
    group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
    return group


def break_connections(gloo: ProcessGroupGloo) -> None:
    """Makes every pending and later operation fail at once.

    Gloo closes all of its connections when one receive runs out of time; this is the one way to make it do so.
    """
    peer = (gloo.rank() + 1) % gloo.size()
    with contextlib.suppress(RuntimeError):  # that it fails is the purpose
        gloo.recv([torch.empty(1)], peer, BREAK_TAG).wait(BREAK_TIMEOUT)  # type: ignore[attr-defined]


def staged_for_gloo(
    arguments: tuple[Any, ...], written: list[torch.Tensor]
) -> tuple[list[Any], list[tuple[torch.Tensor, torch.Tensor]]]:
    """The same arguments, with a row-major copy in place of each tensor that is laid out otherwise.

    Gloo looks at a tensor's memory and not at its strides, and mostly says nothing when that gives something wrong.
    Also returns (the caller's tensor, the memory whose result it gets) for those among the `written` ones.
    """
    outputs = {id(tensor) for tensor in written}
    staged: list[tuple[torch.Tensor, torch.Tensor]] = []

    def stage(argument: Any) -> Any:
        if isinstance(argument, (list, tuple)):
            return [stage(item) for item in argument]
        if not isinstance(argument, torch.Tensor) or argument.layout is not torch.strided or in_place(argument):
            return argument
        memory = torch.empty(argument.shape, dtype=argument.dtype).copy_(argument.detach())
        if id(argument) in outputs:
            staged.append((argument, memory))
        return memory

    return [stage(argument) for argument in arguments], staged


def connections_are_broken(error: Exception) -> bool:
    """Was it the transport that failed, rather than a call that Gloo does not know?"""
    text = str(error).lower()
    return "/transport/" in text or "connection" in text or "timed out" in text or "timeout" in text


def without_average(options: Any, tensors: list[torch.Tensor], size: int) -> tuple[Any, Callable[[], None] | None]:
    """Gloo knows no AVG: the options of a SUM instead, and the division that is then left to do."""
    if options.reduceOp != dist.ReduceOp.AVG:
        return options, None
    summing = type(options)()
    for name in ("timeout", "asyncOp", "rootRank", "rootTensor"):
        if hasattr(options, name):
            setattr(summing, name, getattr(options, name))
    summing.reduceOp = dist.ReduceOp.SUM
    return summing, lambda: divide(tensors, size)


def divide(tensors: list[torch.Tensor], divisor: int) -> None:
    """Floats are rounded as always, integers towards zero."""
    with torch.no_grad():
        for tensor in tensors:
            exact = tensor.is_floating_point() or tensor.is_complex()
            tensor.detach().div_(divisor, rounding_mode=None if exact else "trunc")


def _source_address(config: AgentConfig) -> str:
    """The local address that routes to the switch."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((config.switch_host, config.switch_port))
        except OSError:
            return "127.0.0.1"  # one worker, and no switch: nobody else has to reach it
        return str(probe.getsockname()[0])
