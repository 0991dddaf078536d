"""Measures how long training takes to a loss: `make bench NAMES=time-to-loss ARGS=--help`. Needs root.

Theory of operation. On a star of namespaces (`star.py`) every worker is one process that trains small models with
DistributedDataParallel (`rank.py`), in one way after another: fp32 over Gloo; fp32, 16 and 8 bits through the switch;
outer steps in 32 and 8 bits; PyTorch's own hooks over Gloo; and each method of the guide through the switch.

*The target* is the loss that fp32 over Gloo has after `--steps` steps, plus 2%, for each model and seed. The loss is
that of fixed batches, drawn as the training's are, after every few steps.

*Time* is that of training alone, on the shaped links: the clock runs from the first rank's start to the last rank's
end, and stands still while the ranks compute the loss. It ends with the step after which the target is reached.

*Every other way* has twice Gloo's steps; one that has not reached the target then never does. All ways have the
learning rates at which fp32 trains well.

Few cores hide much: with four workers and a switch on two cores, the computation of a step counts twice.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Sequence
from itertools import product

from wiresum_lab.benchmarks import program
from wiresum_lab.benchmarks.compress.rank import MODELS, TITLES, is_refused
from wiresum_lab.benchmarks.program import Case, Record, say, seconds_of
from wiresum_lab.namespaces.links import Link
from wiresum_lab.namespaces.star import Star
from wiresum_lab.ranks.ranks import GLOO, Ranks, start_on_star

ABOVE = 1.02
"""The target, as a multiple of the loss that Gloo ends with."""
MORE = 2
"""How many times Gloo's steps another way has."""


def measure(options: argparse.Namespace) -> list[Case]:
    measured = []
    with (
        Star(options.workers, Link()) as star,
        start_on_star("time-to-loss", star, options.logs, "wiresum_lab.benchmarks.compress.rank") as ranks,
    ):
        for rate, model in product(options.rates, options.models):
            star.reshape(Link(rate, delay_us=round(1000 * options.delay_ms)))
            alike = {"model": model, "link_mbit": rate, "delay_ms": options.delay_ms, "workers": options.workers}
            ways = [way for way in options.ways if not is_refused(model, way)]
            cases = [Case({"way": way} | alike) for way in ways]
            measured += cases
            for seed in options.seeds:  # all ways in turn, so that other load on the machine affects all alike
                for case in cases:
                    run = trained(ranks, case, seed, options, cases[0].repetitions)
                    case.repetitions.append(run)
                    say(f"{rate:g} Mbit/s, {model}, seed {seed}, {case['way']}: {cell(run)}")
    return measured


def trained(ranks: Ranks, case: Case, seed: int, options: argparse.Namespace, gloo: Sequence[Record]) -> Record:
    """Trains to the target. `gloo` are Gloo's runs, the last one of which is of the same seed, unless this is it."""
    steps, target = (options.steps, 0.0) if case["way"] == GLOO else (MORE * options.steps, gloo[-1]["target"])
    times: list[float] = []
    losses: list[float] = []
    received = 0.0
    ranks.command("begin", case["model"], case["way"], seed)
    while len(times) * options.every < steps and not reached(losses, target):
        answers = ranks.command("train", options.every)
        times.append(seconds_of(answers))
        received += statistics.fmean(answer["bytes_received"] for answer in answers)
        losses.append(statistics.fmean(ranks.command("loss")))
    if case["way"] == GLOO:
        target = ABOVE * losses[-1]
    first = next((index for index, loss in enumerate(losses) if loss <= target), None)
    seconds = None if first is None else sum(times[: first + 1])
    own: Record = {"seconds": seconds, "target": target, "loss": losses[-1]}
    peer = gloo[-1] if case["way"] != GLOO else own
    return own | {
        "seed": seed,
        "over_gloo": peer["seconds"] / seconds if seconds else 0.0,
        "loss_over_gloo": losses[-1] / peer["loss"],
        "received_megabytes": received / len(times) / options.every / 1e6,
        "times": times,
        "losses": losses,
    }


def reached(losses: Sequence[float], target: float) -> bool:
    return bool(losses) and losses[-1] <= target


def figures(case: Case, measured: Sequence[Case]) -> Record:
    """Medians over seeds. A seed whose run never reached the target counts as infinitely long."""
    seconds = statistics.median(math.inf if each is None else each for each in case.all("seconds"))
    names = ("over_gloo", "loss", "loss_over_gloo", "received_megabytes")
    return {"seconds": seconds if seconds < math.inf else None} | {name: case.median(name) for name in names}


def cell(found: Record) -> str:
    """How many times faster than Gloo, and in brackets the seconds; or "never", and the last loss over Gloo's."""
    if found["seconds"] is None:
        return f"never ({found['loss_over_gloo']:.2f})"
    return f"{found['over_gloo']:.2f} ({found['seconds']:.1f} s)"


def markdown(records: Sequence[Record]) -> str:
    """The guide's table: a row for each way, a column for each model and rate."""
    columns = list(dict.fromkeys((record["model"], record["link_mbit"]) for record in records))
    cells = {(record["way"], record["model"], record["link_mbit"]): cell(record) for record in records}
    head = ["way", *(f"{MODELS[model][0]}, {rate:g} Mbit/s" for model, rate in columns)]
    ways = dict.fromkeys(record["way"] for record in records)
    rows = [[TITLES[way], *(cells.get((way, *column), "refused") for column in columns)] for way in ways]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def main(arguments: Sequence[str]) -> int:
    parser = program.Options("time-to-loss", __doc__, workers=4, link_mbit=None)
    parser.add("--rates", [100.0, 1000.0], "rates of every link, in Mbit/s")
    parser.add("--delay-ms", 0.0, "delay of every link, each way (needs the kernel's netem)")
    parser.add("--models", list(MODELS), "models to train", choices=MODELS)
    parser.add("--seeds", [1, 2, 3], "seeds of parameters, batches and methods")
    parser.add("--ways", list(TITLES), "ways to train, beside fp32 over Gloo", choices=TITLES, metavar="WAY")
    parser.add("--steps", 200, "steps of fp32 over Gloo")
    parser.add("--every", 5, "steps between losses")
    options = parser.parse_args(arguments)
    options.ways = [way for way in TITLES if way == GLOO or way in options.ways]  # every way is compared with Gloo
    return program.run(options, measure, figures, lambda records, _: say(markdown(records)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
