"""Runs workers as processes on this machine, with a software switch, for benchmarks without a network. One answers."""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from wiresum_lab.processes import SwitchProcess

END_TIMEOUT_S = 30.0

Work = Callable[[int, str, str, argparse.Namespace, Connection], None]
"""The function of a worker. It takes the rank, the switch's endpoint, a folder that all workers share, options, and the
pipe on which one of them answers."""


def answer_of(workers: int, work: Work, options: argparse.Namespace, *, timeout_s: float, switch: list[str]) -> Any:
    """Runs the workers and returns the answer of one of them. `switch` has options of `wiresum switch`. Raises
    `EOFError` if all workers end without an answer, and `RuntimeError` if no answer has come after `timeout_s`."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder, SwitchProcess(Path(folder), *switch) as served:
        processes: list[Any] = []
        try:
            for rank in range(workers):
                processes.append(context.Process(target=work, args=(rank, served.endpoint, folder, options, theirs)))
                processes[-1].start()
            theirs.close()  # so that the pipe ends when no worker has it open
            if not ours.poll(timeout_s):
                raise RuntimeError(f"the workers did not come to an end within {timeout_s:.0f} s")
            answer = ours.recv()
            for process in processes:
                process.join(END_TIMEOUT_S)
        finally:
            for process in processes:
                process.kill()
                process.join()
    return answer
