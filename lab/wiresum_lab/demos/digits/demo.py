"""Trains on handwritten digits with gradients summed by a software switch, then over Gloo, and compares.

Starts `wiresum switch` on this machine, and four workers over init_process_group("wiresum"), which then train with the
same seed over Gloo. Shows progress, draws a chart, and writes the results as JSON.
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
from wiresum_lab.demos.digits.training import on_loopback
from wiresum_lab.processes import SwitchProcess

WIDTH = 32
"""Channels of the first layer."""


def run(options: argparse.Namespace) -> dict[str, object]:
    """Trains over both backends. Raises `ProgramError`."""
    from wiresum_lab.demos.digits import picture

    with SwitchProcess(options.output) as switch:
        options.console.print(f"A software switch serves joins at {switch.endpoint}.", highlight=False)
        wiresum, gloo = runs = [Run("wiresum"), Run("gloo", "gloo")]
        on_loopback(runs, switch, options)
    picture.draw(runs, options.output / "run.png", world_size=options.workers)
    return {
        "accuracy": wiresum.accuracy,
        "accuracy_gloo": gloo.accuracy,
        "parameters_identical": wiresum.parameters_identical(options.workers),
        "parameters_identical_gloo": gloo.parameters_identical(options.workers),
        "seconds": wiresum.seconds,
        "seconds_gloo": gloo.seconds,
        "retransmissions": wiresum.retransmissions,
        "goodput_mbit": wiresum.goodput_mbit,
        "goodput_gloo_mbit": gloo.goodput_mbit,
        "loss": wiresum.losses[-1],
        "loss_gloo": gloo.losses[-1],
        "steps": wiresum.steps,
        "bytes": wiresum.bytes,
        "world_size": options.workers,
        "seed": options.seed,
        "versions": {"python": platform.python_version(), "torch": version("torch"), "wiresum": version("wiresum")},
    }


def parse_arguments() -> argparse.Namespace:
    parser = parser_of(__doc__, "demo", epochs=20, writes="run.png and run.json")
    parser.set_defaults(width=WIDTH)
    return parser.parse_args()


def show(result: dict[str, object], output: Path, console: Console) -> None:
    same = "bit for bit the same at all workers" if result["parameters_identical"] else "NOT the same at all workers"
    console.print(f"Test accuracy {result['accuracy']:.2%} with wiresum, {result['accuracy_gloo']:.2%} with Gloo.")
    console.print(f"Parameters after training: {same}.")
    console.print(f"{output / 'run.png'}\n{output / 'run.json'}", highlight=False)


def main() -> int:
    options = parse_arguments()
    # A `kill` cleans up like Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return run_demo(options, run, show)


if __name__ == "__main__":
    sys.exit(main())
