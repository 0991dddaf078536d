"""Compares what a packet costs with an earlier revision, which is built here, in turns: make bench NAMES=against-last.

The exit status is 1 if a layer or a transport costs a tenth more than it did. Needs root, two cores to itself, and the
repository's history.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from wiresum_lab import REPOSITORY
from wiresum_lab.benchmarks.packets.__main__ import UnavailableError, built, layers_of, measure, ways
from wiresum_lab.benchmarks.program import Options, Record, keep, say

TOLERATED = 1.1
CORES = (0, 1)
Costs = dict[str, list[float]]


def last_release() -> str:
    """The newest tag of this history; "" if there is none."""
    command = ["git", "describe", "--tags", "--abbrev=0"]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False).stdout.strip()


def costs_of(bench: Path, only: str, seconds: float, folder: Path) -> dict[str, float]:
    """Nanoseconds of a packet by layer, and core-nanoseconds of a datagram by transport."""
    costs = layers_of(bench, CORES[1])
    for way in ways(folder / "memif.sock"):
        if only.lower() in way.name.lower():
            try:
                costs[way.name] = 1e9 / measure(bench, way, seconds, CORES).rate
            except UnavailableError as error:
                say(f"left out: {way.name}: {error}")
    return costs


def compared(then: Mapping[str, Sequence[float]], now: Mapping[str, Sequence[float]]) -> list[Record]:
    """The records of what both revisions have. Other load only adds to a cost, so the least of all turns counts."""
    least = {name: (min(then[name]), min(now[name])) for name in then if name in now}
    return [
        {"what": name, "ns then": before, "ns now": after, "ratio": after / before}
        for name, (before, after) in least.items()
    ]


def main(arguments: Sequence[str]) -> int:
    parser = Options("against-last", __doc__, workers=None, link_mbit=None)
    parser.add("--revision", last_release(), "the revision to compare with")
    parser.add("--seconds", 1.0, "duration of each stream")
    parser.add("--turns", 5, "turns of each build")
    parser.add("--only", "", "transports whose names have this in them, like UDP")
    options = parser.parse_args(arguments)
    if not options.revision:
        parser.error("this history has no tag: choose a revision with --revision, like HEAD~20")
    benches: dict[str, Path] = {"now": built(REPOSITORY)}
    costs: dict[str, Costs] = {"then": {}, "now": {}}
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder) / "then"
        subprocess.run(["git", "worktree", "add", "--detach", there, options.revision], cwd=REPOSITORY, check=True)
        try:
            benches["then"] = built(there)
            for turn in range(options.turns):
                for which in sorted(benches, reverse=bool(turn % 2)):
                    for name, cost in costs_of(benches[which], options.only, options.seconds, Path(folder)).items():
                        costs[which].setdefault(name, []).append(cost)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", there], cwd=REPOSITORY, check=False)
    records = compared(costs["then"], costs["now"])
    keep(options.json, records)
    slower = [record["what"] for record in records if record["ratio"] > TOLERATED]
    if slower:
        say(f"More than a tenth slower than {options.revision}: {', '.join(slower)}.")
    return 1 if slower or not records else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
