"""Runs the papers' experiments: tables, pictures, claims. Exits with an error if a claim does not hold."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import torch

from wiresum.experiments import figures
from wiresum.experiments.experiment import Report

EXPERIMENTS = (
    "linear-rate",
    "variance-reduction",
    "independent-blocks",
    "growing-integers",
    "global-top-k",
    "granularity",
    "compressed-training",
    "momentum-correction",
    "block-sparsifiers",
    "importance-sampling",
    "granularity-training",
    "beyond-strong-convexity",
    "adaptive-optimizers",
)
"""Each is a module of this package, with a function `run`. The later ones take longer."""


@dataclass(frozen=True)
class Shown:
    text: str
    """An experiment's table and claims."""
    holds: bool
    """Whether all its claims hold."""


def run_of(name: str) -> Callable[..., Report]:
    run: Callable[..., Report] = import_module(f"wiresum.experiments.{name.replace('-', '_')}").run
    return run


def show(name: str, output: Path) -> Shown:
    """Runs one experiment, and draws its picture."""
    torch.set_num_threads(1)  # the networks are too small for more
    started_at = time.perf_counter()
    report = run_of(name)()
    figures.save(report, output / f"science-{name}.png")
    lines = [f"\n## {report.title}\n\n{report.table()}\n"]
    lines += [f"{'holds' if claim.holds else 'DOES NOT HOLD'}: {claim}" for claim in report.claims]
    lines.append(f"({time.perf_counter() - started_at:.0f} s)")
    return Shown("\n".join(lines), all(claim.holds for claim in report.claims))


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
        longest_first = sorted(names, key=EXPERIMENTS.index, reverse=True)
        shown = {name: pool.submit(show, name, options.output) for name in longest_first}
        for name in names:
            result = shown[name].result()
            print(result.text, flush=True)
            held &= result.holds
    if not held:
        sys.exit("some claims do not hold")


if __name__ == "__main__":
    main()
