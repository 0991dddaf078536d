"""Attacks in cluster_soak.py, from a host that has a worker's certificate of a tenant of its own.

Each is a generator: it begins, yields how long it lasts, and ends. None must succeed.
"""

from __future__ import annotations

import contextlib
import functools
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from wiresum import join
from wiresum.join import credentials, join_pb2_grpc
from wiresum.join.constants import THREADS_MAX, Header
from wiresum_lab.laboratory import HOSTILE
from wiresum_lab.proxies import HOST, TcpProxy
from wiresum_lab.soaks.proxied_laboratory import LANES, SLOTS, ProxiedLaboratory, SoakError

TENANT = "hostile"
CONNECT_S_MAX = 0.5
CONNECTIONS = 1200
SILENT, STALLED, SCRAPING = b"", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET /metrics HTTP/1.0\r\nA: "
"""What a connection sends first: nothing, or how a TLS handshake or a scrape begins."""
READERS = 100
PACKETS = 5000
FLOOD_PACKETS_BURST = 200


class Attacks:
    def __init__(self, laboratory: ProxiedLaboratory, chance: random.Random) -> None:
        self._laboratory, self._chance = laboratory, chance
        self._taken: list[str] = []
        self._ways = [laboratory.proxies.make(port, HOSTILE) for port in laboratory.ports.values()]
        self._credentials = credentials.load(laboratory.pki.issue(TENANT, "worker", tenants=(TENANT,))).of_channel()
        self.kinds: dict[Callable[[], Iterator[float]], str] = {
            self.flood_with_jobs: "attack",
            self.take_all_slots: "attack",
            self.send_noise: "attack",
            self.forge_packets: "attack",
            self.guess_tokens: "attack",
            self.flood_with_packets: "flood",
            self.flood_with_connections: "flood",
            self.read_metrics_slowly: "flood",
        }

    def _channel(self, way: TcpProxy) -> grpc.Channel:
        options = [("grpc.use_local_subchannel_pool", 1)]
        return grpc.secure_channel(f"{HOST}:{way.port}", self._credentials, options)

    # Calls.

    def _attack(self, ask: Callable[[grpc.Channel], Iterator[Callable[[], object]]]) -> Iterator[float]:
        """Makes calls to both controllers, none of which must succeed. It stops if a controller does not answer."""

        def attack(way: TcpProxy) -> None:
            with self._channel(way) as channel:
                for call in ask(channel):
                    try:
                        call()
                    except grpc.RpcError as error:
                        if error.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE):
                            return
                    else:
                        self._taken.append(f"{ask.__name__}: an attack's call was answered")

        threads = [threading.Thread(target=attack, args=(way,), daemon=True) for way in self._ways]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            yield 0.2
        if self._taken:
            raise SoakError(self._taken[0])

    def _ask_for_jobs(self, name: str, count: int, **fields: int) -> Iterator[float]:
        channels = [self._channel(way) for way in self._ways]
        calls: list[Any] = []
        for number in range(count):
            request = join.JoinRequest(
                protocol_version=join.PROTOCOL_VERSION, job_name=f"{name}-{number}", rank=0,
                endpoint=join.Endpoint(address=HOSTILE, port=1024), threads_max=1, lanes_max=LANES, timeout_ms=60_000,
                **fields,  # type: ignore[arg-type]
            )  # fmt: skip
            calls.extend(join_pb2_grpc.JoinServiceStub(channel).Join(request, timeout=60) for channel in channels)
        yield self._chance.uniform(1, 10)
        for call in calls:
            call.cancel()
        for channel in channels:
            channel.close()

    def flood_with_jobs(self) -> Iterator[float]:
        """Each holds a name, and waits for a worker that does not come."""
        return self._ask_for_jobs("flood", 200, world_size=2)

    def take_all_slots(self) -> Iterator[float]:
        """Each begins if there is room, and sums nothing."""
        return self._ask_for_jobs("greedy", 40, world_size=1, slots=SLOTS)

    def send_noise(self) -> Iterator[float]:
        chance = random.Random(self._chance.random())

        def noise(channel: grpc.Channel) -> Iterator[Callable[[], object]]:
            for method in ("Join", "Leave", "Abort", "Diagnose", "Attend"):
                ask = channel.unary_unary(f"/wiresum.join.v1.JoinService/{method}")
                for _ in range(20):
                    message = b"\xff" + chance.randbytes(chance.choice((1, 40, 20_000)))
                    yield functools.partial(ask, message, timeout=1.0)

        yield from self._attack(noise)

    def guess_tokens(self) -> Iterator[float]:
        def guess(channel: grpc.Channel) -> Iterator[Callable[[], object]]:
            stub = join_pb2_grpc.JoinServiceStub(channel)
            for number in range(40):
                switch_name = list(self._laboratory.at)[number % 2]
                member = join.Member(job=number % 8, worker=number % 2, token=f"{number:032x}", switch_name=switch_name)
                yield functools.partial(stub.Leave, join.LeaveRequest(member=member), timeout=1.0)
                yield functools.partial(stub.Abort, join.AbortRequest(member=member, reason="mine now"), timeout=1.0)

        yield from self._attack(guess)

    # Packets.

    def forge_packets(self) -> Iterator[float]:
        self._send_packets(PACKETS)
        yield 0.1

    def flood_with_packets(self) -> Iterator[float]:
        until = time.monotonic() + self._chance.uniform(1, 8)
        while time.monotonic() < until:
            self._send_packets(FLOOD_PACKETS_BURST)
            yield 0.01

    def _send_packets(self, count: int) -> None:
        """With keys that are guessed, to any port of any switch."""
        firsts = [switch.data for switch in self._laboratory.at.values()]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as forger:
            forger.bind((HOSTILE, 0))
            for _ in range(count):
                header = Header(
                    kind=self._chance.randrange(8), job=self._chance.randrange(8), key=self._chance.getrandbits(32),
                    worker=self._chance.randrange(3), cell=self._chance.randrange(128),
                    round=self._chance.randrange(1 << 16), tensor=self._chance.getrandbits(32),
                )  # fmt: skip
                port = self._chance.choice(firsts) + self._chance.randrange(THREADS_MAX)
                with contextlib.suppress(OSError):
                    forger.sendto(header.pack() + bytes(self._chance.choice((0, 1440, 700))), (HOST, port))

    # Connections.

    def flood_with_connections(self) -> Iterator[float]:
        """Of one port; those that end are made again."""
        ports = [*self._laboratory.ports.values(), *(switch.p4runtime for switch in self._laboratory.at.values())]
        port, first = self._chance.choice(ports), self._chance.choice((SILENT, STALLED))
        yield from self._hold(port, first, CONNECTIONS)

    def read_metrics_slowly(self) -> Iterator[float]:
        yield from self._hold(self._chance.choice(list(self._laboratory.metrics.values())), SCRAPING, READERS)

    def _hold(self, port: int, first: bytes, count: int) -> Iterator[float]:
        held: list[socket.socket] = []
        until = time.monotonic() + self._chance.uniform(2, 12)
        while time.monotonic() < until:
            for _ in range(min(100, count - len(held))):
                try:  # it takes no more, or is stopped: do not wait for it
                    made = socket.create_connection((HOST, port), CONNECT_S_MAX, (HOSTILE, 0))
                    made.setblocking(False)
                    made.send(first)
                    held.append(made)
                except OSError:
                    break
            for one in list(held):
                if _has_ended(one):
                    one.close()
                    held.remove(one)
            yield 0.2
        for one in held:
            one.close()


def _has_ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1024) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
