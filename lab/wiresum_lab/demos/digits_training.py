"""The training that the demos and Mininet's network run: handwritten digits, on workers that are started one by one.

Whoever calls says how a worker is started (on this machine, in a namespace, at a host of Mininet); what the workers
write is read while they do. `over_software_switch` is what other switches are compared with: everything on loopback.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from wiresum import compiled
from wiresum_lab.demos.digits.progress import RunProgress
from wiresum_lab.demos.digits.runs import Run, RunReader

STORE_PORT = 29_500
START_S_MAX = 60.0
RUN_S_MAX = 900.0
STOP_S_MAX = 10.0
POLL_S = 0.1
LOG_LINES_SHOWN = 40

Start = Callable[[Sequence[str], Mapping[str, str], Path], "subprocess.Popen[str]"]
"""Starts a command with more variables in its environment, and its output in a file."""


class DemoError(Exception):
    """Something that was started went wrong; the text says what, and where its output is."""


def train(
    run: Run,
    starts: Sequence[Start],
    variables: Mapping[str, str],
    options: argparse.Namespace,
    *,
    backend: str = "wiresum",
) -> Run:
    """One worker for each of `starts`, to the end of the training."""
    folder: Path = options.output / run.backend
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("rank-*"):
        old.unlink()
    command = [sys.executable, "-m", "wiresum_lab.demos.digits.train", "--backend", backend, "--output", str(folder)]
    command += ["--epochs", str(options.epochs), "--seed", str(options.seed), "--width", str(options.width)]
    reader = RunReader(run, folder, len(starts))
    workers: list[subprocess.Popen[str]] = []
    try:
        for rank, start in enumerate(starts):
            own = {"RANK": str(rank), "WORLD_SIZE": str(len(starts)), "LOCAL_RANK": "0", "OMP_NUM_THREADS": "1"}
            workers.append(start(command, {**variables, **own}, folder / f"rank-{rank}.log"))
        with RunProgress(options.console, run) as progress:
            give_up_at = time.monotonic() + RUN_S_MAX
            while any(worker.poll() is None for worker in workers):
                if time.monotonic() > give_up_at:
                    raise DemoError(f"training over {run.backend} took longer than {RUN_S_MAX:.0f} s")
                time.sleep(POLL_S)
                reader.read()
                progress.update()
                check(run, workers, folder)
            check(run, workers, folder)
            reader.read()
            progress.update()
    finally:
        stop(workers)
    return run


def check(run: Run, workers: Sequence[subprocess.Popen[str]], folder: Path) -> None:
    for rank, worker in enumerate(workers):
        if worker.poll():
            what = f"rank {rank} ended with exit code {worker.returncode}"
            raise DemoError(f"training over {run.backend}: {what}\n{tail(folder / f'rank-{rank}.log')}")


def over_software_switch(options: argparse.Namespace) -> Run:
    with software_switch(options.output / "switch.log") as control:
        variables = {
            "WIRESUM_SWITCH": control,
            "WIRESUM_ADDRESS": "127.0.0.1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(STORE_PORT),
            "GLOO_SOCKET_IFNAME": "lo",
        }
        return train(Run("software"), [here] * options.workers, variables, options)


@contextmanager
def software_switch(log: Path) -> Iterator[str]:
    """One whose packets have as many words as the switch program's. Gives where workers join."""
    lanes = str(compiled.load("v1model").lanes)
    command = [sys.executable, "-m", "wiresum.cli", "switch", "--control", "127.0.0.1:0", "--port", "0"]
    command += ["--lanes", lanes]
    process = here(command, {}, log)
    try:
        give_up_at = time.monotonic() + START_S_MAX
        while not (ready := re.search(r"^ready: control (\S+),", log.read_text(), re.MULTILINE)):
            if process.poll() is not None or time.monotonic() > give_up_at:
                raise DemoError(f"the software switch did not start\n{tail(log)}")
            time.sleep(POLL_S)
        yield ready[1]
    finally:
        stop([process])


def here(command: Sequence[str], variables: Mapping[str, str], log: Path) -> subprocess.Popen[str]:
    with log.open("w") as output:
        return subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", *command],
            env=os.environ | variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )


def stop(processes: Sequence[subprocess.Popen[str]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.terminate()
    give_up_at = time.monotonic() + STOP_S_MAX
    for process in processes:
        try:
            process.wait(max(0.0, give_up_at - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:]
    return "\n".join([f"--- the end of {log} ---", *lines])
