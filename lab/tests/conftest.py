"""Network namespaces, PyTorch's Gloo, a wheel, and benchmarks that run as by a user."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from wiresum_lab import REPOSITORY
from wiresum_lab.benchmarks.against_gloo_and_mpi.systems import SYSTEMS
from wiresum_lab.namespaces.star import Star, StarError
from wiresum_lab.patience import PATIENCE_S, TimedOutError
from wiresum_lab.processes import STOP_S_MAX


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
            output, errors = process.communicate(timeout=1.5 * PATIENCE_S)
        except subprocess.TimeoutExpired:
            output, errors = _end(process)
            raise TimedOutError(f"{module} has not ended:\n{output}{errors}") from None
        return subprocess.CompletedProcess(command, process.returncode, output, errors)


def _end(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Ends the program like Ctrl-C, so that it ends its children; kills it if that fails."""
    os.killpg(process.pid, signal.SIGINT)
    try:
        return process.communicate(timeout=STOP_S_MAX)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nothing is compiled for it: so it lacks the native modules, which name no page and which no page asks for."""
    folder = tmp_path_factory.mktemp("wheel")
    settings = ("wheel.cmake=false", "wheel.py-api=py3", f"build-dir={folder}/build")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"]
    options = [f"--config-settings={setting}" for setting in settings]
    subprocess.run([*command, str(folder), *options, str(REPOSITORY)], check=True, timeout=PATIENCE_S)
    (found,) = folder.glob("*.whl")
    return found
