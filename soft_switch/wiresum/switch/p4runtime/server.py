"""The P4Runtime service: gRPC around `Arbitration` and `SoftwareDevice`.

Theory of operation. gRPC's asyncio server runs in a thread of its own: a controller's stream waits most of the time,
and costs little as a coroutine. The switch's state is used in one other thread only, which may wait for the data
threads. So requests are strictly serial, as the specification wants (section 12.1). Arbitration is decided in that same
thread: no update of an old primary is made after the new one was told that it is the primary.

Bounds: on the size of a request, streams, entries, and the notifications that wait for a controller (one that does not
read them loses its stream). Who may call, and how often, is checked as for the join service.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import itertools
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import grpc
import grpc.aio
from finsy.proto import p4r, p4r_grpc, rpc_code, rpc_status

from wiresum.controller import DriverError
from wiresum.controller.config import SecurityConfig
from wiresum.controller.p4runtime import versions
from wiresum.controller.security import CONNECTION_OPTIONS, CONTROLLER, OPERATOR, ROLES, Security
from wiresum.controller.service.server_thread import ServerThread
from wiresum.switch.p4runtime.arbitration import DEFAULT_ROLE_ONLY, Arbitration, Stream
from wiresum.switch.p4runtime.device import GetConfig, SetConfig, SoftwareDevice
from wiresum.switch.p4runtime.mailbox import Mailbox
from wiresum.switch.p4runtime.refusal import Refusal, denied, exhausted, invalid, not_found, unimplemented
from wiresum.switch.software_switch import SoftwareSwitch

log = logging.getLogger(__name__)

API_VERSION = "1.4.1"
REQUEST_BYTES_MAX = 4 << 20
"""The most bytes of a request; full tables take less than a megabyte."""
UPDATES_MAX = 16_384
"""The most updates in one Write."""
REQUESTS_PER_SECOND, REQUESTS_BURST = 10_000.0, 10_000
"""Rates so high that a controller may ask as fast as it is answered."""
NOTIFICATIONS_MAX = 256
ENTITIES_MAX = 65_536
"""The most entities in the answers to one Read: more than there are, if each is asked for once."""
ENTITIES_A_RESPONSE = 1000
DETAILS_BYTES_MAX = 7000
"""The most bytes of the updates' results, which go into the answer's metadata, of which gRPC accepts 8 KiB."""
SILENCE_S_MAX = 10.0
"""A thread that has not run for this long counts as hanging."""
STOP_S_MAX = 15.0
"""How long `stop` waits: longer than a data thread may take to answer."""

_OPTIONS = (
    ("grpc.max_receive_message_length", REQUEST_BYTES_MAX),
    # A second switch at the same port must fail, not share the port's connections with the first.
    ("grpc.so_reuseport", 0),
    # A frozen or cut-off controller keeps the switch for so long.
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # Controllers send keepalives too, more often than gRPC allows by default.
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.keepalive_permit_without_calls", 1),
    *CONNECTION_OPTIONS,
)

SERVED = {
    "p4.v1.P4Runtime": frozenset({CONTROLLER}),
    "p4.v1.P4Runtime/GetForwardingPipelineConfig": frozenset({CONTROLLER, OPERATOR}),
    "p4.v1.P4Runtime/Read": frozenset({CONTROLLER, OPERATOR}),
    "p4.v1.P4Runtime/Capabilities": frozenset(ROLES),
}
"""For each service, or method that differs, the roles that may call it. Even reading needs a role: entries hold the
jobs' keys."""

T = TypeVar("T")


