"""The demo as a user runs it: real switch, real workers, real training."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_digits

from wiresum_lab.demos.digits.train import read_digits

EPOCHS = 6
TEST_IMAGES = 360
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
DEMO_S_MAX = 300.0
TRAINING_S_MAX = 180.0
STOP_S_MAX = 30.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(DEMO_S_MAX + STOP_S_MAX)]


def start_demo(output: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "wiresum_lab.demos.digits.demo", "--output", str(output), *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def processes_that_name(word: str) -> dict[int, str]:
    """Command lines of running processes that contain `word`, by process id, without this process."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if word in command and int(entry.name) != os.getpid():
                found[int(entry.name)] = command
    return found


def descendants(root: int) -> set[int]:
    parent_of = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent_of[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
    found = {root}
    while more := {process for process, parent in parent_of.items() if parent in found} - found:
        found |= more
    return found


def alive(processes: set[int]) -> set[int]:
    return {process for process in processes if Path(f"/proc/{process}").exists()}


def wait_until_training(demo: subprocess.Popen[str], output: Path) -> None:
    """Waits until both workers have recorded a step."""
    give_up_at = time.monotonic() + TRAINING_S_MAX
    logs = [output / "wiresum" / f"rank-{rank}.jsonl" for rank in range(2)]
    while not all(log.exists() and log.stat().st_size for log in logs):
        assert demo.poll() is None, demo.communicate()[0]
        assert time.monotonic() < give_up_at, "the workers did not begin to train"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def finished_demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("demo")
    demo = start_demo(output, "--epochs", str(EPOCHS))
    try:
        said, _ = demo.communicate(timeout=DEMO_S_MAX)
    except subprocess.TimeoutExpired:
        demo.send_signal(signal.SIGINT)
        pytest.fail(f"the demo did not end: {demo.communicate(timeout=STOP_S_MAX)[0]}")
    assert demo.returncode == 0, said
    return output


def test_the_digits_are_those_of_scikit_learn() -> None:
    expected_pixels, expected_labels = load_digits(return_X_y=True)
    pixels, labels = read_digits()
    torch.testing.assert_close(pixels, torch.tensor(expected_pixels), rtol=0, atol=0)
    torch.testing.assert_close(labels, torch.tensor(expected_labels), rtol=0, atol=0)


def test_training_over_wiresum_is_as_accurate_as_over_gloo(finished_demo: Path) -> None:
    result = json.loads((finished_demo / "run.json").read_text())
    assert result["world_size"] == 4
    assert result["accuracy"] > 0.9
    assert abs(result["accuracy"] - result["accuracy_gloo"]) * TEST_IMAGES <= 2
    assert result["loss"] == pytest.approx(result["loss_gloo"], rel=0.05)


def test_all_workers_end_with_the_same_parameters(finished_demo: Path) -> None:
    assert json.loads((finished_demo / "run.json").read_text())["parameters_identical"] is True
    ends = [
        json.loads((finished_demo / "wiresum" / f"rank-{rank}.jsonl").read_text().splitlines()[-1]) for rank in range(4)
    ]
    assert len({end["digest"] for end in ends}) == 1
    assert all(end["bytes"] > 0 for end in ends)


def test_the_demo_writes_a_picture_and_a_record_of_the_run(finished_demo: Path) -> None:
    assert (finished_demo / "run.png").read_bytes().startswith(PNG_SIGNATURE)
    result = json.loads((finished_demo / "run.json").read_text())
    assert isinstance(result["retransmissions"], int)
    assert result["seconds"] > 0
    assert result["seconds_gloo"] > 0
    assert (
        result["steps"]
        == len([line for line in (finished_demo / "wiresum/rank-0.jsonl").read_text().splitlines() if '"step"' in line])
        - EPOCHS
    )


def test_the_demo_leaves_no_process_behind(finished_demo: Path) -> None:
    assert processes_that_name(str(finished_demo)) == {}


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM], ids=["ctrl_c", "kill"])
def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path, stop: signal.Signals) -> None:
    demo = start_demo(tmp_path, "--epochs", "1000", "--workers", "2")
    try:
        wait_until_training(demo, tmp_path)
        started = descendants(demo.pid)
        # at least the demo, the switch and two workers
        assert len(started) >= 4
        demo.send_signal(stop)
        said, _ = demo.communicate(timeout=STOP_S_MAX)
    finally:
        demo.kill()
    assert demo.returncode == 130, said
    assert "Interrupted" in said
    assert alive(started) == set()
    assert processes_that_name(str(tmp_path)) == {}


def test_a_demo_whose_worker_dies_reports_it_and_cleans_up(tmp_path: Path) -> None:
    demo = start_demo(tmp_path, "--epochs", "1000", "--workers", "2")
    try:
        wait_until_training(demo, tmp_path)
        workers = {pid for pid, command in processes_that_name(str(tmp_path)).items() if "digits.train " in command}
        os.kill(max(workers), signal.SIGKILL)
        said, _ = demo.communicate(timeout=DEMO_S_MAX)
    finally:
        demo.kill()
    assert demo.returncode == 1
    assert "training over wiresum failed" in said
    assert processes_that_name(str(tmp_path)) == {}
