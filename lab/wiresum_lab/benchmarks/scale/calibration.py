"""Compares the simulation with a star of network namespaces: the same sums on the same links, first in virtual time,
then by the shipped programs over the kernel's UDP. Needs root."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from wiresum_lab import REPOSITORY
from wiresum_lab.benchmarks.program import prerequisites_met, say, table
from wiresum_lab.benchmarks.scale.case import Case, simulate
from wiresum_lab.namespaces.links import QUEUE_BYTES, burst_bytes

WORKERS = (2, 4, 8)
LOSS = 0.01
LINK_MBIT = 100.0
LINK_NS = 50_000
"""Delay of a veth pair and of the processes at its ends. A sum takes ten thousand times as long, so it hardly
counts."""
SLOTS = 256
"""Slots of a job that does not ask for a number."""
SEEDS = 5
DEVIATION_MAX = {0.0: 0.03, LOSS: 0.08}
"""Largest relative deviation, by loss."""


class CalibrationError(RuntimeError):
    """The star gave no figures."""


def star_records(workers: int) -> list[dict[str, Any]]:
    """Records of the star with one number of workers: without loss, and with loss. CalibrationError without figures."""
    path = REPOSITORY / f"build/bench/calibration-{workers}.json"
    log = path.with_suffix(".log")
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "wiresum_lab.benchmarks.against_gloo_and_mpi", "--systems", "wiresum"]
    command += ["--link-mbit", str(LINK_MBIT), "--bits", "32", "--only", "rate", "loss", "--loss", str(LOSS)]
    command += ["--workers", str(workers), "--json", str(path)]
    path.unlink(missing_ok=True)
    with log.open("w") as output:  # the exit status concerns other targets
        subprocess.run(command, cwd=REPOSITORY, check=False, stdout=output, stderr=subprocess.STDOUT)
    records: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    if [record["loss"] for record in records] != [0.0, LOSS]:
        raise CalibrationError(f"the star of {workers} workers gave no figures: {log} says why; is the machine busy?")
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


def deviations() -> Iterator[tuple[dict[str, Any], float, float]]:
    """Each case of the star, its median time in seconds, and the simulated time."""
    for workers in WORKERS:
        say(f"a star of {workers} workers ...")
        for record in star_records(workers):
            yield record, record["seconds"], simulated_s(record)


def run() -> int:
    """Returns the exit status: 1 if a deviation is larger than docs/scale.md allows, 2 if the star has no figures."""
    if not prerequisites_met():
        return 2
    try:
        found = [
            {
                **{name: record[name] for name in ("workers", "loss")},
                "star, ms": star_s * 1e3,
                "simulated, ms": virtual_s * 1e3,
                "deviation": virtual_s / star_s - 1,
                "at most": DEVIATION_MAX[record["loss"]],
            }
            for record, star_s, virtual_s in deviations()
        ]
    except CalibrationError as error:
        say(str(error))
        return 2
    say(table(found))
    return int(any(abs(each["deviation"]) > each["at most"] for each in found))
