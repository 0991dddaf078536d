"""The papers' experiments, through integers that are added as a switch adds them: tables, pictures, claims.

`make science` runs all of them. A claim that does not hold ends it with an error.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

import compressed_training
import figures
import global_top_k
import granularity
import growing_integers
import independent_blocks
import linear_rate
import variance_reduction
from experiment import Report

EXPERIMENTS: dict[str, Callable[[], Report]] = {
    "linear-rate": linear_rate.run,
    "variance-reduction": variance_reduction.run,
    "independent-blocks": independent_blocks.run,
    "growing-integers": growing_integers.run,
    "global-top-k": global_top_k.run,
    "granularity": granularity.run,
    "compressed-training": compressed_training.run,
}


def show(name: str, output: Path) -> bool:
    """Runs one experiment, prints its table and draws its picture. Do all its claims hold?"""
    started_at = time.perf_counter()
    report = EXPERIMENTS[name]()
    figures.save(report, output / f"science-{name}.png")
    print(f"\n## {report.title}\n\n{report.table()}\n")
    for claim in report.claims:
        print(f"{'holds' if claim.holds else 'DOES NOT HOLD'}: {claim}")
    print(f"({time.perf_counter() - started_at:.0f} s)", flush=True)
    return all(claim.holds for claim in report.claims)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all, or some of: {', '.join(EXPERIMENTS)}")
    parser.add_argument(
        "--output", type=Path, default=Path("build/science"), help="folder for pictures (default: %(default)s)"
    )
    options = parser.parse_args()
    if unknown := set(options.names) - set(EXPERIMENTS):
        parser.error(f"there is no experiment {', '.join(sorted(unknown))}; there are {', '.join(EXPERIMENTS)}")
    return options


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(1)  # the networks are small: threads would only wait for each other
    options.output.mkdir(parents=True, exist_ok=True)
    held = [show(name, options.output) for name in options.names or EXPERIMENTS]
    if not all(held):
        sys.exit("some claims do not hold")


if __name__ == "__main__":
    main()
