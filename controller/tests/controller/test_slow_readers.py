"""Clients that connect to /metrics and read slowly, or not at all: Prometheus is served, and the process keeps few
threads and files."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from wiresum.controller.metrics import CONNECTION_S_MAX, CONNECTIONS_MAX, MetricsServer
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import wait_until

READERS = CONNECTIONS_MAX + 3
MORE_MAX = CONNECTIONS_MAX + 8
ANSWER = b"x" * (16 << 20)
"""More than the sockets hold."""


class Metrics:
    def __init__(self) -> None:
        self.now = 0.0
        self.server = MetricsServer("127.0.0.1", 0, self._answer, clock=lambda: self.now)

    def _answer(self, _environ: object, start_response: object) -> list[bytes]:
        start_response("200 OK", [("Content-Length", str(len(ANSWER)))])  # type: ignore[operator]
        return [ANSWER]

    def scrape(self) -> bool:
        """Whether it was answered. A service that is busy may end a connection that had no time to begin."""
        at = f"http://127.0.0.1:{self.server.port}/"
        with contextlib.suppress(OSError), urllib.request.urlopen(at, timeout=PATIENCE_S) as answer:
            return bool(answer.read() == ANSWER)
        return False

    def connections(self) -> int:
        return len(self.server._server._began_at)

    def slow_reader(self, first: bytes) -> socket.socket:
        """It has room for so little that the answer does not fit."""
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        made.settimeout(PATIENCE_S)
        made.connect(("127.0.0.1", self.server.port))
        made.sendall(first)
        return made


@pytest.fixture
def served() -> Iterator[Metrics]:
    served = Metrics()
    yield served
    served.server.close()


def files() -> int:
    return len(list(Path(f"/proc/{os.getpid()}/fd").iterdir()))


@pytest.mark.parametrize("first", [b"", b"GET /met", b"GET / HTTP/1.0\r\n\r\n"], ids=["silent", "half", "deaf"])
def test_slow_readers_do_not_keep_prometheus_out_and_end(served: Metrics, first: bytes) -> None:
    others, before = set(threading.enumerate()), files()

    def threads() -> int:
        """The server's: those of other tests may end meanwhile."""
        return len(set(threading.enumerate()) - others)

    wait_until(served.scrape, "it is scraped")
    with contextlib.ExitStack() as held:
        for number in range(1, READERS + 1):
            held.enter_context(served.slow_reader(first))
            wait_until(lambda number=number: served.connections() >= min(number, CONNECTIONS_MAX), "it is served")  # type: ignore[misc]
        wait_until(served.scrape, "it is scraped")
        assert threads() <= MORE_MAX
        assert files() <= before + READERS + MORE_MAX
        served.now += CONNECTION_S_MAX - 0.1
        assert threads() > 0, "those that were not the oldest have their time"
        served.now += 0.2
        wait_until(lambda: threads() == 0, "all of them were ended")


def test_who_sends_a_byte_now_and_then_is_ended_too(served: Metrics) -> None:
    def sends() -> bool:
        """Whether it still can."""
        dripping.sendall(b"A: b\r\n")
        return False

    with served.slow_reader(b"GET / HTTP/1.0\r\n") as dripping:
        wait_until(served.connections, "it is served")
        served.now += CONNECTION_S_MAX
        with pytest.raises(OSError):
            wait_until(sends, "it is ended")
