"""A blocking P4Runtime client that stays connected; asyncio runs in a thread of its own.

Theory of operation. One task connects, bids, follows who is primary, and probes the switch every PROBE_S (a host that
vanished closes no connection). If any of these steps fails the task begins again, after a pause that doubles up to
RETRY_S_MAX. `trouble` says in a sentence why this controller is not the switch's primary, and is empty if it is. Each
time that trouble ends, `term` grows by one: the switch may then hold anything, so read it first.

An election id has 128 bits. The upper half is this controller's. The lower half counts its connections: the switch may
keep a silently broken connection for a minute, and only this client's next one has a higher id. Whenever no controller
programs the switch, this client bids above the last primary. If none of our ids is above the last primary's, the client
bids the same id, which nobody has any more. So no id that another program has bid, be it the highest there is, keeps
the switch from us once that program is gone.

No controller of ours has an id above ELECTION_ID_MAX. While a program holds the switch with such an id, the switch is
in trouble, but no other controller has taken over: `outranked` stays false.

A client with the id STANDBY_ID is a standby. It never takes the switch from another controller, and has no trouble when
nobody programs the switch. The lower half of its bids is drawn, so that several standbys can wait. A switch may make
one of them primary; this standby programs nothing, so the others have no trouble either. To take over, connect anew
with another id.

Every call has a time limit and raises a `DriverError` that says what to do.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import datetime
import logging
import secrets
import threading
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import finsy as fy
from finsy.proto import p4r

from wiresum.controller.driver import DriverError, OutdatedError, Versions
from wiresum.controller.p4runtime import versions
from wiresum.controller.p4runtime.connection import ELECTION_ID_MAX, LOAD_S_MAX, Connection, Runs, Standing
from wiresum.controller.p4runtime.device_config import Pipeline
from wiresum.join.credentials import CredentialsError

log = logging.getLogger(__name__)

STANDBY_ID = 0
"""The lowest election id, a standby's."""
CONNECTION_BITS = 64
READY_S_MAX = 60.0
"""How long a caller waits for a switch that is just being started."""
HANDSHAKE_S_MAX = 10.0
"""Time from connecting to knowing who is primary."""
RETRY_S_MIN, RETRY_S_MAX = 0.1, 5.0
PROBE_S = 2.0
PROBE_ANSWER_S_MAX = 6.0
"""How long an answer to a probe may take: longer than a busy bmv2 takes, and much shorter than TCP's timeout."""
CALL_S_MAX = 15.0
"""How long a call may take. finsy itself gives each request 10 s."""
CLOSE_S_MAX = 3.0
UPDATES_MAX = 128
"""The most updates of one Write: a refusal has a result for each of them in gRPC metadata, which is limited to 8
KiB."""

T = TypeVar("T")


class Times(NamedTuple):
    """How long a switch may take to answer."""

    handshake_s_max: float = HANDSHAKE_S_MAX
    probe_s: float = PROBE_S
    probe_answer_s_max: float = PROBE_ANSWER_S_MAX
    call_s_max: float = CALL_S_MAX


class _SilentError(Exception):
    """Raised if the switch does not answer."""


