"""Trains over the switch program on bmv2, then the same over the software switch, and compares every bit.

Builds a star of network namespaces with bmv2 in the middle (root), starts `wiresum controller` on one of its hosts and
four workers on the others; then `wiresum switch` and four workers on this machine's loopback, with as many words in a
packet, and the same seed. Sums of integers do not depend on the switch that computes them, or on lost packets, so both
trainings end with the same parameters.
"""

from __future__ import annotations

import argparse
import signal
import sys
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from wiresum_lab.demos.digits.program import parser_of, run_demo
from wiresum_lab.demos.digits.runs import Run
from wiresum_lab.demos.digits.training import on_star, over_software_switch
from wiresum_lab.namespaces.star import termination_as_exit


def over_bmv2(options: argparse.Namespace, cleanup: ExitStack) -> tuple[Run, dict[str, float]]:
    from wiresum_lab.namespaces.bmv2_star import Bmv2Star

    star = cleanup.enter_context(Bmv2Star(options.workers))
    control = cleanup.enter_context(star.controller())
    options.console.print(
        f"bmv2 runs the switch program at {star.address}; workers join at {control}, through it.", highlight=False
    )
    star.lose_upstream(options.loss)
    star.lose_downstream(options.loss)
    frames_before, cpu_before_s = star.frames(), star.cpu_s()
    run = Run("bmv2")
    on_star([run], star.workers, control, options)
    # While workers start, hardly anything goes over the network.
    frames_in, frames_out = (after - before for after, before in zip(star.frames(), frames_before, strict=True))
    measured = {
        "frames_in_per_s": frames_in / run.seconds,
        "frames_out_per_s": frames_out / run.seconds,
        "bmv2_cores": (star.cpu_s() - cpu_before_s) / run.seconds,
    }
    return run, measured


def run(options: argparse.Namespace) -> dict[str, object]:
    """Runs both trainings. Raises `ProgramError` or `StarError`."""
    with termination_as_exit():
        with ExitStack() as cleanup:
            bmv2, measured = over_bmv2(options, cleanup)
        software = over_software_switch(options)
    same = set(bmv2.digests.values()) == set(software.digests.values())
    identical = all(run.parameters_identical(options.workers) for run in (bmv2, software))
    return {
        "parameters_identical": identical and same,
        "accuracy": bmv2.accuracy,
        "accuracy_software": software.accuracy,
        "seconds": bmv2.seconds,
        "seconds_software": software.seconds,
        "goodput_mbit": bmv2.goodput_mbit,
        "goodput_software_mbit": software.goodput_mbit,
        "retransmissions": bmv2.retransmissions,
        **measured,
        "steps": bmv2.steps,
        "bytes": bmv2.bytes,
        "loss_of_packets": options.loss,
        "world_size": options.workers,
        "seed": options.seed,
    }


def parse_arguments() -> argparse.Namespace:
    parser = parser_of(__doc__, "demo-bmv2", epochs=15, writes="run.json")
    parser.add_argument("--width", type=int, default=8, help="channels of the first layer (default: %(default)s)")
    parser.add_argument(
        "--loss", type=float, default=0.0, help="fraction of packets lost in each direction (default: %(default)s)"
    )
    return parser.parse_args()


def show(found: dict[str, object], output: Path, console: Console) -> None:
    same = "bit for bit the same" if found["parameters_identical"] else "NOT the same"
    console.print(
        f"Test accuracy {found['accuracy']:.2%} over bmv2, {found['accuracy_software']:.2%} over the software switch."
    )
    console.print(f"Parameters at all workers of both: {same}.")
    console.print(
        f"bmv2 took in {found['frames_in_per_s']:,.0f} and sent {found['frames_out_per_s']:,.0f} frames/s; "
        f"gradients at {found['goodput_mbit']:.1f} Mbit/s, {found['retransmissions']} retransmissions."
    )
    console.print(f"{output / 'run.json'}", highlight=False)


def main() -> int:
    options = parse_arguments()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return run_demo(options, run, show)


if __name__ == "__main__":
    sys.exit(main())
