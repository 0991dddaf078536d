"""A small run of the whole benchmark: real systems on real links. Needs root; systems that are not installed are
omitted."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from wiresum_lab.benchmarks.against_gloo_and_mpi.__main__ import main
from wiresum_lab.benchmarks.against_gloo_and_mpi.systems import SYSTEMS, SYSTEMS_BY_DEFAULT

needs_gloo_on_a_star = pytest.mark.usefixtures("gloo_on_a_star")


@needs_gloo_on_a_star
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_installed_system_sums_exactly_on_shaped_and_lossy_links(tmp_path: Path) -> None:
    path = tmp_path / "results" / "allreduce.json"
    arguments = ["--workers", "2", "--link", "100mbit", "--bytes", "400000", "--repetitions", "2", "--json", str(path)]
    assert main(arguments) == 0
    records = json.loads(path.read_text())
    installed = {name for name in SYSTEMS_BY_DEFAULT if SYSTEMS[name].missing() is None}
    assert {record["system"] for record in records if record["experiment"] == "rate"} == installed
    assert {record["loss"] for record in records} == {0.0, 0.01}
    for record in records:
        assert record["error"] is None
        assert record["correct"]
        assert len(record["seconds"]) == 2
        assert 0 < record["bound_ratio"] <= 1
    if "wiresum" in installed:
        lanes = {record["bits"] for record in records if record["system"] == "wiresum"}
        assert lanes == {32, 16, 8}
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert not _namespaces_of(os.getpid())


@pytest.mark.usefixtures("namespaces")
@pytest.mark.slow
def test_unshaped_links_are_measured_at_both_mtus(tmp_path: Path) -> None:
    path = tmp_path / "allreduce.json"
    arguments = ["--systems", "wiresum", "--workers", "2", "--link", "none", "--bytes", "400000", "--repetitions", "1"]
    assert main([*arguments, "--json", str(path)]) == 0
    records = json.loads(path.read_text())
    assert [(record["link_mbit"], record["mtu"]) for record in records] == [(None, 1500), (None, 9000)]
    assert all(record["correct"] for record in records)
    # The last switch that was started is the one with jumbo frames.
    assert "2232 lanes" in (tmp_path / "log" / "wiresum-switch.log").read_text()


@needs_gloo_on_a_star
@pytest.mark.timeout(120)
def test_ctrl_c_writes_the_results_so_far_and_ends_all_processes(tmp_path: Path) -> None:
    path = tmp_path / "allreduce.json"
    command = [
        sys.executable,
        "-m",
        "wiresum_lab.benchmarks.against_gloo_and_mpi",
        "--systems",
        "gloo",
        "--workers",
        "2",
    ]
    command += ["--link", "100mbit", "--repetitions", "1000", "--json", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        while not (ranks := _processes_in(_namespaces_of(process.pid))):
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert "interrupted" in output
    assert path.exists()
    assert not _namespaces_of(process.pid)
    assert not [pid for pid in ranks if Path(f"/proc/{pid}").exists()]


def test_without_root_the_error_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main(["--systems", "gloo"]) == 2
    assert "need root" in capsys.readouterr().out


@needs_gloo_on_a_star
def test_a_missing_system_is_omitted_with_advice_on_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool.startswith("mpi") else which(tool))
    assert main(["--systems", "openmpi", "--json", str(tmp_path / "a.json")]) == 2
    output = capsys.readouterr().out
    assert "Open MPI is left out: install" in output
    assert "apt install openmpi-bin" in output


def _namespaces_of(pid: int) -> list[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return [line.split()[0] for line in listed.splitlines() if line.startswith(f"wiresum-{pid}-")]


def _processes_in(namespaces: list[str]) -> list[int]:
    found: list[int] = []
    for namespace in namespaces:
        listed = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False)
        found += [int(word) for word in listed.stdout.split()]
    return found
