"""The simulation beside a star of network namespaces: the same sums on the same links, one in virtual time, the other
by the shipped programs over the kernel's UDP. Needs root."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from wiresum_lab import REPOSITORY
from wiresum_lab.benchmarks.program import prerequisites_met, table_of
from wiresum_lab.benchmarks.scale.case import Case, simulate
from wiresum_lab.namespaces.links import QUEUE_BYTES, burst_bytes

WORKERS = (2, 4, 8)
LOSS = 0.01
LINK_MBIT = 100.0
LINK_NS = 50_000
"""Of a veth pair, with the processes at its ends; a sum takes ten thousand times as long."""
SLOTS = 256
"""What a job gets that does not say."""
SEEDS = 5
DEVIATION_MAX = {0.0: 0.03, LOSS: 0.08}
"""By loss."""


def star_records(workers: int) -> list[dict[str, Any]]:
    path = REPOSITORY / f"build/bench/calibration-{workers}.json"
    command = [sys.executable, "-m", "wiresum_lab.benchmarks.against_gloo_and_mpi", "--systems", "wiresum"]
    command += ["--link", "100mbit", "--bits", "32", "--only", "rate,loss", "--loss", str(LOSS)]
    subprocess.run([*command, "--workers", str(workers), "--json", str(path)], cwd=REPOSITORY, check=False)
    records: list[dict[str, Any]] = json.loads(Path(path).read_text())
    return records


def case_of(record: dict[str, Any], seed: int) -> Case:
    return Case(
        workers=record["workers"],
        gbit=record["link_mbit"] / 1e3,
        link_ns=LINK_NS,
        loss=record["loss"],
        megabytes=record["bytes"] / 1e6,
        slots=SLOTS,
        burst_bytes=burst_bytes(record["link_mbit"]),
        queue_bytes=QUEUE_BYTES,
        seed=seed,
    )


def simulated_s(record: dict[str, Any]) -> float:
    seeds = range(1, 1 + (SEEDS if record["loss"] else 1))
    return statistics.median(simulate(case_of(record, seed)).seconds for seed in seeds)


def compared() -> Iterator[tuple[dict[str, Any], float, float]]:
    """Each case of the star, its median time there, and the simulated one."""
    for workers in WORKERS:
        for record in star_records(workers):
            yield record, statistics.median(record["seconds"]), simulated_s(record)


def run(console: Console) -> int:
    """Returns the exit status: 1 if a deviation is larger than what docs/scale.md says."""
    if not prerequisites_met(console):
        return 2
    columns = ("workers", "loss", "star, ms", "simulated, ms", "deviation", "at most")
    table = table_of(f"8 MB of fp32 at {LINK_MBIT:g} Mbit/s: a star of namespaces, and simulated", columns)
    within = True
    for record, star_s, virtual_s in compared():
        deviation, limit = virtual_s / star_s - 1, DEVIATION_MAX[record["loss"]]
        within &= abs(deviation) <= limit
        cells = (
            f"{record['loss']:g}",
            f"{star_s * 1e3:.1f}",
            f"{virtual_s * 1e3:.1f}",
            f"{deviation:+.1%}",
            f"{limit:.0%}",
        )
        table.add_row(str(record["workers"]), *cells)
    console.print(table)
    return 0 if within else 1
