"""The training that the demos and Mininet's network run: handwritten digits, on workers that are started one by one.

The caller says how a worker is started (on this machine, in a namespace, at a host of Mininet); what the workers
write is read while they do. `over_software_switch` is what other switches are compared with: everything on loopback.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from wiresum import compiled
from wiresum_lab.demos.digits.progress import RunProgress
from wiresum_lab.demos.digits.runs import Run, RunReader
from wiresum_lab.processes import Program, ProgramError, SwitchProcess, stop_all, unused_port

STORE_PORT = 29_500
RUN_S_MAX = 900.0
POLL_S = 0.1

Start = Callable[[Sequence[str], Path, Mapping[str, str]], Program]
"""Starts a command, with its output in a file and more variables in its environment."""


def train(
    run: Run,
    starts: Sequence[Start],
    variables: Mapping[str, str],
    options: argparse.Namespace,
    *,
    backend: str = "wiresum",
) -> Run:
    """One worker for each of `starts`, to the end of the training. Raises `ProgramError`."""
    folder: Path = options.output / run.backend
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("rank-*"):
        old.unlink()
    command = [sys.executable, "-m", "wiresum_lab.demos.digits.train", "--backend", backend, "--output", str(folder)]
    command += ["--epochs", str(options.epochs), "--seed", str(options.seed), "--width", str(options.width)]
    reader = RunReader(run, folder, len(starts))
    workers: list[Program] = []
    try:
        for rank, start in enumerate(starts):
            # One thread each, so that workers do not fight for cores and sums inside a worker have one order.
            own = {"RANK": str(rank), "WORLD_SIZE": str(len(starts)), "LOCAL_RANK": "0", "OMP_NUM_THREADS": "1"}
            workers.append(start(command, folder / f"rank-{rank}.log", {**variables, **own}))
        with RunProgress(options.console, run) as progress:
            give_up_at = time.monotonic() + RUN_S_MAX
            running = True
            while running:
                running = any(worker.exit_code is None for worker in workers)
                if failed := next((worker for worker in workers if worker.exit_code), None):
                    what = f"{failed.name} ended with exit code {failed.exit_code}\n{failed.tail()}"
                    raise ProgramError(f"training over {run.backend} failed: {what}")
                if time.monotonic() > give_up_at:
                    raise ProgramError(f"training over {run.backend} took longer than {RUN_S_MAX:.0f} s")
                time.sleep(POLL_S * running)
                reader.read()
                progress.update()
    finally:
        stop_all(workers)
    return run


def over_software_switch(options: argparse.Namespace, name: str = "software") -> Run:
    """Raises `ProgramError`. The switch's packets have as many words as the switch program's."""
    with SwitchProcess(options.output, "--lanes", str(compiled.load("v1model").lanes)) as switch:
        return on_loopback(Run(name), {"WIRESUM_SWITCH": switch.endpoint, "WIRESUM_ADDRESS": "127.0.0.1"}, options)


def on_loopback(
    run: Run, variables: Mapping[str, str], options: argparse.Namespace, *, backend: str = "wiresum"
) -> Run:
    store = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(unused_port()), "GLOO_SOCKET_IFNAME": "lo"}
    return train(run, [Program] * options.workers, {**store, **variables}, options, backend=backend)
