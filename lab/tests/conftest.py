"""Network namespaces, PyTorch's Gloo, and benchmarks that run as by a user and are checked to leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from wiresum_lab.benchmarks.against_gloo_and_mpi.systems import SYSTEMS
from wiresum_lab.namespaces.star import Star, StarError

RUN_S_MAX = 95.0
END_S_MAX = 15.0
"""Time for cleaning up after the time limit."""


@pytest.fixture(scope="session")
def namespaces() -> None:
    """Skips where stars cannot be built, with the reason."""
    try:
        Star(1).close()
    except StarError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def gloo_on_a_star(namespaces: None) -> None:
    """Skips where Gloo cannot run on a star, with the reason."""
    if reason := SYSTEMS["gloo"].missing():
        pytest.skip(reason)


@pytest.fixture
def run_bench() -> Callable[..., subprocess.CompletedProcess[str]]:
    return _run


def _run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"wiresum_lab.{module}", *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        try:
            output, errors = process.communicate(timeout=RUN_S_MAX)
        except subprocess.TimeoutExpired:
            output, errors = _end(process)
            pytest.fail(f"{module} has not ended after {RUN_S_MAX:.0f} s:\n{output}{errors}")
        return subprocess.CompletedProcess(command, process.returncode, output, errors)


def _end(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Ends the program like Ctrl-C, so that it ends its children; kills it if that fails."""
    os.killpg(process.pid, signal.SIGINT)
    try:
        return process.communicate(timeout=END_S_MAX)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()
