"""One worker of laboratory.py and of cluster_soak.py. Until all are told to stop, it sums arrays that every worker can
compute by itself, and compares every element.

Prints a line of JSON a second, with the duration of the longest sum since the line before, and a line at its end; ends
with status 1 if its job ended too early.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from wiresum.agent import AgentConfig, Dtype, Operation, Region, Session, WiresumError

SIZES = (1, 700, 20_000)
IN_FLIGHT = 3
"""How many sums are in flight at a time."""
PAUSE_S = 0.02
"""Pause between two steps, since all processes share few cores."""


def contribution(salt: int, rank: int, step: int, size: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """A worker's array of a step, of any 32-bit values, so that sums wrap around."""
    return np.random.default_rng([salt, rank, step, size]).integers(-(2**31), 2**31, size, dtype=np.int32)


@dataclass
class Step:
    """A sum in flight. Its arrays are summed in place."""

    expected: np.ndarray[tuple[int], np.dtype[np.int32]]
    mine: np.ndarray[tuple[int], np.dtype[np.int32]]
    stopping: np.ndarray[tuple[int], np.dtype[np.int32]]
    submitted_at: float
    operation: Operation


def submit(session: Session, salt: int, number: int, stop: Path, step_s_max: float) -> Step:
    size = SIZES[number % len(SIZES)]
    mine = contribution(salt, session.rank, number, size)
    expected = np.add.reduce(
        [contribution(salt, rank, number, size) for rank in range(session.world_size)], dtype=np.int32
    )
    stopping = np.array([stop.exists()], dtype=np.int32)  # its sum makes all workers stop at the same step
    regions = [Region(array.ctypes.data, array.ctypes.data, array.size) for array in (mine, stopping)]
    submitted_at = time.monotonic()
    operation = session.submit(regions, dtype=Dtype.I32, notify=False, timeout_s=step_s_max)
    return Step(expected, mine, stopping, submitted_at, operation)


def train(session: Session, salt: int, stop: Path, step_s_max: float) -> tuple[int, int]:
    """Sums until all stop. Returns the numbers of steps and of wrong elements. Each job has its own `salt`, so that the
    sum of another job is wrong."""
    done = submitted = wrong = 0
    said_at = slowest_s = 0.0
    in_flight: deque[Step] = deque()
    stops = False
    while in_flight or not stops:
        while not stops and len(in_flight) < IN_FLIGHT:
            submitted += 1
            in_flight.append(submit(session, salt, submitted, stop, step_s_max))
        step = in_flight.popleft()
        step.operation.wait()
        done += 1
        slowest_s = max(slowest_s, time.monotonic() - step.submitted_at)
        wrong += int(np.count_nonzero(step.mine != step.expected))
        stops = stops or bool(step.stopping[0])
        if time.monotonic() > said_at + 1:
            said_at = time.monotonic()
            click.echo(json.dumps({"steps": done, "wrong": wrong, "slowest_s": round(slowest_s, 3)}))
            slowest_s = 0.0
        time.sleep(PAUSE_S)
    return done, wrong


def main() -> None:
    name, rank, size, salt = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    stop, step_s_max, slots = Path(sys.argv[5]), float(sys.argv[6]), int(sys.argv[7])
    config = AgentConfig.from_environment(slots=slots, share=False)  # as on a host of its own
    try:
        session = Session.join(config, job_name=name, rank=rank, world_size=size)
        steps, wrong = train(session, salt, stop, step_s_max)
        session.close()
    except WiresumError as error:
        click.echo(json.dumps({"error": f"{type(error).__name__}: {error}"}))
        sys.exit(1)
    click.echo(json.dumps({"steps": steps, "wrong": wrong, "done": True}))


if __name__ == "__main__":
    main()
