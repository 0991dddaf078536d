"""The demo as a user runs it: real switch, real workers, real training."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from wiresum_lab.patience import PATIENCE_S, TimedOutError
from wiresum_lab.processes import wait_until

EPOCHS = 6
TEST_IMAGES = 360
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
DEMO_S_MAX = 5 * PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.timeout(DEMO_S_MAX + PATIENCE_S)]


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


def nothing_is_left(output: Path) -> None:
    wait_until(lambda: not processes_that_name(str(output)), "no process of the demo is left")


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
    logs = [output / "wiresum" / f"rank-{rank}.jsonl" for rank in range(2)]

    def still_runs() -> None:
        assert demo.poll() is None, demo.communicate()[0]

    recorded = lambda: all(log.exists() and log.stat().st_size for log in logs)  # noqa: E731
    wait_until(recorded, "the workers train", 3 * PATIENCE_S, still_runs)


def test_the_digits_are_those_of_scikit_learn() -> None:
    import torch
    from sklearn.datasets import load_digits

    from wiresum_lab.demos.digits.train import read_digits

    expected_pixels, expected_labels = load_digits(return_X_y=True)
    pixels, labels = read_digits()
    torch.testing.assert_close(pixels, torch.tensor(expected_pixels), rtol=0, atol=0)
    torch.testing.assert_close(labels, torch.tensor(expected_labels), rtol=0, atol=0)


@pytest.mark.parametrize("link_mbit", [0.0, 100.0])
def test_the_demo_trains_as_accurately_as_over_gloo_and_leaves_a_record_a_picture_and_no_process(
    tmp_path: Path, link_mbit: float
) -> None:
    if link_mbit and os.geteuid() != 0:
        pytest.skip("links are made in network namespaces, which need root")
    demo = start_demo(tmp_path, "--epochs", str(EPOCHS), "--workers", "2", "--link-mbit", str(link_mbit))
    try:
        said, _ = demo.communicate(timeout=DEMO_S_MAX)
    except subprocess.TimeoutExpired:
        demo.send_signal(signal.SIGINT)
        raise TimedOutError(f"the demo did not end: {demo.communicate(timeout=PATIENCE_S)[0]}") from None
    assert demo.returncode == 0, said
    result = json.loads((tmp_path / "run.json").read_text())
    assert result["link_mbit"] == link_mbit
    assert result["accuracy"] > 0.9
    assert abs(result["accuracy"] - result["accuracy_gloo"]) * TEST_IMAGES <= 2
    assert result["loss"] == pytest.approx(result["loss_gloo"], rel=0.05)
    assert result["parameters_identical"] is True
    recorded = [
        [json.loads(line) for line in (tmp_path / f"wiresum/rank-{rank}.jsonl").read_text().splitlines()]
        for rank in range(2)
    ]
    assert recorded[0][-1]["digest"] == recorded[1][-1]["digest"]
    assert result["steps"] == sum(entry["event"] == "step" for entry in recorded[0]) > 0
    assert (tmp_path / "run.png").read_bytes().startswith(PNG_SIGNATURE)
    nothing_is_left(tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM], ids=["ctrl_c", "kill"])
def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path, stop: signal.Signals) -> None:
    demo = start_demo(tmp_path, "--epochs", "1000", "--workers", "2")
    try:
        wait_until_training(demo, tmp_path)
        started = descendants(demo.pid)
        # at least the demo, the switch and two workers
        assert len(started) >= 4
        demo.send_signal(stop)
        said, _ = demo.communicate(timeout=PATIENCE_S)
    finally:
        demo.kill()
    assert demo.returncode == 130, said
    assert "Interrupted" in said
    wait_until(lambda: not alive(started), "the demo's processes have ended")
    nothing_is_left(tmp_path)


@pytest.mark.nightly
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
    nothing_is_left(tmp_path)
