"""Measures how slow the machine is now, compared with two quiet cores of the kind on which the tests are written.

Every core starts an interpreter and computes for a moment, all at once. So the measurement includes a slow processor,
other load, and a container's quota of processor time. The median of some rounds counts.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import MutableMapping
from pathlib import Path

VARIABLE = "TEST_PATIENCE"
"""The environment variable with the factor, which every process of a run inherits."""
ROUNDS = 3
ROUND_S = 0.08
"""Duration of a round on a quiet machine."""
FACTOR_MAX = 10.0
"""Upper bound on the factor, so that a hang ends within an hour. A slower machine cannot run the tests."""
COMPUTATION = "sum(number * number % 7 for number in range(600_000))"


def factor(rounds_s: list[float], busy: int, cores: int) -> float:
    """How many times longer to wait. `busy` is the number of other processes that run or want a core."""
    measured = statistics.median(rounds_s) / ROUND_S
    shared = (busy + cores) / cores
    return round(min(max(1.0, measured, shared), FACTOR_MAX), 1)


def share(environment: MutableMapping[str, str] = os.environ) -> None:
    """Measures the factor and sets the variable, unless it is set."""
    if VARIABLE not in environment:
        cores = len(os.sched_getaffinity(0))
        busy = _busy()
        environment[VARIABLE] = str(factor([_round_s(cores) for _ in range(ROUNDS)], busy, cores))


def _round_s(cores: int) -> float:
    began_at = time.perf_counter()
    command = [sys.executable, "-I", "-S", "-c", COMPUTATION]
    for process in [subprocess.Popen(command) for _ in range(cores)]:
        process.wait()
    return time.perf_counter() - began_at


def _busy() -> int:
    """How many processes besides this one have a core or wait for a core."""
    running = Path("/proc/loadavg").read_text().split()[3].partition("/")[0]
    return max(0, int(running) - 1)


if __name__ == "__main__":  # `slowness.py SECONDS` prints so many seconds times the factor
    share()
    print(round(float(sys.argv[1]) * float(os.environ[VARIABLE])))
