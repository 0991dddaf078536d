"""A P4Runtime connection for callers that block: finsy's asyncio client in a thread of its own.

Being connected means three things here: the switch speaks P4Runtime, this controller is the primary one (P4Runtime's
arbitration: the highest election id may write), and the switch runs our program, which was loaded anew, so that its
tables are empty and its registers zero. Every call has a bound and raises a `DriverError` that says what to do.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
import time
from collections.abc import Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import finsy as fy
from finsy.proto import p4i, p4r
from google.protobuf import text_format

from wiresum.controller.driver import DriverError

if TYPE_CHECKING:
    from wiresum.compiled import Program

log = logging.getLogger(__name__)

CONNECT_S_MAX = 10.0
"""For a switch that is just being started."""
ATTEMPT_S_MAX = 30.0
"""For one attempt: handshake, and loading the program."""
RETRY_PAUSE_S = 0.2
CALL_S_MAX = 15.0
"""finsy gives each request 10 s; this is for whatever hangs around it."""
CLOSE_S_MAX = 3.0

Entity = fy.P4TableEntry | fy.P4MulticastGroupEntry | fy.P4CounterEntry
Read = TypeVar("Read", bound=Entity)
T = TypeVar("T")


class Client:
    """The connection to one switch, from construction to `close`. Raises `DriverError` if it cannot be had."""

    def __init__(self, address: str, device: int, program: Program, *, connect_s_max: float = CONNECT_S_MAX) -> None:
        self.address = address
        self._lost = ""
        self._closing = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name="wiresum-p4runtime", daemon=True)
        self._thread.start()
        try:
            self._switch = self._connect(device, program, connect_s_max)
        except BaseException:
            self._stop_loop()
            raise

    def __str__(self) -> str:
        return f"the P4 switch at {self.address}"

    @property
    def lost(self) -> str:
        """Why there is no connection any more; empty while there is one."""
        return self._lost

    def room(self, table: str) -> int:
        """How many entries the program's table has room for."""
        return self._switch.p4info.tables[table].size

    def insert(self, what: str, entities: Sequence[Entity]) -> None:
        """`what` is for the error's text. The switch may apply the entries in any order."""
        self._call(self._switch.insert(entities), f"could not add {what}")

    def delete(self, what: str, entities: Sequence[Entity]) -> None:
        """No error for those that the switch does not have."""
        self._call(self._switch.delete(entities, strict=False), f"could not remove {what}")

    def modify(self, what: str, entities: Sequence[Entity]) -> None:
        self._call(self._switch.modify(entities), f"could not set {what}")

    def read(self, what: str, entities: Iterable[Read]) -> list[Read]:
        return self._call(_collect(self._switch, entities), f"could not say {what}")

    def close(self) -> None:
        """Idempotent. The switch goes on with what it has."""
        if self._closing:
            return
        self._closing = True
        future = asyncio.run_coroutine_threadsafe(self._switch.__aexit__(None, None, None), self._loop)
        try:
            future.result(CLOSE_S_MAX)
        except Exception as error:
            log.debug("%s: closing the connection failed: %r", self, error)
        self._stop_loop()

    # Connecting.

    def _connect(self, device: int, program: Program, connect_s_max: float) -> fy.Switch:
        give_up_at = time.monotonic() + connect_s_max
        while True:
            future = asyncio.run_coroutine_threadsafe(self._open(device, program), self._loop)
            try:
                return future.result(ATTEMPT_S_MAX)
            except fy.P4ClientError as error:
                if error.code != fy.GRPCStatusCode.UNAVAILABLE or time.monotonic() >= give_up_at:
                    raise DriverError(self._explain_connecting(error)) from error
            except (concurrent.futures.TimeoutError, concurrent.futures.CancelledError):
                future.cancel()
                raise DriverError(
                    f"{self} accepted a connection but did not get ready within {ATTEMPT_S_MAX:.0f} s: is that a "
                    f"P4Runtime server? Look at its log"
                ) from None
            time.sleep(RETRY_PAUSE_S)

    async def _open(self, device: int, program: Program) -> fy.Switch:
        switch = fy.Switch("switch", self.address, fy.SwitchOptions(device_id=device))
        await switch.__aenter__()
        try:
            if not switch.is_primary:
                raise DriverError(
                    f"another controller programs {self} already (election id {switch.primary_id}): stop that one first"
                )
            if switch.p4info.exists:
                # bmv2 keeps its multicast groups when a program is loaded, but its P4Runtime server forgets them.
                await switch.delete(await _collect(switch, [fy.P4MulticastGroupEntry()]))
            await self._load(switch, program)
        except BaseException:
            await switch.__aexit__(None, None, None)
            raise
        switch.ee.once(fy.SwitchEvent.CHANNEL_DOWN, self._note_loss)
        return switch

    async def _load(self, switch: fy.Switch, program: Program) -> None:
        """By a request of our own, and not with finsy's options: those load a program only if the switch has another
        one, or tell nobody but the log why it was refused."""
        p4info = text_format.Parse(program.p4info, p4i.P4Info())
        request = p4r.SetForwardingPipelineConfigRequest(
            device_id=switch.device_id,
            action=p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT,
            config=fy.P4Schema(p4info, program.device_config).get_pipeline_config(),
        )
        request.election_id.low = switch.election_id
        async with fy.P4Client(self.address) as client:
            await client.request(request)
        switch.p4info.set_p4info(p4info)

    def _explain_connecting(self, error: fy.P4ClientError) -> str:
        if error.code == fy.GRPCStatusCode.UNAVAILABLE:
            return (
                f"cannot reach {self}: {error.message}. Is the switch running (for bmv2: simple_switch_grpc), and is "
                f"this its P4Runtime address?"
            )
        return f"{self} did not take the program: {_reason(error)}"

    def _note_loss(self, _switch: fy.Switch) -> None:
        if not self._closing:
            self._lost = f"the connection to {self} broke, so what it holds is unknown"
            log.error("%s", self._lost)

    # Calling.

    def _call(self, coroutine: Coroutine[Any, Any, T], failure: str) -> T:
        if self._lost or not self._switch.is_up:
            coroutine.close()
            raise DriverError(f"{self._lost or f'{self} is not connected'}: start the switch and this controller anew")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(CALL_S_MAX)
        except fy.P4ClientError as error:
            raise DriverError(f"{self} {failure}: {_reason(error)}") from error
        except (concurrent.futures.TimeoutError, concurrent.futures.CancelledError):
            future.cancel()
            raise DriverError(f"{self} {failure}: it did not answer within {CALL_S_MAX:.0f} s") from None

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        with contextlib.suppress(Exception):
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_S_MAX)


async def _collect(switch: fy.Switch, entities: Iterable[Read]) -> list[Read]:
    answers: Any = switch.read(entities)  # mypy takes finsy's stub of an async generator for a coroutine
    return [entity async for entity in answers]


def _reason(error: fy.P4ClientError) -> str:
    """What the switch said: of a batch, the first update that failed, and how many more did."""
    if not error.details:
        return f"{error.message or 'no reason given'} ({error.code.name})"
    first = next(iter(error.details.values()))
    more = f", and {len(error.details) - 1} more failed" if len(error.details) > 1 else ""
    return f"{first.message or 'no reason given'} ({first.canonical_code.name}){more}"
