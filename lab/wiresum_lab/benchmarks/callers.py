"""Measures the cost of an all-reduce to its caller, over wiresum and over Gloo in turns: make bench NAMES=callers.

Two workers and a software switch run on this machine. The workers have a group of each backend and alternate between
a round of calls over one and a round over the other. Each figure is for one call, of rank 0's calling thread:

thread     processor time of the calling thread, in user and system mode (CLOCK_THREAD_CPUTIME_ID). Other threads that
           work for the call, in this process or in the switch, are not counted.
process    processor time of all threads of the process.
wall       duration of a call. On few cores most of this is work of other processes, such as the switch.

Printed are medians over rounds, and the ratio of the two backends' medians. On a busy machine ratios hold, but times do
not.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from wiresum_lab.benchmarks.on_this_machine import answer_of
from wiresum_lab.benchmarks.program import Options, Record, keep

WORKERS = 2
BACKENDS = ("wiresum", "gloo")
IN_FLIGHT = 16
RUN_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Cost:
    """The cost of one call, in microseconds."""

    thread_us: float
    process_us: float
    wall_us: float


Round = Callable[[Any, Any, int], None]
"""Function of a group, a tensor and a number: makes that number of all-reduces of the tensor."""


def synchronous(group: Any, tensor: Any, calls: int) -> None:
    """Calls `dist.all_reduce(tensor)`."""
    import torch.distributed as dist

    for _ in range(calls):
        dist.all_reduce(tensor, group=group)


def asynchronous(group: Any, tensor: Any, calls: int) -> None:
    """Calls `dist.all_reduce(tensor, async_op=True)`, then `wait()`."""
    _in_flight(group, tensor, calls, lambda work: work.wait())


def with_future(group: Any, tensor: Any, calls: int) -> None:
    """Calls `dist.all_reduce(tensor, async_op=True)`, then `get_future().wait()`."""
    _in_flight(group, tensor, calls, lambda work: work.get_future().wait())


def _in_flight(group: Any, tensor: Any, calls: int, end: Callable[[Any], object]) -> None:
    """Makes IN_FLIGHT calls at a time, each with a tensor of its own, like buckets of gradients."""
    import torch.distributed as dist

    tensors = [tensor.clone() for _ in range(IN_FLIGHT)]
    for _ in range(0, calls, IN_FLIGHT):
        for work in [dist.all_reduce(one, group=group, async_op=True) for one in tensors]:
            end(work)


ROUNDS: dict[str, Round] = {"synchronous": synchronous, "asynchronous": asynchronous, "with its future": with_future}


def measure(run: Round, group: Any, tensor: Any, calls: int) -> Cost:
    tensor.zero_()  # summing a sum again and again would end in infinities
    clocks = (time.thread_time_ns, time.process_time_ns, time.perf_counter_ns)
    begun = [clock() for clock in clocks]
    run(group, tensor, calls)
    return Cost(*((clock() - then) * 1e-3 / calls for clock, then in zip(clocks, begun, strict=True)))


def work(rank: int, switch: str, folder: str, options: argparse.Namespace, answer: Any) -> None:
    import torch
    import torch.distributed as dist

    import wiresum.torch

    torch.set_num_threads(1)
    method = f"file://{folder}/store"
    dist.init_process_group(
        "wiresum", init_method=method, rank=rank, world_size=WORKERS, pg_options=wiresum.torch.Options(switch=switch)
    )
    groups = {name: dist.new_group(backend=name) for name in BACKENDS[1:]} | {"wiresum": None}
    tensor = torch.zeros(options.elements)
    measured: dict[str, dict[str, list[Cost]]] = {kind: {name: [] for name in BACKENDS} for kind in ROUNDS}
    for round_ in range(options.rounds + 1):
        for kind, run in ROUNDS.items():
            for name in BACKENDS:
                cost = measure(run, groups[name], tensor, options.calls)
                if round_ > 0:  # the first round warms caches and creates lazy objects
                    measured[kind][name].append(cost)
    if rank == 0:
        answer.send(measured)
    dist.barrier()
    dist.destroy_process_group()


def records_of(measured: dict[str, dict[str, list[Cost]]]) -> list[Record]:
    """The medians of both backends for each kind of call, in microseconds, and their ratio."""
    found = []
    for kind, costs in measured.items():
        record: Record = {"call": kind}
        for each in fields(Cost):
            of = {name: statistics.median(getattr(cost, each.name) for cost in costs[name]) for name in BACKENDS}
            record |= {f"{each.name} {name}": us for name, us in of.items()}
            record[f"{each.name} ratio"] = of["wiresum"] / of["gloo"]
        found.append(record)
    return found


def main(arguments: Sequence[str]) -> int:
    parser = Options("callers", __doc__, workers=None, link_mbit=None)
    parser.add("--elements", 1, "elements of the tensor, in fp32")
    parser.add("--calls", 320, "calls in a round")
    parser.add("--rounds", 15, "rounds of each kind and backend")
    options = parser.parse_args(arguments)
    measured = answer_of(WORKERS, work, options, timeout_s=RUN_TIMEOUT_S, switch=["--threads", "1"])
    keep(options.json, records_of(measured))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
