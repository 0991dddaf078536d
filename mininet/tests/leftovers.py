"""Finds processes that remain in the namespaces of a network. Other tests may create and remove namespaces
meanwhile."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

from wiresum_lab.processes import wait_until


def now() -> float:
    """The time since boot in the kernel's ticks, the unit of processes' start times."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK")


def namespaces_of(processes: Iterable[int]) -> set[str]:
    """The network namespaces of these processes."""
    found = set()
    for process in processes:
        try:
            found.add(str(Path(f"/proc/{process}/ns/net").readlink()))
        except OSError:  # the process has ended
            continue
    return found


def processes_in(namespaces: set[str], started_before: float) -> list[int]:
    """Processes in one of the namespaces that started before the given time: the kernel reuses the number of a
    removed namespace."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            if float(fields[19]) < started_before and str((path / "ns/net").readlink()) in namespaces:
                found.append(int(path.name))
        except OSError:
            continue
    return found


def wait_until_empty(namespaces: set[str], *, started_before: float) -> None:
    wait_until(lambda: not processes_in(namespaces, started_before), "all processes of the network had ended")