class Client:
    """The client of one switch, from construction, which does not wait for a connection, to `close`."""

    def __init__(
        self,
        address: str,
        device: int,
        *,
        election_id: int,
        tls: Path | None = None,
        on_change: Callable[[], None] = lambda: None,
        times: Times | None = None,
    ) -> None:
        self.address = address
        self._times = times or Times()
        self.on_change = on_change
        self._device, self._tls = device, tls
        self.election_id = election_id
        """The id that the client bids: higher than the one it was given, if a controller that is gone had a higher
        one."""
        self._connections = secrets.randbits(CONNECTION_BITS - 2) if election_id == STANDBY_ID else 0
        self._connection: Connection | None = None
        self._held = -1
        """The election id with which this client was last primary; -1: it never was."""
        self._closing = False
        self._changed = threading.Condition()
        self._since = _now()
        self._reachable = False
        self.trouble = f"{self} has not answered yet"
        """Why this controller cannot write to the switch; empty if it can."""
        self.outranked = False
        """True if another controller programs the switch, as far as is known."""
        self.term = 0
        """How often trouble has ended."""
        self.versions = Versions()
        """What the switch has said of its versions since it was last connected."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name="wiresum-p4runtime", daemon=True)
        self._thread.start()
        self._keeper = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()

    def __str__(self) -> str:
        return f"the P4 switch at {self.address}"

    def wait_ready(self, s_max: float = READY_S_MAX) -> None:
        """Waits until there is no trouble. Raises the trouble as a `DriverError` if this takes longer than `s_max`."""
        with self._changed:
            if not self._changed.wait_for(lambda: not self.trouble, s_max):
                raise DriverError(self.trouble)

    # Calls. `what` names in an error what failed.

    def runs(self, pipeline: Pipeline) -> Runs:
        return self._ask(lambda connection: self._runs(connection, pipeline), "could not say which program it runs")

    def load(self, pipeline: Pipeline) -> None:
        """Loads the program: afterwards tables are empty, and all cells new. Raises an `OutdatedError` if the switch
        has another program and accepts no other."""
        try:
            failure = "did not take the program"
            self._ask(lambda connection: _load(connection, pipeline), failure, LOAD_S_MAX + self._times.call_s_max)
        except DriverError as error:
            if why := versions.why_refused(self.versions):
                raise OutdatedError(f"{self} {why}") from error
            raise
        self._note_program(pipeline.p4info.pkg_info.version)

    def write(self, what: str, kind: str, entities: Sequence[p4r.Entity]) -> None:
        """Writes entities, in any order. `what`: names them in an error. `kind`: "INSERT", "MODIFY" or "DELETE" (no
        error for entities that are not there)."""
        verb = {"INSERT": "add", "MODIFY": "set", "DELETE": "remove"}[kind]
        for first in range(0, len(entities), UPDATES_MAX):
            part = entities[first : first + UPDATES_MAX]
            self._ask(lambda connection, part=part: connection.write(kind, part), f"could not {verb} {what}")  # type: ignore[misc]

    def read(self, what: str, entities: Sequence[p4r.Entity]) -> list[p4r.Entity]:
        return self._ask(lambda connection: connection.read(entities), f"could not say {what}")

    def close(self) -> None:
        """Ends the client. Idempotent. The switch continues with what it has."""
        if self._closing:
            return
        self._closing = True
        with contextlib.suppress(concurrent.futures.TimeoutError):
            asyncio.run_coroutine_threadsafe(_cancel([self._keeper]), self._loop).result(CLOSE_S_MAX)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_S_MAX)

    # Staying connected. This part runs in the loop's thread.

    async def _start(self) -> asyncio.Task[None]:
        return asyncio.create_task(self._stay_connected())

    async def _stay_connected(self) -> None:
        pause_s = RETRY_S_MIN
        while True:
            term = self.term
            try:
                async with Connection(self.address, self._device, self._tls) as connection:
                    await self._use(connection)
            except (fy.P4ClientError, _SilentError, CredentialsError) as error:
                self._lose(reason_of(error))
            except Exception as error:  # any such error ends this connection and not the client
                log.debug("%s: the connection ended with %r", self, error, exc_info=True)
                self._lose(f"the connection broke ({error})")
            pause_s = RETRY_S_MIN if self.term > term else min(2 * pause_s, RETRY_S_MAX)
            await asyncio.sleep(pause_s)

    async def _use(self, connection: Connection) -> None:
        """Uses a connection until it fails; returns only by an exception."""
        try:
            standing = await asyncio.wait_for(self._shake_hands(connection), self._times.handshake_s_max)
        except asyncio.TimeoutError:
            raise _SilentError(
                f"it accepted a connection, but did not say within {self._times.handshake_s_max:.0f} s who is "
                f"primary, as a P4Runtime server does"
            ) from None
        self.versions = await self._answer_in_time(connection)
        tasks = [asyncio.create_task(self._follow(connection)), asyncio.create_task(self._probe(connection))]
        self._connection, self._reachable = connection, True
        self._stand(standing)
        try:
            await asyncio.gather(*tasks)
        finally:
            self._connection = None
            await _cancel(tasks)

    async def _shake_hands(self, connection: Connection) -> Standing:
        self._connections += 1
        await connection.bid(self._id())
        return await self._next_standing(connection)

    async def _next_standing(self, connection: Connection) -> Standing:
        standing = await connection.standing()
        # The last primary, which is gone, had a higher id than this controller's state knows.
        while standing.vacant and standing.election_id > connection.election_id and self.election_id != STANDBY_ID:
            await connection.bid(self._id_from(standing.election_id))
            standing = await connection.standing()
        return standing

    def _id(self) -> int:
        return self.election_id << CONNECTION_BITS | self._connections

    def _id_from(self, highest: int) -> int:
        """An id that is not below `highest`, which nobody has."""
        raised = max(self.election_id, (highest >> CONNECTION_BITS) + 1)
        if raised > ELECTION_ID_MAX >> CONNECTION_BITS:
            return highest
        self.election_id = raised
        return self._id()

    async def _follow(self, connection: Connection) -> None:
        while True:
            self._stand(await self._next_standing(connection))

    async def _probe(self, connection: Connection) -> None:
        while True:
            await asyncio.sleep(self._times.probe_s)
            await self._answer_in_time(connection)

    async def _answer_in_time(self, connection: Connection) -> Versions:
        s_max = self._times.probe_answer_s_max
        try:
            return await asyncio.wait_for(connection.check_alive(), s_max)
        except asyncio.TimeoutError:
            raise _SilentError(f"it did not answer for {s_max:.0f} s") from None

    def _stand(self, standing: Standing) -> None:
        standby = self.election_id == STANDBY_ID
        unprogrammed = standing.vacant or standing.election_id >> CONNECTION_BITS == STANDBY_ID
        foreign = standing.election_id > ELECTION_ID_MAX
        ours = standing.election_id == self._held
        if standing.primary:
            self._held = standing.election_id
        self.outranked = not (standing.primary or unprogrammed or (not standby and (foreign or ours)))
        ids = f"election id {standing.election_id >> CONNECTION_BITS}, and ours is {self.election_id}"
        if standing.primary or (standby and unprogrammed):
            self._set_trouble("")
        elif standby:
            self._set_trouble(f"this controller stands by: another one programs {self} ({ids})")
        elif standing.vacant:
            self._set_trouble(f"since {_now()} no controller programs {self} ({ids}): start this one again")
        elif ours:
            self._set_trouble(f"since {_now()} {self} has not noticed that this controller's last connection broke")
        elif foreign:
            self._set_trouble(
                f"since {_now()} another program holds {self}, with an id that no controller of Wiresum begins with "
                f"({ids}): end that one, or start the switch again, and this controller goes on by itself"
            )
        else:
            self._set_trouble(
                f"since {_now()} another controller programs {self} ({ids}): stop that one, and start this one again"
            )

    def _lose(self, reason: str) -> None:
        if self._reachable:
            self._since = _now()
        self._reachable = self.outranked = False
        self._set_trouble(
            f"{self} has been out of reach since {self._since}: {reason.rstrip('.?')}. Is the switch running (for "
            f"bmv2: simple_switch_grpc), and is this its P4Runtime address?"
        )

    def _set_trouble(self, trouble: str) -> None:
        if trouble == self.trouble:
            return
        again = self.term > 0  # an end of trouble is logged if the trouble was
        log.log(
            logging.WARNING if trouble or again else logging.INFO,
            "%s",
            trouble or f"{self} is ready{f', {self.versions}' if str(self.versions) else ''}",
        )
        with self._changed:
            self.trouble = trouble
            self.term += not trouble
            self._changed.notify_all()
        self.on_change()

    # Calling: from any thread.

    def _ask(self, question: Callable[[Connection], Coroutine[Any, Any, T]], failure: str, s_max: float = 0) -> T:
        if self.trouble or self._closing:
            raise DriverError(self.trouble or f"{self} was left")
        s_max = s_max or self._times.call_s_max
        future = asyncio.run_coroutine_threadsafe(self._answer(question), self._loop)
        try:
            return future.result(s_max)
        except (fy.P4ClientError, _SilentError) as error:
            raise DriverError(f"{self} {failure}: {reason_of(error)}") from error
        except concurrent.futures.CancelledError:
            raise DriverError(f"{self} {failure}: the connection broke") from None
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise DriverError(f"{self} {failure}: it did not answer within {s_max:.0f} s") from None

    async def _answer(self, question: Callable[[Connection], Coroutine[Any, Any, T]]) -> T:
        connection = self._connection
        if connection is None:
            raise _SilentError("the connection broke")
        try:
            return await question(connection)
        except AssertionError:  # finsy's, for a request on a connection that was closed meanwhile
            if connection is self._connection:
                raise
            raise _SilentError("the connection broke") from None

    async def _runs(self, connection: Connection, pipeline: Pipeline) -> Runs:
        found = await connection.runs(pipeline)
        self._note_program(connection.program)
        return found

    def _note_program(self, version: str) -> None:
        """Notes the program that the switch runs, unless a software switch has said which program it can run."""
        if not self.versions.digest:
            self.versions = self.versions._replace(program=version)

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        with contextlib.suppress(Exception):
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()


def reason_of(error: BaseException) -> str:
    """The reason that the switch gave; for a batch, the one of the first update that failed."""
    if not isinstance(error, fy.P4ClientError):
        return str(error)
    if not error.details:
        return f"{error.message or 'no reason given'} ({error.code.name})"
    first = next(iter(error.details.values()))
    more = f", and {len(error.details) - 1} more failed" if len(error.details) > 1 else ""
    return f"{first.message or 'no reason given'} ({first.canonical_code.name}){more}"


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _load(connection: Connection, pipeline: Pipeline) -> None:
    if await connection.runs(pipeline) is not Runs.NOTHING:
        await connection.verify(pipeline)  # a switch that refuses continues with its jobs, so it must keep their groups
        # bmv2 keeps its multicast groups when a program is loaded, but its P4Runtime server forgets them.
        all_groups = p4r.Entity()
        all_groups.packet_replication_engine_entry.multicast_group_entry.multicast_group_id = 0
        await connection.write("DELETE", await connection.read([all_groups]))
    await connection.load(pipeline)


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
