"""Workers as processes on this machine, at a software switch; one of them answers. For benchmarks without a network."""

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
"""A worker's part: rank, the switch's endpoint, a folder that all share, options, and where one of them answers."""


def answer_of(workers: int, work: Work, options: argparse.Namespace, *, timeout_s: float, switch: list[str]) -> Any:
    """What one of so many workers answers. `switch`: options of `wiresum switch`. Raises `EOFError` if all end without
    an answer, and `RuntimeError` if none has come in time."""
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
