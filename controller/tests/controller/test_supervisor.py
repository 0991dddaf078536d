"""A service reports to systemd; the test listens at the socket in its place."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from wiresum.controller.supervisor import Supervisor


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(str(tmp_path / "notify"))
        made.setblocking(False)
        yield made


def heard(listener: socket.socket) -> list[str]:
    found = []
    while True:
        try:
            found.append(listener.recv(4096).decode())
        except BlockingIOError:
            return found


def test_start_and_stop_are_reported(listener: socket.socket) -> None:
    supervisor = Supervisor({"NOTIFY_SOCKET": listener.getsockname()})
    supervisor.ready("ready: control\nREADY=0")
    supervisor.stopping()
    assert heard(listener) == ["READY=1\nSTATUS=ready: control READY=0", "STOPPING=1"]


def test_an_address_with_an_at_sign_is_an_abstract_socket() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0wiresum-{os.getpid()}")
        Supervisor({"NOTIFY_SOCKET": f"@wiresum-{os.getpid()}"}).ready("x")
        assert listener.recv(100) == b"READY=1\nSTATUS=x"


def test_three_heartbeats_are_sent_in_each_watchdog_interval(listener: socket.socket) -> None:
    now = 1000.0
    environment = {"NOTIFY_SOCKET": listener.getsockname(), "WATCHDOG_USEC": "60000000"}
    supervisor = Supervisor(environment, lambda: now)
    for _ in range(120):
        supervisor.beat()
        now += 0.5
    assert heard(listener) == ["WATCHDOG=1"] * 3


@pytest.mark.parametrize("environment", [{}, {"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "x"}])
def test_without_a_watchdog_no_heartbeats_are_sent(listener: socket.socket, environment: dict[str, str]) -> None:
    Supervisor({"NOTIFY_SOCKET": listener.getsockname(), **environment}).beat()
    assert heard(listener) == []


def test_a_missing_supervisor_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Supervisor({"NOTIFY_SOCKET": str(tmp_path / "nobody")}).ready("x")
    assert "does not hear READY=1" in caplog.text
    Supervisor({}).ready("x")
