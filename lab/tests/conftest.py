"""Benchmarks run as people run them, and leave nothing behind when they take too long."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
RUN_S_MAX = 95.0
END_S_MAX = 15.0
"""To clean up in, when the time is up."""


@pytest.fixture
def run_bench() -> Callable[..., subprocess.CompletedProcess[str]]:
    return _run


def _run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCH / script), *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        try:
            output, errors = process.communicate(timeout=RUN_S_MAX)
        except subprocess.TimeoutExpired:
            output, errors = _end(process)
            pytest.fail(f"{script} has not ended after {RUN_S_MAX:.0f} s:\n{output}{errors}")
        return subprocess.CompletedProcess(command, process.returncode, output, errors)


def _end(process: subprocess.Popen[str]) -> tuple[str, str]:
    """As Ctrl-C does, so that it ends what it has started; and without asking, if it does not."""
    os.killpg(process.pid, signal.SIGINT)
    try:
        return process.communicate(timeout=END_S_MAX)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()
