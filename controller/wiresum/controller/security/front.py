"""Listens in front of a gRPC server, and limits connections by address, certificate and tenant, which gRPC for Python
cannot do.

Theory of operation. The front accepts TCP connections, and passes the bytes of each on to the gRPC server, which
listens at a Unix socket of this process. TLS passes through. The server sees the name of a Unix socket as its peer, and
`peer_of` says which TCP connection it stands for.

A connection costs one file until its first byte comes. Then it takes a token of its address, and is passed on. The
token is given back when the service calls `prove`, since a caller with a valid certificate has made a call. So only
handshakes that come to nothing use tokens up, and an address without tokens waits for the next token. A connection that
is not passed on within WAIT_S_MAX ends: it is silent, or its address has no tokens. gRPC ends handshakes that do not
finish, after ten seconds.

The number of connections is limited. Connections that are not proven may take all that proven ones leave, and a quarter
of all for one address. If the limit is reached, an unproven connection gives way to a new one: a connection of the same
address, or of the address that has most of them. The oldest silent connection goes first, else the one that would wait
longest for a token, else the oldest that was passed on. So a caller that only connects cannot keep out callers with a
certificate, not even behind the same address; and where many honest callers connect at once, handshakes in progress are
not disturbed.

`prove` is told the caller's certificate, and a proven connection is held by its address, certificate and tenants, which
share the room as shares.py says. A proven connection without a call in progress gives way to another of the same party.
If there is none, the new connection stays unproven, and its call is to be refused. Some room is kept for connections
that are not proven yet.

Everything here runs in one event loop, whose time is the front's, and no step takes longer than passing on some
kilobytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import logging
import resource
import secrets
import select
import socket
import struct
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from wiresum.controller.security.caller import Caller
from wiresum.controller.security.rates import TokenBuckets
from wiresum.controller.security.shares import ADDRESS, Party, Shares
from wiresum.join import credentials
from wiresum.join.addresses import canonical, counted_as

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 17 * 1024
"""How many connections there may be. A quarter is enough for the largest job: one tenant may have half, and the next
one half of the rest. gRPC's server takes more: CONNECTION_OPTIONS in security.py."""
FILES_A_CONNECTION = 3
"""Files of a connection: the TCP socket, and both ends of the Unix one."""
FILES_PART = 0.8
"""The part of the process's files that connections may use; the others are for everything else."""
ADDRESS_PART = 4
"""The unproven connections of one address may be this part of all connections: a quarter."""
UNPROVEN_PART = 64
"""This part of all connections is kept for those that are not proven yet."""
WAIT_S_MAX = 10.0
"""The most seconds until a connection is passed on."""
HANDSHAKES_PER_SECOND, HANDSHAKES_BURST = 20.0, 256
"""How many handshakes of one address may come to nothing."""
ACCEPTS_AT_ONCE = 32
"""How many connections are accepted before calls have their turn again."""
READ_BYTES = 64 * 1024
BACKLOG = 4096
RETRY_S = 0.1
"""Pause after the system has had no files left, or the gRPC server no room for a connection that waits to be
accepted."""
LINGER_S_MAX = 2.0
"""How long a caller may take to read what the server sent before it ended the connection."""
DRAIN_S_MAX = 0.5
"""How long callers may take to read when the front closes."""
WARN_S = 60.0
"""Time between two lines in the log about refused connections."""
LAST_WORDS_S = 0.2
"""Time for what the service has just sent to pass, before a connection ends."""
UNKNOWN_PEER = "ipv6:%5B::%5D:0"
"""An address that nobody has."""

_ABORT = struct.pack("ii", 1, 0)
"""Value for SO_LINGER that resets a connection: the other side is told at once, and no state stays behind."""
_WOULD_BLOCK = (BlockingIOError, InterruptedError)

Key = TypeVar("Key")


