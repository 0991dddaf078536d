"""Attacks in cluster_soak.py, from a host with a worker's certificate of a tenant of its own and several addresses.

Each attack is a generator: it begins, yields how long it lasts, and ends. No attack may succeed. Attacks that do not
depend on what else goes on have tests of their own (controller/tests/controller/security, laboratory/test_memory.py),
and are not repeated here.
"""

from __future__ import annotations

import contextlib
import functools
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from wiresum import join
from wiresum.join import credentials, join_pb2_grpc
from wiresum.join.constants import THREADS_MAX, Header
from wiresum_lab.doubles.controller import join_request, member_of
from wiresum_lab.laboratory import HOSTILE
from wiresum_lab.patience import FACTOR
from wiresum_lab.proxies import HOST, TcpProxy
from wiresum_lab.soaks.hostile_worker import HostileWorker, Says, halts_by_itself, says_extremes, spoil
from wiresum_lab.soaks.proxied_laboratory import LANES, SLOTS, ProxiedLaboratory, SoakError, SoakTimedOutError

TENANT = "hostile"
ADDRESSES = [f"127.0.0.{last}" for last in range(70, 74)]
"""Further addresses of the hostile host, besides HOSTILE."""
CONNECT_S_MAX = 0.5
CONNECTIONS = 1200
HELD_S = (20.0, 30.0)
"""How long an attack holds connections: longer than a worker may wait for its place."""
HELD_CONNECTIONS = 320
"""Connections by one certificate, from all addresses: more than a controller of the soak has room for."""
CALLING_CONNECTIONS, CALLS_A_CONNECTION = 24, 100
"""Connections with many calls. gRPC's server allows so many calls on one connection."""
GONE_S_MAX = 30.0 * FACTOR
"""Longest time from a revocation until all calls and connections by the certificate have ended."""
SILENT, STALLED = b"", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
"""The first bytes of a connection: nothing, or the beginning of a TLS handshake."""
PACKETS = 5000
FLOOD_PACKETS_BURST = 200
WORKERS = 4
"""How many hostile workers there are, each in a job of its own."""
RESTARTED_S = (20.0, 30.0)
"""Duration of an attack that kills both controllers: long enough for one to serve again."""
EXTREMES_S_MAX = 15.0
_GAVE_UP = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE)


