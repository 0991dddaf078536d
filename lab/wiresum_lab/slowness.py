"""How slow the machine is now, compared with two quiet cores of the kind that the tests are written on.

Every core starts an interpreter and computes for a moment, all at once: so a slow processor, busy neighbours and a
quota of processor time (a container's) all show. The median of some rounds is what counts.
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
"""The environment's variable with the factor, which a run says to every process that it starts."""
ROUNDS = 3
ROUND_S = 0.08
"""What a round takes on a quiet machine."""
FACTOR_MAX = 10.0
"""A machine that is slower still is no place to run tests; and what hangs shall end within the hour."""
COMPUTATION = "sum(number * number % 7 for number in range(600_000))"


def factor(rounds_s: list[float], busy: int, cores: int) -> float:
    """By how much longer to wait. `busy`: the processes of others that want a core."""
    measured = statistics.median(rounds_s) / ROUND_S
    shared = (busy + cores) / cores
    return round(min(max(1.0, measured, shared), FACTOR_MAX), 1)


def share(environment: MutableMapping[str, str] = os.environ) -> None:
    """Measures the factor, unless a run that started this process, or a person, has said it."""
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
    """The processes that have a core or wait for one, besides this one."""
    running = Path("/proc/loadavg").read_text().split()[3].partition("/")[0]
    return max(0, int(running) - 1)


if __name__ == "__main__":  # `slowness.py SECONDS` prints how many seconds this machine is given for them
    share()
    print(round(float(sys.argv[1]) * float(os.environ[VARIABLE])))
