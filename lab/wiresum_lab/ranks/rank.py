"""The other end of `ranks.py`: a rank that carries out commands and answers; and common classes of benchmarks' ranks.

A rank is an object whose public methods are its commands. A command is words, which are converted to the types of the
method's parameters.
"""

from __future__ import annotations

import inspect
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO

import torch
import torch.distributed as dist

import wiresum.torch
from wiresum_lab.ranks.ranks import GLOO

TIMEOUT = timedelta(seconds=300)
"""Time-out of a collective in the system under test. The benchmarks' own limits are shorter."""


def main(rank_class: Callable[..., Any]) -> None:
    """The main function of a rank. The first argument is the socket, the others go to the class. It ends with the
    socket."""
    if len(sys.argv) < 2:
        sys.exit(f"usage: {Path(sys.argv[0]).name} CONTROL_SOCKET ... (a benchmark starts it)")
    path, *arguments = sys.argv[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as control:
        control.connect(path)
        rank = rank_class(*arguments)
        stream = control.makefile("rw", encoding="utf-8", newline="\n")
        _serve(rank, stream)
    dist.destroy_process_group()


def _serve(rank: object, stream: TextIO) -> None:
    commands: dict[str, tuple[Callable[..., Any], list[Callable[[str], Any]]]] = {}
    for name, method in inspect.getmembers(rank, inspect.ismethod):
        if not name.startswith("_"):
            parameters = inspect.signature(method, eval_str=True).parameters.values()
            commands[name] = method, [parameter.annotation for parameter in parameters]
    answer: Any = dist.get_rank()
    while True:
        stream.write(json.dumps(answer) + "\n")
        stream.flush()
        if not (line := stream.readline()):
            return
        name, *words = line.split()
        command, types = commands[name]
        answer = command(*(convert(word) for convert, word in zip(types, words, strict=True)))


class Rank:
    """A process with the world group, a group of Gloo, and further groups of Wiresum."""

    def __init__(self, device: str, **groups: wiresum.torch.Options) -> None:
        """`device` is the star's interface; `groups` are options of further groups of Wiresum, by name."""
        torch.set_num_threads(1)
        wiresum.torch.register()
        dist.init_process_group("wiresum", timeout=TIMEOUT)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.groups: dict[str, Any] = {
            name: dist.new_group(backend="wiresum", timeout=TIMEOUT, pg_options=options)
            for name, options in groups.items()
        }
        # Wiresum's own Gloo stays on the management network; the measured group of Gloo runs over the star.
        os.environ["GLOO_SOCKET_IFNAME"] = device
        self.groups[GLOO] = dist.new_group(backend="gloo", timeout=TIMEOUT)
        self._counters = Path("/sys/class/net") / device / "statistics"

    def _bytes(self) -> tuple[int, int]:
        """Bytes sent and received over the star so far, headers included, so that all systems are counted alike."""
        sent, received = (int((self._counters / f"{way}_bytes").read_text()) for way in ("tx", "rx"))
        return sent, received

    def _network(self, name: str) -> Any:
        """The counters of a group's session; None for Gloo."""
        if name == GLOO:
            return None
        network = wiresum.torch.stats(self.groups[name]).network
        if network is None:
            raise RuntimeError("the switches have no room for another job")
        return network


class SummingRank(Rank):
    """A rank that sums one tensor. Loading and reporting are commands of their own, and all ranks begin at the same
    moment, since they share cores. Times are of CLOCK_MONOTONIC, which namespaces of one machine share."""

    def __init__(self, device: str, **groups: wiresum.torch.Options) -> None:
        super().__init__(device, **groups)
        self.own, self.tensor, self.expected = torch.empty(0), torch.empty(0), torch.empty(0)
        self.summed: dict[str, Any] = {}
        self._before: Any = None

    def load(self) -> None:
        """Sets the tensor to this rank's values again."""
        self.tensor.copy_(self.own)

    def go(self, name: str, at_ns: int) -> None:
        group, self._before = self.groups[name], self._network(name)
        time.sleep(max(0, at_ns - time.monotonic_ns()) / 1e9)
        start_ns = time.monotonic_ns()
        dist.all_reduce(self.tensor, group=group)
        self.summed = {"group": name, "start_ns": start_ns, "end_ns": time.monotonic_ns()}

    def report(self) -> dict[str, Any]:
        return self.summed | {"wrong_elements": int((self.tensor != self.expected).sum())}

    def _counted(self, counter: str) -> int:
        """The increase of a counter in the last sum."""
        network = self._network(self.summed["group"])
        return 0 if network is None else int(getattr(network, counter) - getattr(self._before, counter))
