"""Thousands of plain TCP connections, by a host without a certificate, at a controller and at its switch: operators and
workers are served meanwhile, the switch stays in reach, and the standby does not take over."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import multiprocessing.synchronize
import os
import selectors
import socket
import time
from collections.abc import Iterator

import pytest

from wiresum import join
from wiresum.controller.serving import raise_file_limit
from wiresum_lab.doubles.controller import Client, join_request
from wiresum_lab.laboratory import HOSTILE, LANES, Laboratory
from wiresum_lab.processes import wait_until

CONNECTIONS = 9000
FLOOD_S = 10.0
AFTER_S = 2.0
AGAIN_PER_SECOND = 500
"""How many of those that were ended it opens again."""
CALL_S_MAX = 30.0
"""`wiresum` itself waits five seconds. Here the flood, the attacked and other tests share the machine."""
SILENT, STALLED = b"", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
"""What each connection sends first: nothing, or how a TLS handshake begins."""


class Flood:
    """A process that keeps many connections to a port open."""

    def __init__(self, port: int, first: bytes) -> None:
        context = multiprocessing.get_context("spawn")
        self._stop = context.Event()
        self.opened = context.Value(ctypes.c_uint64)
        self._process = context.Process(target=_flood, args=(port, first, self._stop, self.opened), daemon=True)

    def __enter__(self) -> Flood:
        self._process.start()
        wait_until(lambda: self.opened.value >= CONNECTIONS, "all connections were opened", 60.0)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._process.join()


def _flood(port: int, first: bytes, stop: multiprocessing.synchronize.Event, opened: ctypes.c_uint64) -> None:
    raise_file_limit()
    os.nice(5)  # a real one has a machine of its own
    with selectors.EpollSelector() as selector:
        for _ in range(CONNECTIONS):
            _open(port, first, selector)
            opened.value += 1
        while not stop.is_set():
            began_at = time.monotonic()
            for ended, _ in selector.select(0)[: AGAIN_PER_SECOND // 10]:
                selector.unregister(ended.fileobj)
                ended.fileobj.close()  # type: ignore[union-attr]
                _open(port, first, selector)
                opened.value += 1
            time.sleep(max(0.0, began_at + 0.1 - time.monotonic()))


def _open(port: int, first: bytes, selector: selectors.EpollSelector) -> None:
    one = socket.socket()
    one.bind((HOSTILE, 0))
    one.settimeout(5.0)
    with contextlib.suppress(OSError):
        one.connect(("127.0.0.1", port))
        one.sendall(first)
    one.setblocking(False)
    selector.register(one, selectors.EVENT_READ)


class Callers:
    """Two operators, one of whom connects anew each time, and a worker."""

    def __init__(self, laboratory: Laboratory, cleanup: contextlib.ExitStack) -> None:
        self._tls, self._port = laboratory.pki.tls("operator"), laboratory.ports["active"]
        self._operator, self._worker = (
            Client(self._port, tls=laboratory.pki.tls(role)) for role in ("operator", "worker")
        )
        for client in (self._operator, self._worker):
            cleanup.callback(client.close)

    def call(self) -> None:
        """Both operators ask for the report, and the worker joins. All within CALL_S_MAX."""
        with contextlib.closing(Client(self._port, tls=self._tls)) as new:
            for client in (new, self._operator):
                report = client.operator.GetReport(join.GetReportRequest(), timeout=CALL_S_MAX)
                assert {(switch.state, switch.trouble) for switch in report.switches} == {("ready", "")}
        request = join_request(job_name=f"job-{time.monotonic()}", lanes_max=LANES, slots=16)
        *_, granted = self._worker.stub.Join(request, timeout=CALL_S_MAX)
        self._worker.leave(granted.granted)


@pytest.fixture
def callers(laboratory: Laboratory) -> Iterator[Callers]:
    with contextlib.ExitStack() as cleanup:
        yield Callers(laboratory, cleanup)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "first"),
    [("join", SILENT), ("join", STALLED), ("p4runtime", STALLED)],
    ids=["join-silent", "join-stalled", "p4runtime-stalled"],
)
def test_all_are_served_during_and_after_a_flood_of_connections(
    laboratory: Laboratory, callers: Callers, target: str, first: bytes
) -> None:
    callers.call()
    job = laboratory.job("through")
    flooded = laboratory.controllers["active"] if target == "join" else laboratory.switches["left"]
    port = laboratory.ports["active"] if target == "join" else laboratory.at["left"].p4runtime
    programs = [flooded, *laboratory.controllers.values()]
    said = [len(program.said()) for program in programs]
    with Flood(port, first):
        end_at = time.monotonic() + FLOOD_S
        while time.monotonic() < end_at:
            callers.call()
            job.check()
    end_at = time.monotonic() + AFTER_S
    while time.monotonic() < end_at:
        callers.call()
    new, active, standby = (program.said()[before:] for program, before in zip(programs, said, strict=True))
    assert "out of reach" not in active, "the active controller keeps its switch"
    assert standby == "", "the standby has nothing to say"
    assert f"{HOSTILE} has " in new, "the log names the address"
    job.finish()
