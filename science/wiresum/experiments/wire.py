"""Measures bytes on the wire of methods that run in processes over a software switch on this machine.

The experiments simulate their workers in one process and report the aggregator's counters. Here the sessions count all
bytes that they send and receive, with headers, answers and retransmissions.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from wiresum.compress import Compressor, Engine, InProcess, aggregator_of
from wiresum.compress.arrays import Vector
from wiresum.experiments.dense_sums import DenseSums, granularity_of
from wiresum.experiments.network import Digits, arranged, convolutional_network, gradients_of_workers, segments_of
from wiresum_lab.processes import SwitchProcess

COLLECTIVE_TIMEOUT = timedelta(seconds=60)


@dataclass(frozen=True)
class Setup:
    workers: int
    switch: str
    folder: str
    methods: tuple[Compressor, ...]
    steps: int
    batch: int


@dataclass(frozen=True)
class Transfer:
    """Bytes of one worker in one step, the mean over workers and steps."""

    sent: float
    received: float
    sent_counted: float
    """Bytes sent by the aggregator's own counters: payload without headers."""
    received_counted: float
    differing: float
    """How many values of the means differ from the simulated workers', bit for bit."""


def measure(methods: Sequence[Compressor], *, workers: int = 4, steps: int = 5, batch: int = 8) -> list[Transfer]:
    """Measures methods with the gradients of the convolutional network."""
    with (
        tempfile.TemporaryDirectory() as folder,
        SwitchProcess(Path(folder)) as switch,
        ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool,
    ):
        setup = Setup(workers, switch.endpoint, folder, tuple(methods), steps, batch)
        rows = list(pool.map(_work, range(workers), [setup] * workers))
    return [Transfer(*row) for row in (np.mean(rows, axis=0) / steps).tolist()]


def _work(rank: int, setup: Setup) -> list[tuple[float, ...]]:
    """The work of one worker, in a process of its own."""
    import wiresum.torch

    torch.set_num_threads(1)
    options: Any = wiresum.torch.Options(switch=setup.switch)
    dist.init_process_group(
        "wiresum",
        init_method=f"file://{setup.folder}/store",
        rank=rank,
        world_size=setup.workers,
        timeout=COLLECTIVE_TIMEOUT,
        pg_options=options,
    )
    try:
        return [_transfer(method, rank, setup) for method in setup.methods]
    finally:
        dist.destroy_process_group()


def _transfer(method: Compressor, rank: int, setup: Setup) -> tuple[float, ...]:
    """The fields of Transfer, summed over all steps."""
    import wiresum.torch

    digits, model = Digits.load(1), convolutional_network(1)
    granularity, group = granularity_of(method), _group_of(method, setup)
    segments, differing = segments_of(model, granularity), 0
    engine, simulated = Engine(method, aggregator_of(group)), Engine(method, InProcess(setup.workers))
    engine.require_agreement()  # now, so that its packets are not counted below
    before, traffic = wiresum.torch.stats(group).network, engine.aggregator.traffic
    for step in range(setup.steps):
        by_worker = gradients_of_workers(digits, model, seed=step, workers=setup.workers, batch=setup.batch)
        gradients = [arranged(mine, granularity) for mine in by_worker]
        if isinstance(method, DenseSums):
            means = [_plain_mean(gradients[rank][0], group)]
            traffic.add(*[means[0].size * method.bits / 8] * 2)
        else:
            means = engine.average(segments, [gradients[rank]])
        expected = simulated.average(segments, gradients)
        differing += sum(int(np.count_nonzero(one != other)) for one, other in zip(means, expected, strict=True))
        engine.advance()
        simulated.advance()
    after = wiresum.torch.stats(group).network
    assert before is not None and after is not None, "the job has a lease"
    return (
        after.bytes_sent - before.bytes_sent,
        after.bytes_received - before.bytes_received,
        traffic.sent_bytes,
        traffic.received_bytes,
        differing,
    )


def _group_of(method: Compressor, setup: Setup) -> dist.ProcessGroup | None:
    """The group of a method: plain sums have a group of their own, with their number of bits. None is the default
    group."""
    import wiresum.torch

    if not isinstance(method, DenseSums):
        return None
    options: Any = wiresum.torch.Options(switch=setup.switch, bits=method.bits)
    group: dist.ProcessGroup = dist.new_group(backend="wiresum", timeout=COLLECTIVE_TIMEOUT, pg_options=options)
    return group


def _plain_mean(gradient: Vector, group: dist.ProcessGroup | None) -> Vector:
    mean = torch.from_numpy(gradient.copy())
    dist.all_reduce(mean, dist.ReduceOp.AVG, group=group)
    result: Vector = mean.numpy()
    return result
