"""The front before a real gRPC server: true addresses, and who keeps its place when many connect."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from wiresum.controller.jobs.refusal import Refusal
from wiresum.controller.security import identify
from wiresum.controller.security.front import READ_BYTES, UNKNOWN_PEER, Front, FrontLimits, _address_and_peer
from wiresum_lab.processes import PATIENCE_S, wait_until

ATTACKER, ANOTHER, HONEST = "127.0.0.66", "127.0.0.67", "127.0.0.1"
LARGE = 3 << 20


class Server:
    """Answers each call with the caller's peer, and then as many bytes as it was asked for. In a thread of its own."""

    def __init__(self, limits: FrontLimits, listen: str = "127.0.0.1:0", *, proves: bool = True) -> None:
        self.refusals: Counter[str] = Counter()
        self.front = Front(self.refusals, limits)
        self._proves = proves
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(listen)))
        self._thread.start()
        assert self._started.wait(PATIENCE_S)

    async def _run(self, listen: str) -> None:
        options = [("grpc.max_receive_message_length", -1), ("grpc.server_handshake_timeout_ms", 60_000)]
        server = grpc.aio.server(options=options)
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(
                    "t",
                    {"Who": grpc.unary_unary_rpc_method_handler(self._who)},
                ),
            )
        )
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with self.front.listening(server, listen, insecure=True) as self.port:
            await server.start()
            self._started.set()
            await self._stop.wait()
            await server.stop(0)

    async def _who(self, request: bytes, context: Any) -> bytes:
        if self._proves:
            self.front.prove(context.peer())
        return self.front.peer_of(context.peer()).encode() + b"\0" + request

    def stop(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE_S)

    def connections(self, count: int) -> None:
        wait_until(lambda: len(self.front) == count, f"it has {count} connections, and not {len(self.front)}")


Serve = Callable[..., Server]


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[Server] = []

    def make(listen: str = "127.0.0.1:0", *, proves: bool = True, **limits: Any) -> Server:
        servers.append(Server(FrontLimits(**limits), listen, proves=proves))
        return servers[-1]

    yield make
    for server in servers:
        server.stop()


class Caller:
    """A channel of its own, from some address of this host."""

    def __init__(self, server: Server, host: str = "127.0.0.1") -> None:
        size = ("grpc.max_receive_message_length", -1)
        self.channel = grpc.insecure_channel(f"{host}:{server.port}", [("grpc.use_local_subchannel_pool", 1), size])

    def ask(self, request: bytes = b"", timeout_s: float = PATIENCE_S) -> tuple[str, bytes]:
        peer, _, rest = self.channel.unary_unary("/t/Who")(request, timeout=timeout_s).partition(b"\0")
        return peer.decode(), rest

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()


@contextlib.contextmanager
def connections(server: Server, count: int, address: str, first: bytes = b"") -> Iterator[list[socket.socket]]:
    """Plain ones, each of which sends `first`."""
    with contextlib.ExitStack() as cleanup:
        made = []
        for _ in range(count):
            one = socket.create_connection(("127.0.0.1", server.port), PATIENCE_S, source_address=(address, 0))
            made.append(cleanup.enter_context(one))
            with contextlib.suppress(ConnectionError):
                one.sendall(first)
        yield made


def is_open(one: socket.socket) -> bool:
    one.settimeout(0.0)
    try:
        return bool(one.recv(1))
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


def test_the_service_sees_the_true_address_and_port_of_the_caller(serve: Serve) -> None:
    server = serve()
    with Caller(server) as caller:
        peer, _ = caller.ask()
        assert peer.startswith("ipv4:127.0.0.1:")
        (connection,) = server.front._connections
        assert peer == "ipv4:{}:{}".format(*connection.outer.getpeername())


def test_who_goes_around_the_front_or_is_gone_does_not_count_as_one_of_this_host(serve: Serve) -> None:
    server = serve()
    with grpc.insecure_channel(f"unix-abstract:{server.front._inner[1:]}") as around:
        peer = around.unary_unary("/t/Who")(b"", timeout=PATIENCE_S).rstrip(b"\0").decode()
    caller = identify(peer, {"transport_security_type": [b"ssl"]})
    assert peer == UNKNOWN_PEER
    with pytest.raises(Refusal, match=r"names no address 127\.0\.0\.1"):
        caller.check_may_join("a-job", "", "127.0.0.1")


