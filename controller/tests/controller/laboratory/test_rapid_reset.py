"""HTTP/2 rapid reset: a client with a certificate opens calls and resets each at once, as fast as it can write. Others
join meanwhile, and nothing is left of it."""

from __future__ import annotations

import contextlib
import itertools
import socket
import ssl
import threading
from pathlib import Path

import h2.config
import h2.connection
import h2.exceptions
import pytest

from wiresum_lab.doubles.controller import Client, join_request
from wiresum_lab.laboratory import LANES, Laboratory
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import resident_kib, wait_until

HOST = "127.0.0.1"
CONNECTIONS, BURST = 4, 100
"""Of the attacker; and the calls that are opened and reset with one write."""
STREAM_ID_MAX = 2**31 - 1
RESETS = 5000
"""Until there are so many, workers join."""
KEPT_KIB_MAX = 64 * 1024


class Attack:
    """Threads with a connection each, or one after the other where they are ended."""

    def __init__(self, port: int, tls: Path) -> None:
        self._port, self._stop, self.resets = port, threading.Event(), 0
        self._context = ssl.create_default_context(cafile=str(tls / "ca.crt"))
        self._context.check_hostname = False
        self._context.load_cert_chain(tls / "tls.crt", tls / "tls.key")
        self._context.set_alpn_protocols(["h2"])
        self._threads = [threading.Thread(target=self._attack) for _ in range(CONNECTIONS)]

    def __enter__(self) -> Attack:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _attack(self) -> None:
        while not self._stop.wait(0.05):
            with contextlib.suppress(OSError, h2.exceptions.ProtocolError):
                plain = socket.create_connection((HOST, self._port), 5.0)
                with self._context.wrap_socket(plain) as wrapped:
                    self._reset_calls(wrapped)

    def _reset_calls(self, connection: ssl.SSLSocket) -> None:
        protocol = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
        protocol.initiate_connection()
        call = {":method": "POST", ":scheme": "https", ":authority": HOST, ":path": "/wiresum.join.v1.JoinService/Join"}
        headers = [*call.items(), ("te", "trailers"), ("content-type", "application/grpc")]
        while not self._stop.is_set() and protocol.get_next_available_stream_id() < STREAM_ID_MAX - 2 * BURST:
            for _ in range(BURST):
                stream = protocol.get_next_available_stream_id()
                protocol.send_headers(stream, headers)
                protocol.reset_stream(stream)
            connection.settimeout(5.0)
            connection.sendall(protocol.data_to_send())
            self.resets += BURST
            connection.settimeout(0.0)
            with contextlib.suppress(ssl.SSLWantReadError):
                if not (received := connection.recv(65536)):
                    return
                protocol.receive_data(received)


@pytest.mark.nightly
def test_workers_join_while_calls_are_reset_and_nothing_is_left_of_those(laboratory: Laboratory) -> None:
    controller, port = laboratory.controllers["active"], laboratory.ports["active"]
    running, numbers = laboratory.job("through"), itertools.count()
    with contextlib.closing(Client(port, tls=laboratory.pki.tls("worker"))) as worker:

        def join() -> None:
            request = join_request(job_name=f"job-{next(numbers)}", lanes_max=LANES, slots=16)
            *_, last = worker.stub.Join(request, timeout=PATIENCE_S)
            worker.leave(last.granted)

        join()
        before_kib = resident_kib(controller.pid)
        with Attack(port, laboratory.pki.issue("mallory", "worker", tenants=("mallory",))) as attack:
            wait_until(lambda: attack.resets, "calls are reset")

            def meanwhile() -> None:
                join()
                running.check()

            wait_until(lambda: attack.resets >= RESETS, "so many calls are reset", meanwhile=meanwhile)
        join()
    assert resident_kib(controller.pid) < before_kib + KEPT_KIB_MAX
    assert "Traceback" not in controller.said()
    running.finish()
