"""Runs the papers' experiments: tables, charts, claims. Exits with an error if a claim does not hold."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from wiresum.experiments.catalogue import EXPERIMENTS, LONG, show


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all, or some of: {', '.join(EXPERIMENTS)}")
    parser.add_argument(
        "--output", type=Path, default=Path("build/science"), help="folder for pictures (default: %(default)s)"
    )
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="experiments at once (default: %(default)s, the cores)"
    )
    options = parser.parse_args()
    if options.jobs < 1:
        parser.error("--jobs is at least 1")
    if unknown := set(options.names) - set(EXPERIMENTS):
        parser.error(f"there is no experiment {', '.join(sorted(unknown))}; there are {', '.join(EXPERIMENTS)}")
    return options


def main() -> None:
    options = parse_arguments()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    options.output.mkdir(parents=True, exist_ok=True)
    names = options.names or list(EXPERIMENTS)
    held = True
    with ProcessPoolExecutor(min(options.jobs, len(names)), multiprocessing.get_context("spawn")) as pool:
        longest_first = sorted(names, key=lambda name: LONG.index(name) if name in LONG else len(LONG))
        shown = {name: pool.submit(show, name, options.output) for name in longest_first}
        for name in names:
            result = shown[name].result()
            print(result.text, flush=True)
            held &= result.holds
    if not held:
        sys.exit("some claims do not hold")


if __name__ == "__main__":
    main()
