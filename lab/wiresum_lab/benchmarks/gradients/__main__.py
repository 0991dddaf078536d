"""Trains with each WIRESUM_PRECISION: `make bench NAMES=gradients ARGS=--help`. Needs root.

On a star of namespaces (`star.py`) all ranks train a small model again and again from the same start (`rank.py`), each
time with gradients that are summed in another way: in blocks, in blocks with exact sums where blocks lose too much,
exactly, and in fp32 over Gloo. The benchmark counts how often blocks lose too much, and the cost of summing these
chunks again.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence

from wiresum_lab.benchmarks import program
from wiresum_lab.benchmarks.gradients.rank import PRECISIONS
from wiresum_lab.benchmarks.models import TASKS
from wiresum_lab.benchmarks.program import BLOCK, Case, Record, say
from wiresum_lab.namespaces.links import Link
from wiresum_lab.namespaces.star import Star
from wiresum_lab.ranks.ranks import GLOO, start_on_star

GROUPS = (GLOO, *PRECISIONS)
LAST_STEPS = 10


def measure(options: argparse.Namespace) -> list[Case]:
    measured = []
    with (
        Star(options.workers, Link(options.link_mbit)) as star,
        start_on_star("gradients", star, options.logs, "wiresum_lab.benchmarks.gradients.rank") as ranks,
    ):
        alike = {name: getattr(options, name) for name in ("workers", "link_mbit", "steps")}
        for model in options.models:
            for group in GROUPS:
                say(f"{model}, {group}")
                found = summary(ranks.command("train", model, group, options.steps))
                measured.append(Case({"model": model, "group": group} | alike, further=found))
    return measured


def summary(answers: Sequence[Record]) -> Record:
    """The mean loss of all workers, by step, and the sums of their counters, which Gloo does not have."""
    losses = [statistics.fmean(step) for step in zip(*(answer["losses"] for answer in answers), strict=True)]
    names = answers[0].keys() - {"losses", "parameters"}
    counted = {name: sum(answer[name] for answer in answers) for name in names}
    return {"losses": losses, "parameters": answers[0]["parameters"], "counted": counted}


def figures(case: Case, measured: Sequence[Case]) -> Record:
    """The columns of a case: `loss` is the mean of the last steps, `from_gloo` the largest difference from Gloo's loss
    at any step, `such_chunks` the fraction of chunks that blocks cannot carry."""
    of_model = {each["group"]: each.further for each in measured if each["model"] == case["model"]}
    losses, counted = case.further["losses"], case.further["counted"]
    chunks = case["steps"] * -(-case.further["parameters"] // BLOCK)
    # With `adaptive`, all workers count a chunk that is summed again; with `block`, only those that have its elements.
    lost = (counted.get("chunks_exact", 0) or counted.get("chunks_wide", 0)) / case["workers"]
    apart = (abs(mine - theirs) for mine, theirs in zip(losses, of_model[GLOO]["losses"], strict=True))
    return {
        "loss": statistics.fmean(losses[-LAST_STEPS:]),
        "from_gloo": max(apart),
        "such_chunks": lost / chunks if case["group"] in ("block", "adaptive") else None,
        "bytes_over_block": counted["bytes_sent"] / of_model["block"]["counted"]["bytes_sent"] if counted else None,
    }


def main(arguments: Sequence[str]) -> int:
    parser = program.Options("gradients", __doc__, workers=4)
    parser.add("--models", list(TASKS), "models to train", choices=TASKS)
    parser.add("--steps", 150, "steps of each training")
    return program.run(parser.parse_args(arguments), measure, figures)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
