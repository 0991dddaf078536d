"""Processes of one machine and one network namespace say the same, and no others."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from wiresum.agent import machine

PROGRAM = "from wiresum.agent.machine import host_id; print(host_id().hex())"


def said_by(*prefix: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*prefix, sys.executable, "-c", PROGRAM], check=False, capture_output=True, text=True)


def test_processes_of_one_network_namespace_say_the_same() -> None:
    assert bytes.fromhex(said_by().stdout.strip()) == machine.host_id() != b""


@pytest.mark.skipif(shutil.which("unshare") is None, reason="unshare (util-linux) is not installed")
def test_another_network_namespace_is_another_host() -> None:
    elsewhere = said_by("unshare", "--net")
    if elsewhere.returncode:
        pytest.skip(f"no network namespace can be made here: {elsewhere.stderr.strip()}")
    assert bytes.fromhex(elsewhere.stdout.strip()) not in (machine.host_id(), b"")


def test_another_start_of_the_machine_is_another_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = machine.host_id()
    monkeypatch.setattr(machine, "_BOOT_ID", boot := tmp_path / "boot_id")
    assert machine.host_id() == b"", "unknown, and so shared with nobody"
    boot.write_text("one\n")
    once = machine.host_id()
    boot.write_text("another\n")
    assert len({before, once, machine.host_id()}) == 3


def test_it_does_not_tell_the_boot_id() -> None:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert bytes.fromhex(boot.replace("-", "")) not in machine.host_id()
