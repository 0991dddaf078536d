"""HTTP/2 rapid reset against a join service: how long do honest workers wait for their grants meanwhile?

Some connections, with a worker's certificate, open calls and reset each at once, as fast as they can write. An honest
worker, from the same host and with a certificate of its own, joins a job of one and leaves it, again and again: first
while it is quiet, then under attack, then when that is over. The service is `wiresum switch`, a process of its own.

    python -m wiresum_lab.benchmarks.cluster.reset --seconds 20 --connections 8
    python -m wiresum_lab.benchmarks.cluster.reset --through nginx      # with controller/deploy/nginx.conf in front

Prints a line for each phase, or with --json an object. Ends with status 1 if a join failed, or if the service logged a
traceback. Needs the package h2.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import multiprocessing
import multiprocessing.synchronize
import shutil
import socket
import ssl
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import grpc
import h2.config
import h2.connection
import h2.exceptions

from wiresum.controller.security.authority import Authority, Holder
from wiresum.controller.security.names import Claims
from wiresum_lab import REPOSITORY
from wiresum_lab.doubles.controller import Client, join_request
from wiresum_lab.processes import Program, SwitchProcess, resident_kib, unused_port, wait_until

NGINX = REPOSITORY / "controller/deploy/nginx.conf"
HOST = "127.0.0.1"
START_S_MAX = 30.0
JOIN_S_MAX = 60.0
BURST = 100
"""Calls that are opened and reset with one write."""
STREAM_ID_MAX = 2**31 - 1
PAUSE_S = 0.02
"""Between two joins."""


@dataclass(frozen=True)
class Phase:
    joins: int
    failed: int
    join_ms_median: float
    join_ms_max: float
    resident_mib: float
    """Of the service, at the end of the phase."""


@dataclass(frozen=True)
class ResetResult:
    quiet: Phase
    attack: Phase
    after: Phase
    resets_per_second: float
    connections_cut: int
    """How often the service, or nginx, cut a connection. The attacker made a new one each time."""
    tracebacks: int


@dataclass(frozen=True)
class Counters:
    """Shared by the processes; one thread writes each."""

    stop: multiprocessing.synchronize.Event
    resets: ctypes.Array[ctypes.c_uint64]
    """For each connection."""
    cut: ctypes.Array[ctypes.c_uint64]


def attack(port: int, tls: Path, counters: Counters) -> None:
    """Attacks until it is told to stop, with a thread for each connection."""
    context = ssl.create_default_context(cafile=str(tls / "ca.crt"))
    context.check_hostname = False
    context.load_cert_chain(tls / "tls.crt", tls / "tls.key")
    context.set_alpn_protocols(["h2"])
    threads = [
        threading.Thread(target=_attack, args=(port, context, counters, index)) for index in range(len(counters.cut))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _attack(port: int, context: ssl.SSLContext, counters: Counters, index: int) -> None:
    """Attacks over one connection after the other."""
    while not counters.stop.is_set():
        with contextlib.suppress(OSError, h2.exceptions.ProtocolError):
            with socket.create_connection((HOST, port), 5.0) as plain, context.wrap_socket(plain) as wrapped:
                _reset_calls(wrapped, port, counters, index)
            continue
        counters.cut[index] += 1
        counters.stop.wait(0.05)


def _reset_calls(connection: ssl.SSLSocket, port: int, counters: Counters, index: int) -> None:
    protocol = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
    protocol.initiate_connection()
    headers = [
        (":method", "POST"),
        (":scheme", "https"),
        (":authority", f"{HOST}:{port}"),
        (":path", "/wiresum.join.v1.JoinService/Join"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
    ]
    while not counters.stop.is_set() and protocol.get_next_available_stream_id() < STREAM_ID_MAX - 2 * BURST:
        for _ in range(BURST):
            call = protocol.get_next_available_stream_id()
            protocol.send_headers(call, headers)
            protocol.reset_stream(call)
        connection.settimeout(5.0)
        connection.sendall(protocol.data_to_send())
        counters.resets[index] += BURST
        connection.settimeout(0.0)
        with contextlib.suppress(ssl.SSLWantReadError):
            received = connection.recv(65536)
            if not received:
                raise ConnectionResetError
            protocol.receive_data(received)


@contextlib.contextmanager
def _nginx(folder: Path, behind: int) -> Iterator[int]:
    """Runs nginx in front of a service, and gives its port."""
    program = shutil.which("nginx")
    if program is None:
        raise click.ClickException("nginx is not here: on Debian, apt-get install nginx-light libnginx-mod-stream")
    port = unused_port()
    text = NGINX.read_text().replace("10.0.0.5:43487", f"{HOST}:{port}").replace("127.0.0.1:43487", f"{HOST}:{behind}")
    text = text.replace("/run/nginx.pid", str(folder / "nginx.pid")).replace("/var/log/nginx", str(folder))
    (folder / "nginx.conf").write_text(text)
    command = [program, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-g", "daemon off;"]
    with Program(command, folder / "nginx.log") as process:
        process.await_ready(lambda: not socket.socket().connect_ex((HOST, port)))
        yield port


class _Honest:
    """A worker that joins and leaves."""

    def __init__(self, port: int, tls: Path, service: int) -> None:
        """`service`: its process."""
        self._client = Client(port, tls=tls)
        self._service = service
        self._jobs = 0

    def phase(self, seconds: float) -> Phase:
        waited: list[float] = []
        failed = 0
        end_at = time.monotonic() + seconds
        while time.monotonic() < end_at or not waited:
            began_at = time.monotonic()
            try:
                self._join()
            except grpc.RpcError as error:
                failed += 1
                click.echo(f"a join failed: {error.code().name}: {error.details()}", err=True)
            waited.append(1000 * (time.monotonic() - began_at))
            time.sleep(PAUSE_S)
        memory_mib = resident_kib(self._service) / 1024
        return Phase(len(waited), failed, statistics.median(waited), max(waited), memory_mib)

    def _join(self) -> None:
        self._jobs += 1
        request = join_request(job_name=f"honest-{self._jobs}")
        for event in self._client.stub.Join(request, timeout=JOIN_S_MAX, wait_for_ready=True):
            if event.HasField("granted"):
                self._client.leave(event.granted)

    def close(self) -> None:
        self._client.close()


def run(seconds: float, connections: int, *, through_nginx: bool) -> ResetResult:
    with contextlib.ExitStack() as cleanup:
        folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory()))
        authority = Authority.create(folder / "pki", "bench")
        for name, role in (("controller", "controller"), ("honest", "worker"), ("attacker", "worker")):
            addresses = (HOST,) if role == "controller" else ()
            authority.issue(Holder(name, Claims(frozenset({role})), addresses), folder / name, 1)
        options = ["--threads", "1", "--tls", str(folder / "controller")]
        switch = cleanup.enter_context(SwitchProcess(folder, *options))
        behind = int(switch.endpoint.rpartition(":")[2])
        port = cleanup.enter_context(_nginx(folder, behind)) if through_nginx else behind
        honest = _Honest(port, folder / "honest", switch.pid)
        cleanup.callback(honest.close)
        context = multiprocessing.get_context("spawn")
        counters = Counters(
            context.Event(),
            context.RawArray(ctypes.c_uint64, connections),
            context.RawArray(ctypes.c_uint64, connections),
        )
        attacker = context.Process(target=attack, args=(port, folder / "attacker", counters), daemon=True)
        quiet = honest.phase(seconds / 4)
        attacker.start()
        wait_until(lambda: sum(counters.resets) or sum(counters.cut), "the attack has begun", START_S_MAX)
        began_at, before = time.monotonic(), sum(counters.resets)
        under = honest.phase(seconds)
        rate = (sum(counters.resets) - before) / (time.monotonic() - began_at)
        counters.stop.set()
        attacker.join(START_S_MAX)
        after = honest.phase(seconds / 4)
        tracebacks = switch.said().count("Traceback")
        return ResetResult(quiet, under, after, rate, sum(counters.cut), tracebacks)


@click.command(help=__doc__)
@click.option("--seconds", default=20.0, type=click.FloatRange(min=0.1), show_default=True, help="Of the attack.")
@click.option("--connections", default=8, type=click.IntRange(1, 64), show_default=True, help="Of the attacker.")
@click.option("--through", type=click.Choice(["nginx"]), help="What is in front of the service.  [default: nothing]")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def main(seconds: float, connections: int, through: str | None, as_json: bool) -> None:
    outcome = run(seconds, connections, through_nginx=through is not None)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(outcome), indent=2))
    else:
        for name, phase in (("quiet", outcome.quiet), ("under attack", outcome.attack), ("after it", outcome.after)):
            click.echo(
                f"{name}: {phase.joins} joins, {phase.failed} failed, median {phase.join_ms_median:.1f} ms, longest "
                f"{phase.join_ms_max:.0f} ms; the service has {phase.resident_mib:.0f} MiB"
            )
        click.echo(
            f"{outcome.resets_per_second:.0f} resets were written a second; connections were cut "
            f"{outcome.connections_cut} times; {outcome.tracebacks} tracebacks in the service's log"
        )
    failed = outcome.quiet.failed + outcome.attack.failed + outcome.after.failed
    sys.exit(1 if failed or outcome.tracebacks else 0)


if __name__ == "__main__":
    main()
