"""The front before a real gRPC server: true addresses, and who keeps its place when many connect."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import secrets
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from wiresum.controller.jobs.refusal import Refusal
from wiresum.controller.security import WORKER, identify
from wiresum.controller.security import Caller as Who
from wiresum.controller.security.front import (
    READ_BYTES,
    UNKNOWN_PEER,
    WAIT_S_MAX,
    WARN_S,
    Front,
    FrontLimits,
    _address_and_peer,
)
from wiresum.controller.security.names import Claims
from wiresum_lab.clocks.for_asyncio import VirtualLoop, in_virtual_time
from wiresum_lab.patience import PATIENCE_S
from wiresum_lab.processes import wait_until

ATTACKER, ANOTHER, HONEST = "127.0.0.66", "127.0.0.67", "127.0.0.1"
LARGE = 3 << 20
HOLD = b"hold"


def holder(name: str) -> Who:
    """Of a worker's certificate without a tenant."""
    return Who(name=name, authenticated=True, serial=f"serial of {name}", claims=Claims(frozenset({WORKER})))


class Server:
    """Answers each call with the caller's peer, and then as many bytes as it was asked for, or with why the connection
    is refused. A call with the message HOLD lasts until `over`. In a thread of its own."""

    def __init__(self, limits: FrontLimits, listen: str = "127.0.0.1:0") -> None:
        self.refusals: Counter[str] = Counter()
        self.front = Front(self.refusals, limits)
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
        self._loop, self._stop, self.over = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        async with self.front.listening(server, listen, insecure=True) as self.port:
            await server.start()
            self._started.set()
            await self._stop.wait()
            await server.stop(0)

    async def _who(self, request: bytes, context: Any) -> bytes:
        metadata = dict(context.invocation_metadata())
        peer = self.front.peer_of(context.peer())
        caller = holder(str(metadata["name"])) if "name" in metadata else identify(peer, {})
        with self.front.calling(context.peer()):
            if why := self.front.prove(context.peer(), caller):
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, why)
            if request == HOLD:
                await self.over.wait()
        return peer.encode() + b"\0" + request

    def run(self, action: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(action)

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

    def make(listen: str = "127.0.0.1:0", **limits: Any) -> Server:
        servers.append(Server(FrontLimits(**limits), listen))
        return servers[-1]

    yield make
    for server in servers:
        server.stop()


class Caller:
    """A channel of its own, from some address of this host."""

    def __init__(self, server: Server, host: str = "127.0.0.1", *, name: str = "") -> None:
        """`name`: of its certificate; none unless given."""
        self._metadata = [("name", name)] if name else None
        size = ("grpc.max_receive_message_length", -1)
        self.channel = grpc.insecure_channel(f"{host}:{server.port}", [("grpc.use_local_subchannel_pool", 1), size])

    def ask(self, request: bytes = b"") -> tuple[str, bytes]:
        answer = self.channel.unary_unary("/t/Who")(request, timeout=PATIENCE_S, metadata=self._metadata)
        peer, _, rest = answer.partition(b"\0")
        return peer.decode(), rest

    def refusal(self) -> str:
        """Why its call is refused, which must be."""
        with pytest.raises(grpc.RpcError) as raised:
            self.ask()
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        return str(raised.value.details())

    def hold(self, server: Server) -> grpc.Future:
        """A call that lasts."""
        before = sum(one.calls for one in server.front._connections)
        call = self.channel.unary_unary("/t/Who").future(HOLD, timeout=PATIENCE_S, metadata=self._metadata)
        wait_until(lambda: sum(one.calls for one in server.front._connections) > before, "the call is there")
        return call

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
        caller.check_may_join("a-job", "", IPv4Address("127.0.0.1"))


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


@pytest.mark.parametrize(("host", "warns"), [("127.0.0.2", True), ("127.0.0.1", False), ("0.0.0.0", False)])
def test_a_certificate_that_is_not_made_for_the_address_where_a_service_listens_is_warned_of(
    controller_tls: Path, caplog: pytest.LogCaptureFixture, host: str, warns: bool
) -> None:
    async def listen() -> None:
        async with Front().listening(grpc.aio.server(), f"{host}:0", tls=controller_tls):
            assert (f"is not made for {host}, where this listens" in caplog.text) == warns

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


class Site:
    """A front and its callers in virtual time, before a socket in place of gRPC's."""

    def __init__(self, loop: VirtualLoop, cleanup: contextlib.ExitStack, limits: FrontLimits) -> None:
        self._loop, self._cleanup = loop, cleanup
        self.refusals: Counter[str] = Counter()
        self.front = Front(self.refusals, limits)
        self.server = cleanup.enter_context(socket.socket(socket.AF_UNIX))
        self.server.bind(self.front._inner)
        self.server.listen()
        self._port = self.front._listen("127.0.0.1:0")

    async def connect(self, address: str = HONEST, first: bytes = b"", count: int = 1) -> list[socket.socket]:
        """Returns when they are accepted, and what they send first has been seen."""
        made, before = [], len(self.front)
        silent = sum(map(len, self.front._silent.values()))
        for _ in range(count):
            made.append(self._cleanup.enter_context(socket.create_connection((HONEST, self._port), None, (address, 0))))
            made[-1].sendall(first)
        seen = lambda: sum(map(len, self.front._silent.values())) == silent + (0 if first else count)  # noqa: E731
        await self._loop.until(lambda: len(self.front) == before + count and seen(), "they are accepted")
        return made

    async def passed_on(self, count: int) -> None:
        await self._loop.until(lambda: len(self.front._by_name) == count, f"{count} are passed on")


@contextlib.asynccontextmanager
async def site_in(loop: VirtualLoop, **limits: Any) -> AsyncIterator[Site]:
    with contextlib.ExitStack() as cleanup:
        site = Site(loop, cleanup, FrontLimits(**limits))
        yield site
    await loop.pass_time(2 * WARN_S)
    await loop.until(lambda: not len(site.front), "all have ended")
    await site.front._close()


def test_neither_end_takes_from_the_other_side_what_it_has_not_read() -> None:
    """Both sides send and end before the front has a turn. A worker must still hear why its job ends."""

    async def run(loop: VirtualLoop) -> None:
        async def has_come(at: socket.socket, content: bytes) -> None:
            peeked = socket.MSG_DONTWAIT | socket.MSG_PEEK
            await loop.until(lambda: at.recv(100, peeked) == content, f"{content!r} has come")

        async with site_in(loop) as site:
            (caller,) = await site.connect(first=b"first")
            await site.passed_on(1)
            accepted, _ = site.server.accept()
            await has_come(accepted, b"first")
            caller.sendall(bytes(3 * READ_BYTES))
            accepted.sendall(b"last")
            accepted.close()  # with unread bytes, and before the next ones come
            await site.passed_on(0)
            caller.settimeout(PATIENCE_S)
            assert (caller.recv(100), caller.recv(100)) == (b"last", b""), "and no reset"
            caller.close()
            await loop.until(lambda: not len(site.front), "it has ended")

            (caller,) = await site.connect(first=b"first")
            await site.passed_on(1)
            accepted, _ = site.server.accept()
            await has_come(accepted, b"first")
            accepted.sendall(b"unread")
            caller.sendall(b"and last")
            caller.close()
            await has_come(accepted, b"firstand last")
            await site.passed_on(0)
            accepted.settimeout(PATIENCE_S)
            assert (accepted.recv(100), accepted.recv(100)) == (b"firstand last", b""), "and no reset"
            accepted.close()

    in_virtual_time(run, stands_still=True)


def test_a_silent_connection_ends_and_never_reaches_the_server() -> None:
    async def run(loop: VirtualLoop) -> None:
        async with site_in(loop) as site:
            silent = await site.connect(ATTACKER, count=3)
            await loop.pass_time(WAIT_S_MAX - 0.1)
            assert all(map(is_open, silent))
            assert not site.front._by_name
            await loop.pass_time(0.1)
            assert len(site.front) == 0
            await loop.until(lambda: not any(map(is_open, silent)), "they hear of it")

    in_virtual_time(run, stands_still=True)


def test_handshakes_that_come_to_nothing_use_up_the_tokens_of_their_address_alone() -> None:
    async def run(loop: VirtualLoop) -> None:
        async with site_in(loop, handshakes_per_second=0.5, handshakes_burst=2) as site:
            stalled = await site.connect(HONEST, b"PRI", 5)
            await site.passed_on(2)
            await site.connect(ATTACKER, b"PRI")
            await site.passed_on(3)
            await loop.pass_time(1.9)
            assert len(site.front._by_name) == 3
            for one in stalled[2:4]:
                one.close()
            await loop.pass_time(0.1)
            await site.passed_on(4)
            assert not site.front._waiting, "those that are gone take no token"

    in_virtual_time(run, stands_still=True)


def test_who_proves_a_certificate_gets_its_token_back() -> None:
    async def run(loop: VirtualLoop) -> None:
        async with site_in(loop, handshakes_burst=1, handshakes_per_second=0.01) as site:
            await site.connect(first=b"PRI")
            await site.passed_on(1)
            await site.connect(first=b"PRI", count=2)
            (first,) = site.front._by_name
            assert site.front.prove(first, holder("own")) == ""
            await site.passed_on(2)
            await loop.pass_time(1.0)
            assert len(site.front._by_name) == 2, "the second has proven nothing"

    in_virtual_time(run, stands_still=True)


def test_the_log_names_who_is_refused_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    async def run(loop: VirtualLoop) -> None:
        async with site_in(loop, connections=8, wait_s=2 * WARN_S) as site:
            await site.connect(ATTACKER, count=2)
            for pause_s, lines in ((0.0, 1), (WARN_S - 0.1, 1), (0.1, 2)):
                await loop.pass_time(pause_s)
                before = site.refusals["connections"]
                made = socket.create_connection(("127.0.0.1", site._port), None, (ATTACKER, 0))
                site._cleanup.enter_context(made)
                await loop.until(lambda before=before: site.refusals["connections"] > before, "it is counted")
                assert len(caplog.messages) == lines
            assert caplog.messages == [
                f"{ATTACKER} has 2 connections that made no call, the most for one address: {count} connections were "
                "refused or ended"
                for count in (1, 2)
            ]

    in_virtual_time(run, stands_still=True)


def test_who_only_connects_gives_way_to_others_of_its_address(serve: Serve) -> None:
    server = serve(connections=16)
    with connections(server, 12, HONEST) as silent:
        server.connections(4)
        wait_until(lambda: [is_open(one) for one in silent] == [False] * 8 + [True] * 4, "the oldest ones give way")
        assert server.refusals == {"connections": 8}
        with Caller(server) as caller:
            assert caller.ask()[0].startswith(f"ipv4:{HONEST}:")
        with Caller(server) as another:
            another.ask()


def test_where_many_connect_at_once_handshakes_that_go_on_are_not_disturbed(serve: Serve) -> None:
    """The one that would wait longest gives way, after those that are silent."""
    server = serve(connections=16, handshakes_per_second=0.01, handshakes_burst=2)
    with contextlib.ExitStack() as cleanup:
        first = cleanup.enter_context(connections(server, 2, HONEST, b"PRI"))
        wait_until(lambda: len(server.front._by_name) == 2, "two are passed on")
        silent = cleanup.enter_context(connections(server, 1, HONEST))
        wait_until(lambda: len(server.front) == 3, "one is silent")
        later = []
        for waiting in (1, 2, 2, 2):
            later += cleanup.enter_context(connections(server, 1, HONEST, b"PRI"))
            wait_until(lambda most=waiting: len(server.front._waiting.get(HONEST, ())) == most, "it waits")
            assert all(map(is_open, first))
        assert not any(map(is_open, silent))
        wait_until(lambda: [is_open(one) for one in later] == [True, False, False, True], "the others give way")


def test_when_there_is_no_room_the_address_with_most_strangers_gives_way(serve: Serve) -> None:
    server = serve(connections=8)
    with contextlib.ExitStack() as cleanup:
        few = cleanup.enter_context(connections(server, 1, ANOTHER))
        many = [cleanup.enter_context(connections(server, 2, f"127.0.0.{last}")) for last in range(70, 74)]
        wait_until(lambda: server.refusals == {"connections": 1}, "one gives way")
        assert [is_open(one) for one in many[0]] == [False, True]
        assert is_open(few[0])
        with Caller(server) as caller:
            caller.ask()
        assert is_open(few[0])


def test_who_has_proven_a_certificate_does_not_give_way_to_who_has_none(serve: Serve) -> None:
    server = serve(connections=8)
    with Caller(server) as first, Caller(server) as second:
        first.ask()
        second.ask()
        with connections(server, 8, HONEST, b"PRI"), connections(server, 8, ATTACKER, b"PRI"):
            wait_until(lambda: server.refusals["connections"] >= 10, "most of them give way")
            first.ask()
            second.ask()
    server.connections(0)


def test_a_tenant_that_takes_all_that_it_can_keeps_no_other_out(serve: Serve) -> None:
    """From several addresses, in connections with a call in progress each. What it could still have, it is told."""
    server = serve(connections=16)
    with contextlib.ExitStack() as cleanup:
        running = cleanup.enter_context(Caller(server, name="victim"))
        running.ask()
        held, refused = [], 0
        for _ in range(12):
            attacker = cleanup.enter_context(Caller(server, name="mallory"))
            try:
                attacker.ask()
            except grpc.RpcError:
                assert "certificate 'mallory' has 7 connections, and no more while" in attacker.refusal()
                refused += 1
            else:
                held.append(attacker.hold(server))
        assert (len(held), refused) == (7, 5)
        victims = [cleanup.enter_context(Caller(server, name="victim")) for _ in range(2)]
        for caller in (running, *victims, cleanup.enter_context(Caller(server, name="another"))):
            assert caller.ask()
        assert not any(call.done() for call in held), "nor does it lose what it has"
        server.run(server.over.set)


def test_of_a_party_that_has_all_that_it_can_the_one_that_was_used_least_recently_gives_way(serve: Serve) -> None:
    server = serve(connections=8)
    with contextlib.ExitStack() as cleanup:
        busy, first, second, last, other = (
            cleanup.enter_context(Caller(server, name=name)) for name in ("own", "own", "own", "own", "other")
        )
        other.ask()
        held = busy.hold(server)
        busy.ask()  # one of its calls ends, and the other does not
        peers = [caller.ask()[0] for caller in (first, second, first, last)]
        assert set(peers) - {one.peer for one in server.front._connections} == {peers[1]}, "the second gives way"
        assert server.refusals == {"connections": 1}
        assert not held.done()
        server.run(server.over.set)


def test_connections_with_a_revoked_certificate_end_and_make_room(serve: Serve) -> None:
    server = serve(connections=16)
    with contextlib.ExitStack() as cleanup:
        callers = [cleanup.enter_context(Caller(server, name="lost")) for _ in range(7)]
        for caller in callers:
            caller.ask()
        held = callers[0].hold(server)
        kept = cleanup.enter_context(Caller(server, name="kept"))
        kept.ask()
        server.run(lambda: server.front.end_revoked(lambda serial: serial == "serial of lost"))
        server.connections(1)
        with pytest.raises(grpc.RpcError):
            held.result(PATIENCE_S)
        kept.ask()
        assert server.front._shares.taken == 1
    server.connections(0)
    assert (len(server.front._shares), server.front._idle) == (0, {})


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