class P4RuntimeServer(ServerThread):
    """Serves a switch from `start` to `stop`."""

    def __init__(
        self, switch: SoftwareSwitch, device_id: int = 0, *, tls: Path | None = None, insecure: bool = False
    ) -> None:
        """`tls`: a folder; only clients with a certificate of its authority may connect, and only controllers may
        write. None: messages are not encrypted, which is allowed on loopback, or if `insecure` is set. Raises
        `CredentialsError`."""
        super().__init__("wiresum-p4runtime")
        self._switch, self._device_id = switch, device_id
        self.security = Security(
            SecurityConfig(tls=tls, insecure=insecure),
            served=SERVED,
            requests_per_second=REQUESTS_PER_SECOND,
            requests_burst=REQUESTS_BURST,
            message_bytes_max=lambda _method: REQUEST_BYTES_MAX,
        )
        self._heard_at = 0.0

    @property
    def is_alive(self) -> bool:
        """True if the server's thread answers. Must be asked regularly."""
        if self.runs and self._loop is not None:
            self._loop.call_soon_threadsafe(self._hear)
        return time.monotonic() < self._heard_at + SILENCE_S_MAX

    def _hear(self) -> None:
        self._heard_at = time.monotonic()

    def stop(self) -> None:
        """Ends the server. Idempotent. The switch continues with what it has."""
        self._end(STOP_S_MAX)

    @contextlib.asynccontextmanager
    async def _serving(self, listen: str) -> AsyncIterator[int]:
        server = grpc.aio.server(options=_OPTIONS, interceptors=[self.security.interceptor])
        with contextlib.closing(P4RuntimeService(self._switch, self._device_id)) as service:
            p4r_grpc.add_P4RuntimeServicer_to_server(service, server)  # type: ignore[arg-type]
            async with self.security.listening(server, listen) as port:
                await server.start()
                self._hear()
                yield port
                await server.stop(0)
                # Streams that were cut off leave the arbitration, in the service's thread.
                rest = asyncio.all_tasks() - {asyncio.current_task()}
                for task in rest:
                    task.cancel()
                await asyncio.gather(*rest, return_exceptions=True)