@dataclass(frozen=True)
class FrontLimits:
    connections: int = CONNECTIONS_MAX
    handshakes_per_second: float = HANDSHAKES_PER_SECOND
    handshakes_burst: int = HANDSHAKES_BURST
    wait_s: float = WAIT_S_MAX

    @property
    def unproven_of_address(self) -> int:
        return max(1, self.connections // ADDRESS_PART)

    @property
    def proven(self) -> int:
        return self.connections - max(1, self.connections // UNPROVEN_PART)


class Front:
    """The front of one gRPC server."""

    def __init__(
        self,
        refusals: Counter[str] | None = None,
        limits: FrontLimits | None = None,
        listener: socket.socket | None = None,
    ) -> None:
        """`refusals`: counts connections that were refused or gave way, as `connections`. `listener`: a bound socket
        that does not listen yet; None: the front makes one."""
        self._limits = limits or FrontLimits(connections=min(CONNECTIONS_MAX, _connections_that_files_allow()))
        self._refusals = Counter[str]() if refusals is None else refusals
        self._inner = f"\0wiresum-{secrets.token_hex(16)}"
        self._given = listener
        self._listeners: list[socket.socket] = []
        self._connections: dict[_Connection, None] = {}
        self._by_name: dict[str, _Connection] = {}
        """Connections that are passed on, by the peer that the gRPC server sees."""
        self._shares = Shares(self._limits.proven)
        """How proven connections are shared among parties."""
        self._idle: dict[Party, OrderedDict[_Connection, None]] = {}
        """Proven connections without a call in progress, by each of their parties, the one that was used last at the
        end."""
        self._unproven: Counter[str] = Counter()
        """How many are not proven, by address. Each is in one of these, by address, the oldest first:"""
        self._silent: dict[str, OrderedDict[_Connection, None]] = {}
        self._waiting: dict[str, OrderedDict[_Connection, None]] = {}
        """Unproven connections that wait for a token, by address, the oldest first."""
        self._passed_on: dict[str, OrderedDict[_Connection, None]] = {}
        self._token_timers: dict[str, asyncio.TimerHandle] = {}
        """Timers for the next token of an address, for which connections wait."""
        self._tokens = TokenBuckets(self._limits.handshakes_per_second, self._limits.handshakes_burst, clock=self._time)
        self._warned_at = -WARN_S
        self._refused_since = 0

    def __len__(self) -> int:
        """Number of connections."""
        return len(self._connections)

    @contextlib.asynccontextmanager
    async def listening(
        self, server: Any, address: str, *, tls: str | Path | None = None, insecure: bool = False
    ) -> AsyncIterator[int]:
        """Makes a gRPC server listen at host:port, as `credentials.add_port` does, before it starts and until it has
        stopped. Gives the TCP port, a free one for port 0. Raises `CredentialsError` or `OSError`."""
        credentials.check_may_listen(address, tls=tls, insecure=insecure)
        port = self._listen(address)
        try:
            inner = f"unix-abstract:{self._inner[1:]}"
            credentials.add_port(server, inner, tls=tls, insecure=insecure, called_at=address)
            yield port
        finally:
            await self._close()

    def _listen(self, address: str) -> int:
        try:
            self._listeners = _listeners(address) if self._given is None else [_listen_at(self._given)]
        except OSError:
            raise credentials.taken(address) from None
        self._loop = asyncio.get_running_loop()
        for listener in self._listeners:
            self._loop.add_reader(listener, self._accept, listener)
        return int(self._listeners[0].getsockname()[1])

    def _time(self) -> float:
        return self._loop.time()

    async def _close(self) -> None:
        """Closes all connections. What the gRPC server sent before it stopped is passed on first."""
        for listener in self._listeners:
            self._loop.remove_reader(listener)
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # a socket that was given belongs to another process too
            listener.close()
        self._listeners = []
        for connection in [one for one in self._connections if one.inner is None]:
            self._drop(connection)
        give_up_at = self._time() + DRAIN_S_MAX
        while self._connections and self._time() < give_up_at:
            await asyncio.sleep(0.01)
        for connection in list(self._connections):
            self._drop(connection)

    def peer_of(self, peer: str) -> str:
        """The real peer, in gRPC's form: ipv4:10.0.0.7:50123. `peer`: as the gRPC server sees it. UNKNOWN_PEER if the
        connection is gone, or was made around the front: such a connection must not count as one of this host."""
        connection = self._by_name.get(peer)
        return connection.peer if connection is not None else UNKNOWN_PEER

    def prove(self, peer: str, caller: Caller) -> str:
        """Notes, during a call, that the caller at this connection has a valid certificate, or needs none. Returns why
        one of the caller's parties can have no more connections, so that the call is to be refused; empty: it can.
        `peer`: as the gRPC server sees it."""
        connection = self._by_name.get(peer)
        if connection is None or connection.parties:
            return ""
        parties = caller.parties
        full = self._shares.full(parties)
        if full is not None:
            text = self._shares.why_full(full, "connections")
            # Only a connection of the party itself gives way: those of an address may be another tenant's.
            idle = self._idle.get(full if full.kind != ADDRESS or len(parties) == 1 else parties[1])
            if idle:
                self._drop(next(iter(idle)))
                self._refuse(text)
                full = self._shares.full(parties)
            if full is not None:
                self._warn(text)
                return text
        self._forget_unproven(connection)
        self._shares.take(parties)
        connection.parties, connection.serial = parties, caller.serial
        self._tokens.give_back(connection.address)
        self._pass_on_waiting(connection.address)
        return ""

    @contextlib.contextmanager
    def calling(self, peer: str) -> Iterator[None]:
        """Marks a call in progress: meanwhile its connection, once proven, does not give way to another."""
        connection = self._by_name.get(peer)
        if connection is not None:
            connection.calls += 1
            self._forget_idle(connection)
        try:
            yield
        finally:
            if connection is not None:
                connection.calls -= 1
                if not connection.calls and not connection.closed:
                    for party in connection.parties:
                        self._idle.setdefault(party, OrderedDict())[connection] = None

    def end_revoked(self, is_revoked: Callable[[str], bool]) -> None:
        """Ends the proven connections with revoked certificates, as soon as what the server has sent there may have
        passed. `is_revoked`: takes a serial."""
        for connection in self._connections:
            if connection.parties and is_revoked(connection.serial):
                self._loop.call_later(LAST_WORDS_S, self._drop, connection)

    # Accepting.

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            try:
                accepted, at = listener.accept()
            except _WOULD_BLOCK:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._do_without_files(listener, error)
                    return
                continue  # the connection is gone already
            self._take(accepted, *at[:2])

    def _do_without_files(self, listener: socket.socket, error: OSError) -> None:
        """Makes room, as no files are left: a connection gives way, and the listener pauses."""
        self._refuse(f"this process can have no more connections ({error.strerror})")
        self._give_way(self._address_of_most())
        self._loop.remove_reader(listener)

        def resume() -> None:
            if listener in self._listeners:
                self._loop.add_reader(listener, self._accept, listener)

        self._loop.call_later(RETRY_S, resume)

    def _take(self, accepted: socket.socket, host: str, port: int) -> None:
        address, peer = _address_and_peer(host, port)
        if not self._make_room(address):
            _abort(accepted)
            return
        accepted.setblocking(False)
        with contextlib.suppress(OSError):
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = _Connection(accepted, address, peer)
        connection.timer = self._loop.call_later(self._limits.wait_s, self._drop, connection)
        self._connections[connection] = None
        self._unproven[address] += 1
        self._silent.setdefault(address, OrderedDict())[connection] = None
        self._loop.add_reader(accepted, self._begin, connection)

    def _make_room(self, address: str) -> bool:
        """Makes room for one more connection of this address. False: there is no room."""
        most = self._limits.unproven_of_address
        if self._unproven[address] >= most:
            self._refuse(f"{address} has {most} connections that made no call, the most for one address")
            return self._give_way(address)
        if len(self._connections) >= self._limits.connections:
            self._refuse(f"{address} connects, and there are {self._limits.connections} connections, the most in all")
            return self._give_way(self._address_of_most())
        return True

    def _address_of_most(self) -> str:
        """The address that has most unproven connections; empty: no address has any."""
        return max(self._unproven, key=self._unproven.__getitem__, default="")

    def _give_way(self, address: str) -> bool:
        """Drops an unproven connection of this address. False: there is none."""
        for there, oldest in ((self._silent, True), (self._waiting, False), (self._passed_on, True)):
            if address in there:
                self._drop(next(iter(there[address]) if oldest else reversed(there[address])))
                return True
        return False

    def _refuse(self, why: str) -> None:
        """Counts a connection that is refused here, or that gives way."""
        self._refusals["connections"] += 1
        self._warn(why)

    def _warn(self, why: str) -> None:
        self._refused_since += 1
        now = self._time()
        if now >= self._warned_at + WARN_S:
            log.warning("%s: %d connections were refused or ended", why, self._refused_since)
            self._warned_at, self._refused_since = now, 0

    # Passing on.

    def _begin(self, connection: _Connection) -> None:
        """Handles the first byte of a connection, which is not read yet, or the connection's end."""
        self._loop.remove_reader(connection.outer)
        self._forget(self._silent, connection.address, connection)
        self._waiting.setdefault(connection.address, OrderedDict())[connection] = None
        self._pass_on_waiting(connection.address)

    def _pass_on_waiting(self, address: str) -> None:
        """Passes on waiting connections for which there are tokens, in their order."""
        timer = self._token_timers.pop(address, None)
        if timer is not None:
            timer.cancel()
        while waiting := self._waiting.get(address):
            connection = next(iter(waiting))
            if not _is_there(connection.outer):
                self._drop(connection)
            elif lacking_s := self._tokens.take(address):
                self._token_timers[address] = self._loop.call_later(lacking_s, self._pass_on_waiting, address)
                return
            else:
                self._forget(self._waiting, address, connection)
                self._passed_on.setdefault(address, OrderedDict())[connection] = None
                self._pass_on(connection)

    def _pass_on(self, connection: _Connection) -> None:
        if connection.closed:
            return
        try:
            inner = self._connect()
        except _WOULD_BLOCK:  # the server has not accepted the last ones yet
            self._loop.call_later(RETRY_S, self._pass_on, connection)
            return
        except OSError as error:
            log.warning("a connection of %s cannot be passed on: %s", connection.peer, error)
            self._drop(connection)
            return
        connection.end_timer()
        connection.inner = inner
        connection.name = f"unix-abstract:{quote(inner.getsockname()[1:].decode())}"
        self._by_name[connection.name] = connection
        to_server, from_server = (
            _Way(self._loop, *ends) for ends in ((connection.outer, inner), (inner, connection.outer))
        )
        to_server.ended = functools.partial(self._drop, connection)
        # If the server takes no more, `from_server` still passes on what it has sent, and then ends.
        from_server.ended = functools.partial(self._end_of_server, connection)
        from_server.refused = functools.partial(self._drop, connection)
        connection.ways = (to_server, from_server)

    def _connect(self) -> socket.socket:
        inner = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            inner.setblocking(False)
            inner.bind("")  # the system finds a name that nobody has
            inner.connect(self._inner)
        except BaseException:
            inner.close()
            raise
        return inner

    # Ending.

    def _end_of_server(self, connection: _Connection) -> None:
        """Ends a connection after the server: the caller reads what the server sent before, and closes. What the caller
        sends until then is thrown away: closing a socket with unread bytes would take from the caller what it has not
        read yet."""
        for way in connection.ways:
            way.close()
        connection.ways = ()
        connection.end_timer()
        assert connection.inner is not None, "it was passed on"
        connection.inner.close()
        self._by_name.pop(connection.name, None)
        with contextlib.suppress(OSError):
            connection.outer.shutdown(socket.SHUT_WR)
        connection.timer = self._loop.call_later(LINGER_S_MAX, self._drop, connection)
        self._loop.add_reader(connection.outer, self._throw_away, connection)

    def _throw_away(self, connection: _Connection) -> None:
        try:
            content = connection.outer.recv(READ_BYTES)
        except _WOULD_BLOCK:
            return
        except OSError:
            content = b""
        if not content:
            self._drop(connection)

    def _drop(self, connection: _Connection) -> None:
        """Closes a connection and forgets it. Idempotent."""
        if connection.closed:
            return
        connection.closed = True
        connection.end_timer()
        for way in connection.ways:
            way.close()
        self._loop.remove_reader(connection.outer)
        if connection.inner is None:
            _abort(connection.outer)
        else:
            connection.outer.close()
            connection.inner.close()
        self._by_name.pop(connection.name, None)
        self._connections.pop(connection, None)
        if connection.parties:
            self._forget_idle(connection)
            self._shares.give_back(connection.parties)
        else:
            self._forget_unproven(connection)

    def _forget_unproven(self, connection: _Connection) -> None:
        address = connection.address
        self._unproven[address] -= 1
        if not self._unproven[address]:
            del self._unproven[address]
        for there in (self._silent, self._waiting, self._passed_on):
            self._forget(there, address, connection)

    def _forget_idle(self, connection: _Connection) -> None:
        for party in connection.parties:
            self._forget(self._idle, party, connection)

    def _forget(self, of: dict[Key, OrderedDict[_Connection, None]], key: Key, connection: _Connection) -> None:
        there = of.get(key)
        if there is not None:
            there.pop(connection, None)
            if not there:
                del of[key]


@dataclass(eq=False)
class _Connection:
    outer: socket.socket
    """The TCP connection."""
    address: str
    """The address by which the connection is counted."""
    peer: str
    """The peer in gRPC's form."""
    inner: socket.socket | None = None
    """The socket to the gRPC server. None: the connection is not passed on yet."""
    name: str = ""
    """Name of `inner`, as the gRPC server sees it."""
    ways: tuple[_Way, ...] = ()
    timer: asyncio.TimerHandle | None = None
    """Ends the connection if it is not passed on."""
    parties: tuple[Party, ...] = ()
    """Parties that hold the connection; empty: it is not proven."""
    serial: str = ""
    """Serial of the certificate by which the connection is proven."""
    calls: int = 0
    """How many calls are in progress."""
    closed: bool = False

    def end_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class _Way:
    """One direction of a connection. New bytes are read only when all earlier ones are passed on."""

    def __init__(self, loop: asyncio.AbstractEventLoop, source: socket.socket, sink: socket.socket) -> None:
        self._loop, self._source, self._sink = loop, source, sink
        self.ended: Callable[[], None] = self.close
        """Called when the source has closed, or is gone."""
        self.refused: Callable[[], None] = self.close
        """Called when the sink takes no more."""
        self._rest = memoryview(b"")
        self._blocked = False
        loop.add_reader(source, self._read)

    def close(self) -> None:
        self._loop.remove_reader(self._source)
        self._loop.remove_writer(self._sink)

    def _read(self) -> None:
        try:
            content = self._source.recv(READ_BYTES)
        except _WOULD_BLOCK:
            return
        except OSError:
            content = b""
        if not content:
            self.ended()
            return
        self._rest = memoryview(content)
        self._write()

    def _write(self) -> None:
        try:
            self._rest = self._rest[self._sink.send(self._rest) :]
        except _WOULD_BLOCK:
            pass
        except OSError:
            self.refused()
            return
        if bool(self._rest) == self._blocked:
            return
        self._blocked = bool(self._rest)
        if self._blocked:
            self._loop.remove_reader(self._source)
            self._loop.add_writer(self._sink, self._write)
        else:
            self._loop.remove_writer(self._sink)
            self._loop.add_reader(self._source, self._read)


def _listeners(address: str) -> list[socket.socket]:
    """Listening sockets at all addresses of a name. 0.0.0.0 and [::] each stand for all of IPv4 and IPv6, as for gRPC
    itself."""
    host, _, port_text = address.rpartition(":")
    host, port = host.strip("[]"), int(port_text)
    if host in ("", "0.0.0.0", "::"):
        if socket.has_dualstack_ipv6():
            return [_listener(socket.AF_INET6, ("::", port), dual=True)]
        return [_listener(socket.AF_INET, ("0.0.0.0", port))]
    found: list[socket.socket] = []
    try:
        for family, _, _, _, at in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE):
            try:
                found.append(_listener(family, (at[0], found[0].getsockname()[1] if found else port, *at[2:])))
            except OSError as error:
                unusable = error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
                if not unusable:
                    raise
                missing = error
        if not found:
            raise missing
    except OSError:
        for listener in found:
            listener.close()
        raise
    return found


def _listener(family: int, at: tuple[object, ...], *, dual: bool = False) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not dual)
        listener.bind(at)
        return _listen_at(listener)
    except BaseException:
        listener.close()
        raise


def _listen_at(bound: socket.socket) -> socket.socket:
    # The option is needed also for a socket that was bound without it: connections of the former server may still wait
    # for their last packets.
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.listen(BACKLOG)
    bound.setblocking(False)
    return bound


def _address_and_peer(host: str, port: int) -> tuple[str, str]:
    """The address by which a connection is counted, and its peer in gRPC's form."""
    address = canonical(host.partition("%")[0])
    peer = f"ipv6:{quote(f'[{address}]', safe=':')}:{port}" if ":" in address else f"ipv4:{address}:{port}"
    return counted_as(address), peer


def _is_there(connected: socket.socket) -> bool:
    """True if the other side has not closed the connection."""
    poll = select.poll()
    poll.register(connected, select.POLLRDHUP)  # and POLLHUP and POLLERR, always
    return not poll.poll(0)


def _abort(connected: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
    connected.close()


def _connections_that_files_allow() -> int:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    return max(ADDRESS_PART, int(FILES_PART * files) // FILES_A_CONNECTION)
