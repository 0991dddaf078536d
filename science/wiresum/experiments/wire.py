"""Bytes on the wire: methods run between real workers over a real switch, and the session counts UDP payload.

The experiments simulate their workers in one process, where our own counters say what would be sent. Here the same
engine runs in processes over a software switch on this machine, with a network's gradients, and what is reported is
what the sessions sent and received: packets' headers, the switch's answers and what was sent again are in it.
"""

from __future__ import annotations

import multiprocessing
import re
import subprocess
import sys
import tempfile
import time
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
from wiresum.experiments.network import Digits, convolutional_network, gradient, segments_of

COLLECTIVE_TIMEOUT = timedelta(seconds=60)
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0


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
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "switch.log")
        command = [sys.executable, "-m", "wiresum.cli", "switch", "--control", "127.0.0.1:0", "--port", "0"]
        with log.open("wb") as output:
            switch = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            setup = Setup(workers, _endpoint(switch, log), folder, tuple(methods), steps, batch)
            with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
                rows = list(pool.map(_work, range(workers), [setup] * workers))
        finally:
            switch.terminate()
            try:
                switch.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                switch.kill()
                switch.wait()
    return [Transfer(*row) for row in (np.mean(rows, axis=0) / steps).tolist()]


def _endpoint(switch: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and switch.poll() is None:
        if ready := re.search(r"ready: control (\S+:\d+)", log.read_text()):
            return ready[1]
        time.sleep(0.05)
    raise RuntimeError(f"the switch did not start:\n{log.read_text()}")


def _work(rank: int, setup: Setup) -> list[tuple[float, ...]]:
    """In a process for each worker."""
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
    """Sent and received by the session, and by our counters."""
    import wiresum.torch

    digits, model = Digits.load(1), convolutional_network(1)
    engine, segments = Engine(method, aggregator_of()), segments_of(model, "layer")
    before = wiresum.torch.stats().network
    for step in range(setup.steps):
        order = torch.randperm(len(digits.images), generator=torch.Generator().manual_seed(step))
        share = order[rank * setup.batch : (rank + 1) * setup.batch]
        vectors = gradient(model, digits.images[share], digits.labels[share])[1]
        engine.average(segments, [vectors])
        engine.advance()
    after, traffic = wiresum.torch.stats().network, engine.aggregator.traffic
    assert before is not None and after is not None, "the job has a lease"
    return (
        after.bytes_sent - before.bytes_sent,
        after.bytes_received - before.bytes_received,
        traffic.sent_bytes,
        traffic.received_bytes,
    )
