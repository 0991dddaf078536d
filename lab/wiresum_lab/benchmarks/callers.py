"""What an all-reduce costs its caller, over wiresum and over Gloo in turns: make bench NAMES=callers.

Two workers and a software switch, all on this machine. The workers have a group of each backend, and take turns: a
round of calls over the one, a round over the other. Each figure is for one call, of rank 0's calling thread:

thread     what the kernel counts for this thread, in user and system mode (CLOCK_THREAD_CPUTIME_ID): what the caller
           pays. Threads that work for it meanwhile, its own process's or the switch's, are not in it.
process    the same for all threads of the process.
wall       how long a call takes. On few cores that is mostly the others' work, a switch process's among it.

The medians of rounds, and the ratio of the two backends' medians. On a busy machine ratios hold, and times do not.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from itertools import chain
from pathlib import Path
from typing import Any

from wiresum_lab.benchmarks.on_this_machine import answer_of

WORKERS = 2
BACKENDS = ("wiresum", "gloo")
IN_FLIGHT = 16
RUN_TIMEOUT_S = 300.0
REPORT_COLUMNS = 110


@dataclass(frozen=True)
class Cost:
    """Microseconds for each call."""

    thread_us: float
    process_us: float
    wall_us: float


Round = Callable[[Any, Any, int], None]
"""Makes so many calls of a group's all-reduce of a tensor."""


def synchronous(group: Any, tensor: Any, calls: int) -> None:
    """dist.all_reduce(tensor)"""
    import torch.distributed as dist

    for _ in range(calls):
        dist.all_reduce(tensor, group=group)


def asynchronous(group: Any, tensor: Any, calls: int) -> None:
    """dist.all_reduce(tensor, async_op=True), and wait()"""
    _in_flight(group, tensor, calls, lambda work: work.wait())


def with_future(group: Any, tensor: Any, calls: int) -> None:
    """dist.all_reduce(tensor, async_op=True), and get_future().wait()"""
    _in_flight(group, tensor, calls, lambda work: work.get_future().wait())


def _in_flight(group: Any, tensor: Any, calls: int, end: Callable[[Any], object]) -> None:
    """IN_FLIGHT at a time, each of a tensor of its own, as buckets of gradients are."""
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

    from wiresum.torch import Options

    torch.set_num_threads(1)
    method = f"file://{folder}/store"
    dist.init_process_group(
        "wiresum", init_method=method, rank=rank, world_size=WORKERS, pg_options=Options(switch=switch)
    )
    groups = {name: dist.new_group(backend=name) for name in BACKENDS[1:]} | {"wiresum": None}
    tensor = torch.zeros(options.elements)
    measured: dict[str, dict[str, list[Cost]]] = {kind: {name: [] for name in BACKENDS} for kind in ROUNDS}
    for round_ in range(options.rounds + 1):
        for kind, run in ROUNDS.items():
            for name in BACKENDS:
                cost = measure(run, groups[name], tensor, options.calls)
                if round_ > 0:  # the first one warms caches, and what is made on first use
                    measured[kind][name].append(cost)
    if rank == 0:
        answer.send(measured)
    dist.barrier()
    dist.destroy_process_group()


def medians(measured: dict[str, list[Cost]]) -> dict[str, Cost]:
    return {
        name: Cost(*(statistics.median(getattr(cost, field.name) for cost in costs) for field in fields(Cost)))
        for name, costs in measured.items()
    }


def run(options: argparse.Namespace) -> dict[str, dict[str, Cost]]:
    measured: dict[str, dict[str, list[Cost]]] = answer_of(
        WORKERS, work, options, timeout_s=RUN_TIMEOUT_S, switch=["--threads", "1"]
    )
    return {kind: medians(costs) for kind, costs in measured.items()}


def report(costs: dict[str, dict[str, Cost]], options: argparse.Namespace) -> None:
    from rich.console import Console

    from wiresum_lab.benchmarks.program import table_of

    title = f"An all-reduce of {4 * options.elements} bytes, {WORKERS} workers; us for each call, medians"
    columns = [(f"{name}: wiresum", "Gloo", "ratio") for name in ("thread", "process", "wall")]
    table = table_of(title, ("call", *chain(*columns)))
    for kind, of in costs.items():
        pairs = zip(*(astuple(of[name]) for name in BACKENDS), strict=True)
        table.add_row(
            kind, *chain(*((f"{ours:.1f}", f"{theirs:.1f}", f"{ours / theirs:.2f}") for ours, theirs in pairs))
        )
    Console(width=None if sys.stdout.isatty() else REPORT_COLUMNS).print(table)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, default=1, help="of fp32 in the tensor (default: %(default)s)")
    parser.add_argument("--calls", type=int, default=320, help="in a round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="of each kind and backend (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("build/bench/callers"), help="folder (default: %(default)s)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    costs = run(options)
    report(costs, options)
    options.out.mkdir(parents=True, exist_ok=True)
    record = {kind: {name: asdict(cost) for name, cost in of.items()} for kind, of in costs.items()}
    settings = {"elements": options.elements, "calls": options.calls, "rounds": options.rounds, "workers": WORKERS}
    (options.out / "callers.json").write_text(json.dumps({"settings": settings, "us": record}, indent=2) + "\n")
    sys.stdout.write(f"figures: {options.out}/callers.json\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
