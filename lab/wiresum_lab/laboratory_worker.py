"""One worker of laboratory.py and of cluster_soak.py: sums what every worker can compute by itself, and compares every
element, until all have been told to stop.

Prints a line of JSON a second, with the longest sum since the line before, and one at its end; ends with status 1 if
its job ended before it was to.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import click
import numpy as np

from wiresum.agent import AgentConfig, Dtype, Region, Session, WiresumError

SIZES = (1, 700, 20_000)
PAUSE_S = 0.005
"""Between two steps, since all processes share few cores."""


def contribution(salt: int, rank: int, step: int, size: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Any 32-bit value may occur, so sums wrap around."""
    return np.random.default_rng([salt, rank, step, size]).integers(-(2**31), 2**31, size, dtype=np.int32)


def train(session: Session, salt: int, stop: Path, step_s_max: float) -> tuple[int, int]:
    """Returns steps and wrong elements. Each job has its own `salt`: a sum of another job would be wrong."""
    step = wrong = 0
    said_at = slowest_s = 0.0
    while True:
        step += 1
        size = SIZES[step % len(SIZES)]
        mine = contribution(salt, session.rank, step, size)
        expected = np.add.reduce(
            [contribution(salt, rank, step, size) for rank in range(session.world_size)], dtype=np.int32
        )
        stopping = np.array([stop.exists()], dtype=np.int32)  # summed too, so that all stop at the same step
        regions = [Region(array.ctypes.data, array.ctypes.data, array.size) for array in (mine, stopping)]
        submitted_at = time.monotonic()
        session.submit(regions, dtype=Dtype.I32, notify=False, timeout_s=step_s_max).wait()
        slowest_s = max(slowest_s, time.monotonic() - submitted_at)
        wrong += int(np.count_nonzero(mine != expected))
        if time.monotonic() > said_at + 1:
            said_at = time.monotonic()
            click.echo(json.dumps({"steps": step, "wrong": wrong, "slowest_s": round(slowest_s, 3)}))
            slowest_s = 0.0
        if stopping[0]:
            return step, wrong
        time.sleep(PAUSE_S)


def main() -> None:
    name, rank, size, salt = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    stop, step_s_max = Path(sys.argv[5]), float(sys.argv[6])
    try:
        session = Session.join(AgentConfig.from_environment(), job_name=name, rank=rank, world_size=size)
        steps, wrong = train(session, salt, stop, step_s_max)
        session.close()
    except WiresumError as error:
        click.echo(json.dumps({"error": f"{type(error).__name__}: {error}"}))
        sys.exit(1)
    click.echo(json.dumps({"steps": steps, "wrong": wrong, "done": True}))


if __name__ == "__main__":
    main()
