"""Measures the cost of a small collective to its caller, over wiresum and over Gloo in turns: make bench NAMES=callers.

The workers and a software switch run on this machine. The workers have a group of each backend and alternate between a
round of calls over one and a round over the other. Each figure is for one call, of rank 0's calling thread:

thread     processor time of the calling thread, in user and system mode (CLOCK_THREAD_CPUTIME_ID). Other threads that
           work for the call, in this process or in the switch, are not counted.
process    processor time of all threads of the process.
wall       duration of a call. On few cores most of this is work of other processes, such as the switch.

Printed are medians over rounds, and the ratio of the two backends' medians. On a busy machine ratios hold, but times do
not.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from wiresum_lab.benchmarks.on_this_machine import answer_of
from wiresum_lab.benchmarks.program import Options, Record, keep

BACKENDS = ("wiresum", "gloo")
IN_FLIGHT = 16
RUN_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Cost:
    """The cost of one call, in microseconds."""

    thread_us: float
    process_us: float
    wall_us: float


Round = Callable[[Any, int], None]
"""Function of a group and a number: makes that number of calls."""


def synchronous(call: Callable[[Any], object], make: Callable[[], Any]) -> Round:
    """One call after the other."""

    def run(group: Any, calls: int) -> None:
        tensor = make()
        for _ in range(calls):
            call(tensor, group=group)  # type: ignore[call-arg]

    return run


def in_flight(end: Callable[[Any], object], make: Callable[[], Any]) -> Round:
    """IN_FLIGHT all-reduces at a time, each with a tensor of its own, like buckets of gradients."""
    import torch.distributed as dist

    def run(group: Any, calls: int) -> None:
        tensors = [make() for _ in range(IN_FLIGHT)]
        for _ in range(0, calls, IN_FLIGHT):
            for work in [dist.all_reduce(one, group=group, async_op=True) for one in tensors]:
                end(work)

    return run


def kinds(workers: int) -> dict[str, Round]:
    """The kinds of calls, by name. Tensors begin as zeros: to sum a sum again and again would end in infinities."""
    import torch
    import torch.distributed as dist

    one = partial(torch.zeros, 1)
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    found = {
        "float32[1] SUM": synchronous(dist.all_reduce, one),
        "float32[1] SUM, async": in_flight(lambda work: work.wait(), one),
        "float32[1] SUM, future": in_flight(lambda work: work.get_future().wait(), one),
    }
    for elements, dtype in ((1, torch.int32), (1, torch.int64), (1024 // workers, torch.int64), (1, torch.float64)):
        make = partial(torch.zeros, elements, dtype=dtype)
        for name in ("SUM", "MIN", "MAX"):
            call = partial(dist.all_reduce, op=getattr(dist.ReduceOp, name))
            found[f"{str(dtype).removeprefix('torch.')}[{elements}] {name}"] = synchronous(call, make)
    for size in (4, 1024, 8192, 65536):
        mine, everybody = torch.zeros(size // 4), partial(torch.zeros, size // 4 * workers)
        found[f"all-gather {size} B"] = synchronous(partial(_gathered, gather, mine), everybody)
    return found


def _gathered(gather: Callable[..., object], mine: Any, everybody: Any, group: Any) -> None:
    gather(everybody, mine, group=group)


def measure(run: Round, group: Any, calls: int) -> Cost:
    clocks = (time.thread_time_ns, time.process_time_ns, time.perf_counter_ns)
    begun = [clock() for clock in clocks]
    run(group, calls)
    return Cost(*((clock() - then) * 1e-3 / calls for clock, then in zip(clocks, begun, strict=True)))


def work(rank: int, switch: str, folder: str, options: argparse.Namespace, answer: Any) -> None:
    import torch
    import torch.distributed as dist

    import wiresum.torch

    torch.set_num_threads(1)
    method = f"file://{folder}/store"
    dist.init_process_group(
        "wiresum",
        init_method=method,
        rank=rank,
        world_size=options.workers,
        pg_options=wiresum.torch.Options(switch=switch),
    )
    groups = {name: dist.new_group(backend=name) for name in BACKENDS[1:]} | {"wiresum": None}
    rounds = {kind: run for kind, run in kinds(options.workers).items() if re.search(options.only, kind)}
    measured: dict[str, dict[str, list[Cost]]] = {kind: {name: [] for name in BACKENDS} for kind in rounds}
    for round_ in range(options.rounds + 1):
        for kind, run in rounds.items():
            for name in BACKENDS:
                cost = measure(run, groups[name], options.calls)
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
    parser = Options("callers", __doc__, workers=2, link_mbit=None)
    parser.add("--only", "", "a regular expression that is found in the names of the kinds of calls to measure")
    parser.add("--calls", 320, "calls in a round")
    parser.add("--rounds", 15, "rounds of each kind and backend")
    options = parser.parse_args(arguments)
    measured = answer_of(options.workers, work, options, timeout_s=RUN_TIMEOUT_S, switch=["--threads", "1"])
    keep(options.json, records_of(measured))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
