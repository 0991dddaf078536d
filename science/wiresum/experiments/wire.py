"""Bytes on the wire: methods run between workers in processes over a software switch on this machine.

The experiments simulate their workers in one process and report the aggregator's counters. Here the sessions count what
they send and receive, with headers, answers and retransmissions.
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

from wiresum.compress import Compressor, Engine, aggregator_of
from wiresum.experiments.network import Digits, convolutional_network, gradients_of_workers, segments_of
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
    """By the aggregator's own counters: payload without headers."""
    received_counted: float


def measure(methods: Sequence[Compressor], *, workers: int = 4, steps: int = 5, batch: int = 8) -> list[Transfer]:
    """By layer, with the gradients of the convolutional network."""
    with (
        tempfile.TemporaryDirectory() as folder,
        SwitchProcess(Path(folder)) as switch,
        ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool,
    ):
        setup = Setup(workers, switch.endpoint, folder, tuple(methods), steps, batch)
        rows = list(pool.map(_work, range(workers), [setup] * workers))
    return [Transfer(*row) for row in (np.mean(rows, axis=0) / steps).tolist()]


def _work(rank: int, setup: Setup) -> list[tuple[float, ...]]:
    """Runs in a process for each worker."""
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
    """The fields of Transfer, for all steps together."""
    import wiresum.torch

    digits, model = Digits.load(1), convolutional_network(1)
    engine, segments = Engine(method, aggregator_of()), segments_of(model, "layer")
    before = wiresum.torch.stats().network
    for step in range(setup.steps):
        gradients = gradients_of_workers(digits, model, seed=step, workers=setup.workers, batch=setup.batch)
        engine.average(segments, [gradients[rank]])
        engine.advance()
    after, traffic = wiresum.torch.stats().network, engine.aggregator.traffic
    assert before is not None and after is not None, "the job has a lease"
    return (
        after.bytes_sent - before.bytes_sent,
        after.bytes_received - before.bytes_received,
        traffic.sent_bytes,
        traffic.received_bytes,
    )