@pytest.mark.parametrize(("host", "peer"), [("127.0.0.1", "ipv4:127.0.0.1:"), ("[::1]", "ipv6:%5B::1%5D:")])
def test_all_addresses_are_those_of_ipv6_too(serve: Serve, host: str, peer: str) -> None:
    """As with gRPC alone, which is why a firewall must have rules for both."""
    if not socket.has_dualstack_ipv6():
        pytest.skip("this host has no IPv6")
    with Caller(serve("0.0.0.0:0"), host) as caller:
        assert caller.ask()[0].startswith(peer)


def test_a_name_of_this_host_can_be_where_it_listens(serve: Serve) -> None:
    with Caller(serve("localhost:0"), "localhost") as caller:
        assert caller.ask()[0]


def test_a_port_that_is_taken_is_an_error_that_names_it(serve: Serve) -> None:
    taken = f"127.0.0.1:{serve().port}"

    async def listen() -> None:
        async with Front().listening(grpc.aio.server(), taken):
            pass

    with pytest.raises(OSError, match=f"cannot listen at {taken}: does another one run there"):
        asyncio.run(listen())


def test_large_messages_pass_unchanged_both_ways(serve: Serve) -> None:
    server, message = serve(), secrets.token_bytes(LARGE)
    with Caller(server) as caller, Caller(server) as other:
        answers = [each.channel.unary_unary("/t/Who").future(message) for each in (caller, other)]
        assert [answer.result(PATIENCE_S).partition(b"\0")[2] == message for answer in answers] == [True, True]


def test_a_connection_ends_when_either_side_ends_it(serve: Serve) -> None:
    server = serve()
    with Caller(server) as caller:
        caller.ask()
        server.connections(1)
    server.connections(0)
    assert not server.front._by_name
    with Caller(server) as caller:
        caller.ask()
        server.stop()
        assert len(server.front) == 0
        with pytest.raises(grpc.RpcError) as raised:
            caller.ask()
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


def test_neither_end_takes_from_the_other_side_what_it_has_not_read() -> None:
    """Both sides send and end before the front has a turn. A worker must still hear why its job ends."""

    async def run() -> None:
        front = Front()
        with contextlib.ExitStack() as cleanup:
            server = cleanup.enter_context(socket.socket(socket.AF_UNIX))  # in place of gRPC's
            server.bind(front._inner)
            server.listen()
            port = front._listen("127.0.0.1:0")
            caller = cleanup.enter_context(socket.create_connection(("127.0.0.1", port)))
            caller.sendall(b"first")
            await until(lambda: bool(front._by_name))
            accepted, _ = server.accept()
            await until(lambda: bool(accepted.recv(5, socket.MSG_DONTWAIT | socket.MSG_PEEK)))
            caller.sendall(bytes(3 * READ_BYTES))
            accepted.sendall(b"last")
            accepted.close()  # with unread bytes, and before the next ones come
            await until(lambda: not front._by_name)
            caller.settimeout(PATIENCE_S)
            assert (caller.recv(100), caller.recv(100)) == (b"last", b""), "and no reset"
            caller.close()
            await until(lambda: not len(front))

            caller = cleanup.enter_context(socket.create_connection(("127.0.0.1", port)))
            caller.sendall(b"first")
            await until(lambda: bool(front._by_name))
            accepted, _ = server.accept()
            accepted.settimeout(PATIENCE_S)
            accepted.sendall(b"unread")
            caller.sendall(b"and last")
            caller.close()
            await until(lambda: len(accepted.recv(100, socket.MSG_PEEK)) == len(b"firstand last"))
            await asyncio.sleep(0.1)
            assert (accepted.recv(100), accepted.recv(100)) == (b"firstand last", b""), "and no reset"
            accepted.close()
            await until(lambda: not len(front))
            await front._close()

    asyncio.run(run())


