"""Clients that connect to /metrics and read slowly, or not at all: Prometheus is served, the controller keeps few
threads and files, and jobs go on."""

from __future__ import annotations

import contextlib
import socket
import time
import urllib.request
from pathlib import Path

import pytest

from wiresum.controller.metrics import CONNECTION_S_MAX, CONNECTIONS_MAX
from wiresum_lab.laboratory import HOST, HOSTILE, Laboratory
from wiresum_lab.processes import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

READERS = 300
THREADS_MORE_MAX = CONNECTIONS_MAX + 8
SCRAPE_S_MAX = 5.0


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=SCRAPE_S_MAX) as answer:
        return str(answer.read().decode())


def slow_reader(port: int, first: bytes) -> socket.socket:
    """It has room for so little that the answer does not fit."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    made.bind((HOSTILE, 0))
    made.settimeout(SCRAPE_S_MAX)
    made.connect((HOST, port))
    made.sendall(first)
    return made


def count(pid: int, what: str) -> int:
    return len(list(Path(f"/proc/{pid}/{what}").iterdir()))


@pytest.mark.parametrize("first", [b"", b"GET /met", b"GET /metrics HTTP/1.0\r\n\r\n"], ids=["silent", "half", "deaf"])
def test_slow_readers_keep_neither_prometheus_nor_jobs_out(laboratory: Laboratory, first: bytes) -> None:
    job = laboratory.job("through")
    port, pid = laboratory.metrics["active"], laboratory.controllers["active"].pid
    scrape(port)
    threads, files = count(pid, "task"), count(pid, "fd")
    with contextlib.ExitStack() as held:
        for _ in range(READERS):
            held.enter_context(slow_reader(port, first))
        assert 'wiresum_service_info{role="active"' in scrape(port)
        assert count(pid, "task") <= threads + THREADS_MORE_MAX
        assert count(pid, "fd") <= files + THREADS_MORE_MAX
        job.goes_on()
        assert laboratory.operator.report().service.role == "active"
        wait_until(lambda: count(pid, "fd") <= files + 2, "all of them were ended", 2 * CONNECTION_S_MAX)
    job.finish()


def test_who_sends_a_byte_now_and_then_is_ended_too(laboratory: Laboratory) -> None:
    with slow_reader(laboratory.metrics["active"], b"GET /metrics HTTP/1.0\r\n") as dripping:
        began_at = time.monotonic()
        with pytest.raises(OSError):
            while time.monotonic() < began_at + 2 * CONNECTION_S_MAX:
                dripping.sendall(b"A: b\r\n")
                time.sleep(0.5)
        assert time.monotonic() - began_at > CONNECTION_S_MAX / 2