class P4RuntimeService:
    """The methods of p4runtime.proto, in one event loop."""

    def __init__(self, switch: SoftwareSwitch, device_id: int) -> None:
        self._device_id = device_id
        self._loop = asyncio.get_running_loop()
        self._worker = concurrent.futures.ThreadPoolExecutor(1, "wiresum-p4runtime-device")
        # The following fields are for the worker's thread only:
        self._device = SoftwareDevice(switch)
        self._arbitration = Arbitration(device_id)

    def close(self) -> None:
        self._worker.shutdown(wait=True, cancel_futures=True)

    async def Capabilities(self, request: p4r.CapabilitiesRequest, context: Any) -> p4r.CapabilitiesResponse:  # noqa: N802
        if request.device_id:
            await self._answer(context, lambda: self._check_device(request.device_id))
        answer = p4r.CapabilitiesResponse(p4runtime_api_version=API_VERSION)
        versions.say(answer)
        return answer

    async def SetForwardingPipelineConfig(  # noqa: N802
        self, request: SetConfig, context: Any
    ) -> p4r.SetForwardingPipelineConfigResponse:
        def load() -> None:
            if request.action == SetConfig.VERIFY:  # vERIFY changes nothing, so not only the primary may ask
                self._check_device(request.device_id)
            else:
                self._check_writer(request)
            self._device.set_config(request.action, request.config if request.HasField("config") else None)

        await self._answer(context, load)
        return p4r.SetForwardingPipelineConfigResponse()

    async def GetForwardingPipelineConfig(  # noqa: N802
        self, request: GetConfig, context: Any
    ) -> p4r.GetForwardingPipelineConfigResponse:
        def get() -> p4r.GetForwardingPipelineConfigResponse:
            self._check_device(request.device_id)
            return self._device.get_config(request.response_type)

        return await self._answer(context, get)

    async def Write(self, request: p4r.WriteRequest, context: Any) -> p4r.WriteResponse:  # noqa: N802
        def write() -> list[Refusal | None]:
            self._check_writer(request)
            if request.atomicity != p4r.WriteRequest.CONTINUE_ON_ERROR:
                raise unimplemented("this switch makes each update by itself: CONTINUE_ON_ERROR")
            if len(request.updates) > UPDATES_MAX:
                raise exhausted(f"a Write has at most {UPDATES_MAX} updates: send them in several")
            return self._device.loaded.write(request.updates)

        results = await self._answer(context, write)
        if any(results):
            await _refuse_batch(context, results)
        return p4r.WriteResponse()

    async def Read(self, request: p4r.ReadRequest, context: Any) -> None:  # noqa: N802
        def read() -> list[p4r.Entity]:
            self._check_device(request.device_id)
            if request.role:
                raise not_found(DEFAULT_ROLE_ONLY)
            found = list(itertools.islice(self._device.loaded.read(request.entities), ENTITIES_MAX + 1))
            if len(found) > ENTITIES_MAX:
                raise exhausted(f"a Read gives at most {ENTITIES_MAX} entities: ask for less at a time")
            return found

        entities: Iterator[p4r.Entity] = iter(await self._answer(context, read))
        while some := list(itertools.islice(entities, ENTITIES_A_RESPONSE)):
            await context.write(p4r.ReadResponse(entities=some))

    async def StreamChannel(self, _messages: object, context: Any) -> None:  # noqa: N802
        mailbox = Mailbox(NOTIFICATIONS_MAX)
        stream = Stream(lambda update: self._post(mailbox, update))
        await self._answer(context, lambda: self._arbitration.open(stream))
        reader = asyncio.create_task(self._read_stream(stream, mailbox, context))
        try:
            while (message := await mailbox.get()) is not None:
                await context.write(message)
        except Refusal as refusal:
            await _refuse(context, refusal)
        finally:
            reader.cancel()
            # This also runs if the call is cancelled: the others must be notified.
            await asyncio.shield(self._do(lambda: self._arbitration.close(stream)))

    # Streams.

    async def _read_stream(self, stream: Stream, mailbox: Mailbox, context: Any) -> None:
        """Reads messages until the controller closes its side, or is gone."""
        try:
            while (message := await context.read()) is not grpc.aio.EOF:
                if error := await self._do(functools.partial(self._hear, stream, message)):
                    mailbox.put(error)
        except Refusal as refusal:
            mailbox.close(refusal)
        except Exception as error:
            log.debug("a controller's stream broke: %r", error)
        finally:
            mailbox.close()

    def _hear(self, stream: Stream, message: p4r.StreamMessageRequest) -> p4r.StreamMessageResponse | None:
        """Handles a message, in the worker's thread. Returns an error for the stream, or raises a `Refusal` that ends
        the stream."""
        kind = message.WhichOneof("update")
        if kind == "arbitration":
            self._arbitration.update(stream, message.arbitration)
            return None
        return _stream_error(kind)

    def _post(self, mailbox: Mailbox, update: p4r.MasterArbitrationUpdate) -> None:
        """Queues a notification. Called from the worker's thread."""
        self._loop.call_soon_threadsafe(mailbox.put, p4r.StreamMessageResponse(arbitration=update))

    # Calls.

    async def _do(self, action: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(self._worker, action)

    async def _answer(self, context: Any, action: Callable[[], T]) -> T:
        """Runs `action` in the worker's thread; an error ends the call."""
        try:
            return await self._do(action)
        except Refusal as refused:
            await _refuse(context, refused)
        except DriverError as error:
            log.error("%s", error)
            await context.abort(grpc.StatusCode.INTERNAL, str(error))
            raise

    def _check_device(self, number: int) -> None:
        if number != self._device_id:
            raise not_found(f"this switch is device {self._device_id}, not {number}")

    def _check_writer(self, request: Any) -> None:
        self._check_device(request.device_id)
        if request.role or request.role_id:
            raise not_found(DEFAULT_ROLE_ONLY)
        if not self._arbitration.may_write(request.election_id):
            raise denied("only the primary controller may write: open a stream, and send a higher election id")


async def _refuse(context: Any, refused: Refusal) -> NoReturn:
    await context.abort(refused.code, str(refused))
    raise AssertionError("abort raises")


async def _refuse_batch(context: Any, results: list[Refusal | None]) -> NoReturn:
    """Ends the call with the result of each update: a code, and a text if all texts fit gRPC's metadata. If not even
    the codes fit, only the first failure is reported."""
    failed = [result for result in results if result is not None]
    text = f"{len(failed)} of {len(results)} updates failed, first: {failed[0]}"
    for wordy in (True, False):
        status = _status(text, results, wordy=wordy).SerializeToString()
        if len(status) <= DETAILS_BYTES_MAX:
            context.set_trailing_metadata((("grpc-status-details-bin", status),))
            break
    await context.abort(grpc.StatusCode.UNKNOWN, text)
    raise AssertionError("abort raises")


def _status(text: str, results: list[Refusal | None], *, wordy: bool) -> rpc_status.Status:
    status = rpc_status.Status(code=rpc_code.UNKNOWN, message=text)
    for result in results:
        error = p4r.Error(canonical_code=rpc_code.OK)
        if result is not None:
            error = p4r.Error(canonical_code=result.number, message=str(result) if wordy else "")
        status.details.add().Pack(error, type_url_prefix="")
    return status


def _stream_error(kind: str | None) -> p4r.StreamMessageResponse:
    """The answer to a message that not even a primary controller may send, so it is the same for every controller."""
    if kind == "packet":
        details, refused = "packet_out", unimplemented("this switch sends no packets for controllers")
    elif kind == "digest_ack":
        details, refused = "digest_list_ack", unimplemented("this switch sends no digests that could be acknowledged")
    elif kind is None:
        details, refused = "other", invalid("a stream message is missing")
    else:
        details, refused = "other", unimplemented(f"this switch has nothing for a {kind}")
    response = p4r.StreamMessageResponse()
    getattr(response.error, details).SetInParent()
    response.error.canonical_code, response.error.message = refused.number, str(refused)
    return response