async def until(condition: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while True:
        with contextlib.suppress(BlockingIOError):
            if condition():
                return
        assert time.monotonic() < give_up_at
        await asyncio.sleep(0.01)


def test_a_silent_connection_ends_and_never_reaches_the_server(serve: Serve) -> None:
    server = serve(wait_s=0.5)
    with connections(server, 3, ATTACKER) as silent:
        server.connections(3)
        assert not server.front._by_name
        wait_until(lambda: not any(map(is_open, silent)), "they are ended")
        server.connections(0)


def test_who_only_connects_gives_way_to_others_of_its_address(serve: Serve) -> None:
    server = serve(connections=16)
    with connections(server, 12, HONEST) as silent:
        server.connections(4)
        wait_until(lambda: [is_open(one) for one in silent] == [False] * 8 + [True] * 4, "the oldest ones give way")
        assert server.refusals == {"connections": 8}
        with Caller(server) as caller:
            assert caller.ask(timeout_s=5.0)[0].startswith(f"ipv4:{HONEST}:")
        with Caller(server) as another:
            another.ask(timeout_s=5.0)


def test_when_there_is_no_room_the_address_with_most_strangers_gives_way(serve: Serve) -> None:
    server = serve(connections=8)
    with contextlib.ExitStack() as cleanup:
        few = cleanup.enter_context(connections(server, 1, ANOTHER))
        many = [cleanup.enter_context(connections(server, 2, f"127.0.0.{last}")) for last in range(70, 74)]
        wait_until(lambda: server.refusals == {"connections": 1}, "one gives way")
        assert [is_open(one) for one in many[0]] == [False, True]
        assert is_open(few[0])
        with Caller(server) as caller:
            caller.ask(timeout_s=5.0)
        assert is_open(few[0])


def test_who_has_proven_a_certificate_does_not_give_way(serve: Serve) -> None:
    server = serve(connections=8)  # two of one address
    with Caller(server) as first, Caller(server) as second, Caller(server) as third:
        first.ask()
        second.ask()
        with pytest.raises(grpc.RpcError) as raised:
            third.ask(timeout_s=1.0)
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
        assert server.refusals["connections"] >= 1
        first.ask()
        second.ask()
    server.connections(0)


@pytest.mark.slow
def test_handshakes_that_come_to_nothing_use_up_the_tokens_of_their_address_alone(serve: Serve) -> None:
    server = serve(handshakes_per_second=0.3, handshakes_burst=2, wait_s=60.0)
    with connections(server, 5, HONEST, b"PRI") as stalled:
        wait_until(lambda: len(server.front._by_name) == 2, "two are passed on")
        with connections(server, 1, ATTACKER, b"PRI"):
            wait_until(lambda: len(server.front._by_name) == 3, "another address has its own tokens")
        with Caller(server) as caller, pytest.raises(grpc.RpcError):
            caller.ask(timeout_s=0.5)
        for one in stalled[2:]:
            one.close()
        began_at = time.monotonic()
        with Caller(server) as caller:
            caller.ask()
        assert 0.5 < time.monotonic() - began_at < 9.0, "it waits for the next token, and those that are gone take none"


def test_a_call_gives_its_token_back(serve: Serve) -> None:
    server = serve(handshakes_per_second=0.01, handshakes_burst=1)
    for _ in range(3):
        with Caller(server) as caller, Caller(server) as another:
            caller.ask()
            another.ask()


def test_a_caller_that_proves_nothing_does_not_get_its_token_back(serve: Serve) -> None:
    server = serve(handshakes_per_second=0.01, handshakes_burst=1, proves=False)
    with Caller(server) as caller, Caller(server) as another:
        caller.ask()
        with pytest.raises(grpc.RpcError):
            another.ask(timeout_s=1.0)


def test_a_process_without_files_goes_on_when_there_are_some(serve: Serve) -> None:
    server = serve()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as cleanup:
        made = [cleanup.enter_context(socket.socket()) for _ in range(20)]
        cleanup.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        with Path("/dev/null").open() as lowest:
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest.fileno() + 1, hard))
        for one in made:
            one.connect(("127.0.0.1", server.port))
        wait_until(lambda: server.refusals["connections"] > 0, "it has no files left")
        wait_until(lambda: not all(map(is_open, made)), "the oldest one gives way")
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        with Caller(server) as caller:
            caller.ask()


@pytest.mark.parametrize(
    ("host", "address", "peer"),
    [
        ("10.0.0.7", "10.0.0.7", "ipv4:10.0.0.7:5"),
        ("::ffff:10.0.0.7", "10.0.0.7", "ipv4:10.0.0.7:5"),
        ("2001:db8::1:2:3:4", "2001:db8::/64", "ipv6:%5B2001:db8::1:2:3:4%5D:5"),
        ("2001:db8::9", "2001:db8::/64", "ipv6:%5B2001:db8::9%5D:5"),
        ("fe80::1%eth0", "fe80::/64", "ipv6:%5Bfe80::1%5D:5"),
    ],
)
def test_addresses_of_ipv6_count_by_their_network(host: str, address: str, peer: str) -> None:
    assert _address_and_peer(host, 5) == (address, peer)
    assert identify(peer, {}).address == host.partition("%")[0].removeprefix("::ffff:")
