"""Trains on handwritten digits with gradients summed by a software switch, then over Gloo, and compares.

Starts `wiresum switch` and four workers over init_process_group("wiresum"), which then train with the same seed over
Gloo. As root, each of them is in a network namespace of its own, behind a link of 100 Mbit/s; otherwise all are on this
machine's loopback, where no link limits a ring. Shows progress, draws a chart, and writes the results as JSON.
"""

from __future__ import annotations

import argparse
import platform
import signal
import sys
from importlib.metadata import version
from pathlib import Path

from rich.console import Console

from wiresum_lab.demos.digits.program import parser_of, run_demo
from wiresum_lab.demos.digits.runs import Run
from wiresum_lab.demos.digits.training import on_loopback, on_star
from wiresum_lab.namespaces.links import Link
from wiresum_lab.namespaces.star import Star, StarError, check_prerequisites
from wiresum_lab.processes import SwitchProcess

WIDTH = 32
"""Channels of the first layer."""
LINK_MBIT, NO_LIMIT = 100.0, 0.0


def run(options: argparse.Namespace) -> dict[str, object]:
    """Trains over both backends. Raises `ProgramError` or `StarError`."""
    from wiresum_lab.demos.digits import picture

    wiresum, gloo = runs = [Run("wiresum"), Run("gloo", "gloo")]
    if options.link_mbit is None:
        options.link_mbit = rate_here(options.console)
    if options.link_mbit == NO_LIMIT:
        with SwitchProcess(options.output) as switch:
            say_where(options, "all on this machine's loopback")
            on_loopback(runs, switch, options)
    else:
        with (
            Star(options.workers, Link(options.link_mbit)) as star,
            SwitchProcess(options.output, "--insecure", address=star.switch.address, at=star.switch.popen) as switch,
        ):
            say_where(options, f"each behind a link of {options.link_mbit:g} Mbit/s")
            on_star(runs, star.workers, switch.endpoint, options)
    picture.draw(runs, options.output / "run.png", world_size=options.workers, link_mbit=options.link_mbit)
    return {
        "link_mbit": options.link_mbit,
        "accuracy": wiresum.accuracy,
        "accuracy_gloo": gloo.accuracy,
        "parameters_identical": wiresum.parameters_identical(options.workers),
        "parameters_identical_gloo": gloo.parameters_identical(options.workers),
        "seconds": wiresum.seconds,
        "seconds_gloo": gloo.seconds,
        "retransmissions": wiresum.retransmissions,
        "goodput_mbit": wiresum.goodput_mbit,
        "goodput_gloo_mbit": gloo.goodput_mbit,
        "times_gloo": wiresum.goodput_mbit / gloo.goodput_mbit,
        "loss": wiresum.losses[-1],
        "loss_gloo": gloo.losses[-1],
        "steps": wiresum.steps,
        "bytes": wiresum.bytes,
        "world_size": options.workers,
        "seed": options.seed,
        "versions": {"python": platform.python_version(), "torch": version("torch"), "wiresum": version("wiresum")},
    }


def say_where(options: argparse.Namespace, where: str) -> None:
    options.console.print(f"{options.workers} workers and a software switch, {where}.", highlight=False)


def parse_arguments() -> argparse.Namespace:
    parser = parser_of(__doc__, "demo", epochs=20, writes="run.png and run.json")
    parser.add_argument(
        "--link-mbit",
        type=float,
        help=f"rate of every link; 0: all on loopback, without root (default: {LINK_MBIT:g} where links can be made)",
    )
    parser.set_defaults(width=WIDTH)
    return parser.parse_args()


def rate_here(console: Console) -> float:
    """The rate of links in Mbit/s that the demo has by default: none where this machine or user cannot make links."""
    try:
        check_prerequisites()
    except StarError as error:
        console.print(f"The demo runs without links of a limited rate: {error}", highlight=False)
        return NO_LIMIT
    return LINK_MBIT


def show(result: dict[str, object], output: Path, console: Console) -> None:
    same = "bit for bit the same at all workers" if result["parameters_identical"] else "NOT the same at all workers"
    console.print(f"Test accuracy {result['accuracy']:.2%} with wiresum, {result['accuracy_gloo']:.2%} with Gloo.")
    console.print(f"Parameters after training: {same}.")
    console.print(f"Gradients were summed {result['times_gloo']:.2f} times as fast as over Gloo.")
    console.print(f"{output / 'run.png'}\n{output / 'run.json'}", highlight=False)


def main() -> int:
    options = parse_arguments()
    # A `kill`, or a terminal that is closed, cleans up like Ctrl-C.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    return run_demo(options, run, show)


if __name__ == "__main__":
    sys.exit(main())
