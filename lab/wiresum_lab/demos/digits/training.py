"""The training that the demos and Mininet's network run: handwritten digits, on workers that are started one by one.

The caller passes functions that start a worker (on this machine, in a namespace, at a host of Mininet). Workers'
records are read while they run. `over_software_switch`, with everything on loopback, is the reference for other
switches.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from wiresum import compiled
from wiresum_lab.demos.digits.progress import RunProgress
from wiresum_lab.demos.digits.runs import Run, RunReader
from wiresum_lab.namespaces.star import STAR_DEVICE, Host
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import (
    Program,
    ProgramError,
    ProgramTimedOutError,
    SwitchProcess,
    stop_all,
    unused_port,
    wait_until,
)

STORE_PORT = 29_500
RUN_S_MAX = 15 * PATIENCE_S

Start = Callable[[Sequence[str], Path, Mapping[str, str]], Program]
"""A function of command, log file and variables: starts the command with its output in the file and with these
variables added to its environment."""


def train(
    runs: Sequence[Run], starts: Sequence[Start], variables: Mapping[str, str], options: argparse.Namespace
) -> None:
    """Starts a worker by each of `starts`; each worker trains once for each of the runs. Raises `ProgramError`."""
    command = [sys.executable, "-m", "wiresum_lab.demos.digits.train", "--output", str(options.output)]
    command += ["--epochs", str(options.epochs), "--seed", str(options.seed), "--width", str(options.width)]
    for run in runs:
        command += ["--run", run.name, run.backend]
        folder: Path = options.output / run.name
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("rank-*"):
            old.unlink()
    workers: list[Program] = []
    try:
        for rank, start in enumerate(starts):
            # Each worker has one thread, so that workers share the cores and sums inside a worker have one order.
            own = {"RANK": str(rank), "WORLD_SIZE": str(len(starts)), "LOCAL_RANK": "0", "OMP_NUM_THREADS": "1"}
            log = options.output / runs[0].name / f"rank-{rank}.log"
            workers.append(start(command, log, {**variables, **own}))
        for run in runs:
            follow(run, workers, options)
        wait_until(
            lambda: all(worker.exit_code is not None for worker in workers),
            "the workers have ended",
            error=ProgramTimedOutError,
        )
        check(runs[-1], workers)
    finally:
        stop_all(workers)


def follow(run: Run, workers: Sequence[Program], options: argparse.Namespace) -> None:
    """Shows the progress of one run to its end."""
    reader = RunReader(run, options.output / run.name, len(workers))
    with RunProgress(options.console, run) as progress:

        def has_ended() -> bool:
            reader.read()
            progress.update()
            return len(run.digests) == len(workers)

        what = f"training over {run.name} has ended"
        wait_until(has_ended, what, RUN_S_MAX, lambda: check(run, workers), error=ProgramTimedOutError)


def check(run: Run, workers: Sequence[Program]) -> None:
    if failed := next((worker for worker in workers if worker.exit_code), None):
        what = f"{failed.name} ended with exit code {failed.exit_code}\n{failed.tail()}"
        raise ProgramError(f"training over {run.name} failed: {what}")


def over_software_switch(options: argparse.Namespace, name: str = "software") -> Run:
    """Trains over a software switch, whose packets have as many words as the switch program's. Raises
    `ProgramError`."""
    run = Run(name)
    with SwitchProcess(options.output, "--lanes", str(compiled.load("v1model").lanes)) as switch:
        on_loopback([run], switch, options)
    return run


def on_star(runs: Sequence[Run], workers: Sequence[Host], control: str, options: argparse.Namespace) -> None:
    """Trains on these hosts of a star, whose workers join at the endpoint `control`. Raises `ProgramError`."""
    variables = {
        "WIRESUM_SWITCH": control,
        "WIRESUM_INSECURE": "1",
        "MASTER_ADDR": workers[0].address,
        "MASTER_PORT": str(STORE_PORT),
        "GLOO_SOCKET_IFNAME": STAR_DEVICE,
    }
    train(runs, [partial(Program, at=worker.popen) for worker in workers], variables, options)


def on_loopback(runs: Sequence[Run], switch: SwitchProcess, options: argparse.Namespace) -> None:
    store = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(unused_port()), "GLOO_SOCKET_IFNAME": "lo"}
    variables = {**store, "WIRESUM_SWITCH": switch.endpoint, "WIRESUM_ADDRESS": "127.0.0.1"}
    train(runs, [Program] * options.workers, variables, options)
