"""The papers' experiments, through integers that are added as a switch adds them: tables, pictures, claims.

`make science` runs all of them. A claim that does not hold ends it with an error.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from wiresum.experiments import (
    adaptive_optimizers,
    beyond_strong_convexity,
    block_sparsifiers,
    compressed_training,
    figures,
    global_top_k,
    granularity,
    granularity_training,
    growing_integers,
    importance_sampling,
    independent_blocks,
    linear_rate,
    momentum_correction,
    variance_reduction,
)
from wiresum.experiments.experiment import Report

EXPERIMENTS: dict[str, Callable[[], Report]] = {
    "linear-rate": linear_rate.run,
    "variance-reduction": variance_reduction.run,
    "independent-blocks": independent_blocks.run,
    "growing-integers": growing_integers.run,
    "global-top-k": global_top_k.run,
    "granularity": granularity.run,
    "compressed-training": compressed_training.run,
    "momentum-correction": momentum_correction.run,
    "block-sparsifiers": block_sparsifiers.run,
    "importance-sampling": importance_sampling.run,
    "granularity-training": granularity_training.run,
    "beyond-strong-convexity": beyond_strong_convexity.run,
    "adaptive-optimizers": adaptive_optimizers.run,
}


LONGEST_FIRST = list(reversed(EXPERIMENTS))
"""The order in which they start, so that all processes end at about the same time."""


@dataclass(frozen=True)
class Shown:
    text: str
    """An experiment's table and claims."""
    holds: bool
    """Do all its claims?"""


def show(name: str, output: Path) -> Shown:
    """Runs one experiment, and draws its picture."""
    torch.set_num_threads(1)  # the networks are small: threads would only wait for each other
    started_at = time.perf_counter()
    report = EXPERIMENTS[name]()
    figures.save(report, output / f"science-{name}.png")
    lines = [f"\n## {report.title}\n\n{report.table()}\n"]
    lines += [f"{'holds' if claim.holds else 'DOES NOT HOLD'}: {claim}" for claim in report.claims]
    lines.append(f"({time.perf_counter() - started_at:.0f} s)")
    return Shown("\n".join(lines), all(claim.holds for claim in report.claims))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
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
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as with torch's threads: experiments run side by side
    options.output.mkdir(parents=True, exist_ok=True)
    names = options.names or list(EXPERIMENTS)
    held = True
    with ProcessPoolExecutor(min(options.jobs, len(names)), multiprocessing.get_context("spawn")) as pool:
        shown = {name: pool.submit(show, name, options.output) for name in sorted(names, key=LONGEST_FIRST.index)}
        for name in names:
            result = shown[name].result()
            print(result.text, flush=True)
            held &= result.holds
    if not held:
        sys.exit("some claims do not hold")


if __name__ == "__main__":
    main()