class Attacks:
    def __init__(self, laboratory: ProxiedLaboratory, chance: random.Random) -> None:
        self._laboratory, self._chance = laboratory, chance
        self._taken: list[str] = []
        self._greedy = self._movers = 0
        self._ways = [laboratory.proxies.make(port, HOSTILE) for port in laboratory.ports.values()]
        self._ways_from = [
            laboratory.proxies.make(port, address) for port in laboratory.ports.values() for address in ADDRESSES
        ]
        self._credentials = self._issue(TENANT)
        self.kinds: dict[Callable[[], Iterator[float]], str] = {
            self.flood_with_jobs: "attack",
            self.take_all_slots: "attack",
            self.send_noise: "attack",
            self.forge_packets: "attack",
            self.guess_tokens: "attack",
            self.say_extremes: "attack",
            self.halt_all_the_time: "moves",
            self.say_hostile_positions: "moves",
            self.say_hostile_positions_across_a_restart: "controller",
            self.take_all_connections: "room",
            self.take_all_calls: "room",
            self.flood_with_packets: "flood",
            self.flood_with_connections: "flood",
        }

    def _issue(self, name: str) -> grpc.ChannelCredentials:
        return credentials.load(self._laboratory.pki.issue(name, "worker", tenants=(TENANT,))).of_channel()

    def _channel(self, way: TcpProxy, with_credentials: grpc.ChannelCredentials | None = None) -> grpc.Channel:
        options = [("grpc.use_local_subchannel_pool", 1)]
        return grpc.secure_channel(f"{HOST}:{way.port}", with_credentials or self._credentials, options)

    # Calls.

    def _at_once(self, works: Sequence[Callable[[], None]]) -> Iterator[float]:
        """Runs all works, each in a thread of its own, until all have ended."""
        threads = [threading.Thread(target=work, daemon=True) for work in works]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            yield 0.2
        if self._taken:
            raise SoakError(self._taken[0])

    def _at_each(self, work: Callable[[grpc.Channel], None]) -> Iterator[float]:
        """Runs `work` with a channel to each controller, at once."""

        def through(way: TcpProxy) -> None:
            with self._channel(way) as channel:
                work(channel)

        return self._at_once([functools.partial(through, way) for way in self._ways])

    def _attack(
        self, ask: Callable[[grpc.Channel], Iterator[Callable[[], object]]], *, may_be_answered: bool = False
    ) -> Iterator[float]:
        """Makes calls to both controllers, which must neither succeed (unless `may_be_answered`) nor fail by an
        exception of the controller. Stops if a controller does not answer."""

        def attack(channel: grpc.Channel) -> None:
            for call in ask(channel):
                try:
                    call()
                except grpc.RpcError as error:
                    if error.code() is grpc.StatusCode.UNKNOWN and "Unexpected" in (error.details() or ""):
                        self._taken.append(f"{ask.__name__}: a service failed: {error.details()}")
                    if error.code() in _GAVE_UP and not may_be_answered:
                        return
                else:
                    if not may_be_answered:
                        self._taken.append(f"{ask.__name__}: an attack's call was answered")

        return self._at_each(attack)

    def _ask_for_jobs(self, name: str, count: int, **fields: object) -> Iterator[float]:
        lasts_s = self._chance.uniform(1, 10)

        def ask(channel: grpc.Channel) -> None:
            stub = join_pb2_grpc.JoinServiceStub(channel)
            calls = [stub.Join(_request(job_name=f"{name}-{number}", **fields), timeout=60) for number in range(count)]
            time.sleep(lasts_s)
            for call in calls:
                call.cancel()

        return self._at_each(ask)

    def flood_with_jobs(self) -> Iterator[float]:
        """Asks for many jobs. Each holds a name, and waits for a worker that does not come."""
        return self._ask_for_jobs("flood", 200, world_size=2)

    def take_all_slots(self) -> Iterator[float]:
        """Starts jobs until no slot is free. They sum nothing."""
        return self._ask_for_jobs("greedy", 40, slots=SLOTS)

    def send_noise(self) -> Iterator[float]:
        chance = random.Random(self._chance.random())

        def noise(channel: grpc.Channel) -> Iterator[Callable[[], object]]:
            for method in ("Join", "Leave", "Abort", "Diagnose", "Attend"):
                ask = channel.unary_unary(f"/wiresum.join.v1.JoinService/{method}")
                for _ in range(20):
                    message = b"\xff" + chance.randbytes(chance.choice((1, 40, 20_000)))
                    yield functools.partial(ask, message, timeout=1.0)

        yield from self._attack(noise)

    def say_extremes(self) -> Iterator[float]:
        """Sends messages that are well formed but for extreme values in one to three fields."""
        chance, until = random.Random(self._chance.random()), time.monotonic() + EXTREMES_S_MAX

        def extremes(channel: grpc.Channel) -> Iterator[Callable[[], object]]:
            stub, name = join_pb2_grpc.JoinServiceStub(channel), f"extreme-{chance.randrange(1 << 30)}"
            granted = join.JoinReply()
            with contextlib.suppress(grpc.RpcError):
                for event in stub.Join(_request(job_name=name, slots=16), timeout=5.0):
                    granted = event.granted
            member = member_of(granted)
            list_ended = channel.unary_unary("/wiresum.join.v1.OperatorService/ListEnded", _to_bytes)
            for number in range(200):
                if time.monotonic() > until:
                    return
                resumed = join.Resumed(slots=16, threads=1, lanes=LANES, positions=bytes(64), job_id=bytes(16))
                kinds: list[tuple[Callable[..., object], Any]] = [
                    (stub.Join, _request(job_name=f"{name}-{number}", slots=16)),
                    (stub.Join, _request(job_name=f"{name}-{number}", slots=16, resumed=resumed)),
                    (stub.Diagnose, member),
                    (stub.Leave, join.LeaveRequest(member=member)),
                    (stub.Abort, join.AbortRequest(member=member)),
                    (stub.Prove, join.Challenge(job_name=name, nonce=bytes(16))),
                    (list_ended, join.ListEndedRequest()),
                ]
                call, message = chance.choice(kinds)
                asked = type(message).FromString(message.SerializeToString())
                for _ in range(chance.randrange(1, 4)):
                    spoil(asked, chance)
                yield functools.partial(_finish, call, asked)

        yield from self._attack(extremes, may_be_answered=True)

    def guess_tokens(self) -> Iterator[float]:
        def guess(channel: grpc.Channel) -> Iterator[Callable[[], object]]:
            stub = join_pb2_grpc.JoinServiceStub(channel)
            for number in range(40):
                switch_name = list(self._laboratory.at)[number % 2]
                member = join.Member(job=number % 8, worker=number % 2, token=f"{number:032x}", switch_name=switch_name)
                yield functools.partial(stub.Leave, join.LeaveRequest(member=member), timeout=1.0)
                yield functools.partial(stub.Abort, join.AbortRequest(member=member, reason="mine now"), timeout=1.0)

        yield from self._attack(guess)

    # Workers of jobs of their own.

    def halt_all_the_time(self) -> Iterator[float]:
        """Workers that always halt, so that their jobs move as soon as they have moved."""
        return self._be_workers(halts_by_itself)

    def say_hostile_positions(self) -> Iterator[float]:
        return self._be_workers(says_extremes)

    def say_hostile_positions_across_a_restart(self) -> Iterator[float]:
        """Workers that report hostile positions while both controllers are killed. The next controller knows their jobs
        only from disk."""
        workers = self._be_workers(says_extremes, RESTARTED_S)
        yield next(workers)
        yield self._chance.uniform(2, 5)
        for program in self._laboratory.controllers.values():
            program.kill()
        yield from workers

    def _be_workers(self, says: Says, lasts_s: tuple[float, float] = (5.0, 20.0)) -> Iterator[float]:
        self._movers += WORKERS
        until = time.monotonic() + self._chance.uniform(*lasts_s)
        return self._at_once([
            functools.partial(self._be_worker, number, says, random.Random(self._chance.random()), until)
            for number in range(self._movers, self._movers + WORKERS)
        ])  # fmt: skip

    def _be_worker(self, number: int, says: Says, chance: random.Random, until: float) -> None:
        with contextlib.ExitStack() as cleanup:
            channels = [cleanup.enter_context(self._channel(way)) for way in self._ways]
            request = _request(job_name=f"mover-{number}", slots=16, attempt=f"{chance.random()}")
            HostileWorker(request, says, chance).live(channels, until)

    # Room for connections and calls.

    def take_all_connections(self) -> Iterator[float]:
        yield from self._take_room(HELD_CONNECTIONS, 1)

    def take_all_calls(self) -> Iterator[float]:
        yield from self._take_room(CALLING_CONNECTIONS, CALLS_A_CONNECTION)

    def _take_room(self, connections: int, calls_of_each: int) -> Iterator[float]:
        """Takes connections and calls by one certificate, from several addresses. When the certificate is revoked, all
        of them must end."""
        self._greedy += 1
        name = f"greedy-{self._greedy}"
        with_credentials = self._issue(name)
        ways = self._ways_from
        until = time.monotonic() + self._chance.uniform(*HELD_S)

        def hold(way: TcpProxy, cleanup: contextlib.ExitStack) -> None:
            for _ in range(connections // len(ADDRESSES)):
                channel = self._channel(way, with_credentials)
                stub, calls = health_pb2_grpc.HealthStub(channel), list[Any]()
                cleanup.callback(calls.clear)  # holds the calls until then: a call without a reference is cancelled
                with contextlib.suppress(grpc.RpcError):
                    while len(calls) < calls_of_each and time.monotonic() < until:
                        call = stub.Watch(health_pb2.HealthCheckRequest(), timeout=600)
                        next(call)
                        calls.append(call)
                if calls:
                    cleanup.callback(channel.close)
                else:
                    channel.close()
                if time.monotonic() > until:
                    return

        with contextlib.ExitStack() as cleanup:
            yield from self._at_once([functools.partial(hold, way, cleanup) for way in ways])
            yield max(0.0, until - time.monotonic())
            streams = {stream for way in ways for stream in list(way.streams)}
            self._laboratory.pki.revoke(name)
            revoked_at = time.monotonic()
            # The calls are not asked: a call with an unread message looks open after its end.
            while left := _left(streams, ways):
                if time.monotonic() > max(revoked_at, self._laboratory.disturbed_at) + GONE_S_MAX:
                    raise SoakTimedOutError(f"{len(left)} connections of a revoked certificate are left")
                yield 0.2

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
        """Sends packets with guessed keys to any port of any switch."""
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
        """Holds many connections to one port. Connections that end are made again."""
        ports = [*self._laboratory.ports.values(), *(switch.p4runtime for switch in self._laboratory.at.values())]
        port, first = self._chance.choice(ports), self._chance.choice((SILENT, STALLED))
        held: list[socket.socket] = []
        until = time.monotonic() + self._chance.uniform(2, 12)
        while time.monotonic() < until:
            for _ in range(min(100, CONNECTIONS - len(held))):
                try:  # do not wait for a service that takes no more, or is stopped
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


def _request(**fields: object) -> join.JoinRequest:
    endpoint = join.Endpoint(address=HOSTILE, port=1024)
    defaults: dict[str, object] = {"endpoint": endpoint, "threads_max": 1, "lanes_max": LANES, "timeout_ms": 60_000}
    return join_request(**(defaults | fields))


def _finish(call: Callable[..., object], message: object) -> None:
    """Makes a call, and reads the answer to its end if it is a stream."""
    answer = call(message, timeout=1.0)
    if isinstance(answer, grpc.Call):
        for _ in answer:
            pass


def _to_bytes(message: Any) -> bytes:
    return bytes(message.SerializeToString())


def _left(streams: set[Any], ways: Sequence[TcpProxy]) -> set[Any]:
    return streams & {stream for way in ways for stream in list(way.streams)}
