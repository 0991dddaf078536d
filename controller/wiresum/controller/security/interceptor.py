"""Checks each call before the service sees it: who calls, whether the caller may, how often, and whether the message is
well-formed.

gRPC tells an interceptor only the method; peer and certificate are known once the call is served. So the interceptor
replaces each method by one that takes a stream of bytes (on the wire all kinds of methods are the same). This method
checks the caller before it reads, waits for the first message for a bounded time, checks the message's size before
parsing, and answers a malformed one. Only then it calls the service's method, with a context like gRPC's.

Every refusal, also the service's own, is counted by reason and written to the audit log.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn

import grpc
import grpc.aio

from wiresum import join
from wiresum.controller.security.audit import AuditLog
from wiresum.controller.security.caller import Caller, identify, set_caller
from wiresum.controller.security.front import Front
from wiresum.controller.security.rates import TokenBuckets
from wiresum.controller.security.shares import Party, Shares

log = logging.getLogger(__name__)

FIRST_MESSAGE_S_MAX = 10.0
CALLS_AT_ONCE_MAX = 17 * 1024
"""How many calls may be in progress, with waiting Joins and Attend streams. Callers share this number as shares.py
says. There may be as many calls as connections, since a worker has one or two in progress. gRPC itself has no limit: it
would refuse without a reason, whoever calls."""
FULL_RETRY_S = (1.0, 5.0)
"""Range of seconds after which a caller may ask again whose share of the calls or connections is taken. The value is
random, so that workers which are refused together do not come again together."""
REQUESTS_PER_SECOND, REQUESTS_BURST = 500.0, 2000
"""Calls of one certificate's name at one address, on average and at once: far more than the workers of a host make, of
whom each joins, attends and leaves. Callers wait as long as they are told."""
STREAM_MESSAGES_PER_SECOND = 10.0
STREAM_MESSAGES_BURST = 100
"""Messages of one stream, which is read no faster. Heartbeats come twice a second; a tenant may have thousands of
streams."""

Reader = Callable[[], Awaitable[Any]]


def message_bytes_max(method: str) -> int:
    """The largest message of a method of the join service. In two methods, workers that have halted send their
    positions."""
    return join.POSITIONS_BYTES_MAX if method in ("Attend", "Join") else join.MESSAGE_BYTES_MAX


class Interceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """gRPC interceptor. All state belongs to the event loop of the server."""

    def __init__(
        self,
        roles: Mapping[str, frozenset[str]],
        audit: AuditLog,
        front: Front,
        refusals: Counter[str],
        *,
        is_revoked: Callable[[str], bool] = lambda _serial: False,
        requests_per_second: float = REQUESTS_PER_SECOND,
        requests_burst: int = REQUESTS_BURST,
        message_bytes_max: Callable[[str], int] = message_bytes_max,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`roles`: the roles of which a caller needs one, by the full name of the service, or of a method that differs.
        Methods of other services do not exist. `refusals`: counts refused calls. `is_revoked`: takes a certificate's
        serial. `message_bytes_max`: takes the name of the method."""
        self._roles = roles
        self.audit = audit
        self._is_revoked = is_revoked
        self._message_bytes_max = message_bytes_max
        self.clock = clock
        self._buckets = TokenBuckets(requests_per_second, requests_burst, clock=clock)
        self._shares = Shares(CALLS_AT_ONCE_MAX)
        self._in_progress: dict[_Context, asyncio.Task[Any]] = {}
        self._front = front
        self.refusals = refusals
        """Refused calls by reason: revoked, role, rate, calls, connections, malformed, oversized, unimplemented;
        silent: no message, or one too large for gRPC; or a status code of the service, in lower case."""

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        handler = await continuation(handler_call_details)
        path = handler_call_details.method.strip("/")
        service, _, method = path.rpartition("/")
        if handler is None or service not in self._roles:
            self.refusals["unimplemented"] += 1
            return None
        call = _Method(method, self._roles.get(path, self._roles[service]), handler)

        async def serve(_requests: object, context: Any) -> None:
            await self._serve(call, context)

        return grpc.stream_stream_rpc_method_handler(
            serve, request_deserializer=None, response_serializer=handler.response_serializer
        )

    async def _serve(self, method: _Method, context: Any) -> None:
        peer = context.peer()
        caller = identify(self._front.peer_of(peer), context.auth_context())
        set_caller(caller)
        guarded = _Context(self, method, caller, context)
        task = asyncio.current_task()
        assert task is not None, "gRPC serves each call in a task of its own"
        self._in_progress[guarded] = task
        try:
            with self._front.calling(peer):
                await self._admit(guarded)
                await method.call(guarded)
        except Exception as error:
            if guarded.outcome == "OK":
                guarded.outcome = _code_name(context) if isinstance(error, grpc.aio.AbortError) else "exception"
                self.refusals[guarded.outcome.lower()] += 1
            raise
        except asyncio.CancelledError:
            if guarded.is_revoked:
                await self._refuse_revoked(guarded)
            guarded.outcome = "CANCELLED"  # the caller hung up, as a worker does at the end of an Attend
            raise
        finally:
            del self._in_progress[guarded]
            if guarded.parties:
                self._shares.give_back(guarded.parties)
            self.audit.write(
                caller, method.name, guarded.request, guarded.outcome, guarded.text or context.details() or "",
                self.clock() - guarded.began_at,
            )  # fmt: skip

    def end_revoked(self) -> None:
        """Ends the calls in progress with certificates that have been revoked, and tells the callers why."""
        for context, task in self._in_progress.items():
            if self._is_revoked(context.caller.serial) and context.outcome == "OK":
                context.is_revoked = True
                task.cancel()

    async def _admit(self, context: _Context) -> None:
        caller = context.caller
        if self._is_revoked(caller.serial):
            await self._refuse_revoked(context)
        if not caller.has_role(*context.method.roles):
            needed = sorted(context.method.roles)
            await context.refuse(
                "role",
                grpc.StatusCode.PERMISSION_DENIED,
                f"the certificate of {caller} does not have the role {' or '.join(needed)}, as this method needs: "
                f"take pki/{needed[0]} of `wiresum ca init`, or one of `wiresum ca issue {needed[0]}`",
            )
        parties = caller.parties
        if (full := self._shares.full(parties)) is not None:
            await self._refuse_full(context, "calls", self._shares.why_full(full, "calls in progress"))
        self._shares.take(parties)
        context.parties = parties
        # The key has both: a flood must not slow down others with the same certificate, or at the same host.
        lacking_s = self._buckets.take(f"{caller.counted_address} {caller.name}")
        if lacking_s:
            await context.refuse(
                "rate",
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{caller} asks too often: again in {lacking_s:.1f} s",
                retry_s=lacking_s,
            )
        if why := self._front.prove(context.peer(), caller):
            await self._refuse_full(context, "connections", why)
        await context.take_first()

    async def _refuse_full(self, context: _Context, reason: str, why: str) -> NoReturn:
        retry_s = random.uniform(*FULL_RETRY_S)
        await context.refuse(reason, grpc.StatusCode.RESOURCE_EXHAUSTED, why, retry_s=retry_s)

    async def _refuse_revoked(self, context: _Context) -> NoReturn:
        await context.refuse(
            "revoked",
            grpc.StatusCode.UNAUTHENTICATED,
            f"the certificate of {context.caller} was revoked: ask whoever issued it for another",
        )

    async def parse(self, context: _Context, raw: bytes) -> Any:
        bytes_max = self._message_bytes_max(context.method.name)
        if len(raw) > bytes_max:
            await context.refuse(
                "oversized",
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"the message has {len(raw)} bytes, and no message of this method has over {bytes_max}",
            )
        try:
            return context.method.handler.request_deserializer(raw)
        except Exception:  # protobuf's DecodeError, and whatever else malformed bytes cause
            await context.refuse("malformed", grpc.StatusCode.INVALID_ARGUMENT, "this is no message of this method")


class _Method:
    """A method of the service, called as its kind requires."""

    def __init__(self, name: str, roles: frozenset[str], handler: Any) -> None:
        self.name = name
        self.roles = roles
        self.handler = handler
        self._behaviour = next(
            behaviour
            for behaviour in (handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream)
            if behaviour is not None
        )

    async def call(self, context: _Context) -> None:
        """Calls the method. A method with streams reads them from its context, and writes to it."""
        # No variable holds the message here: a method that waits for long drops what it does not need.
        answer = await self._behaviour(None if self.handler.request_streaming else await context.first(), context)
        if not self.handler.response_streaming:
            await context.write(answer)


class _Context:
    """A call's context as the service sees it: gRPC's own, but with parsed messages."""

    def __init__(self, interceptor: Interceptor, method: _Method, caller: Caller, context: Any) -> None:
        self.method = method
        self.caller = caller
        self.began_at = interceptor.clock()
        self.outcome = "OK"
        self.text = ""
        self.request: Any = None
        """The first message."""
        self.parties: tuple[Party, ...] = ()
        """Parties that hold the call; empty until it is admitted."""
        self.is_revoked = False
        self._interceptor = interceptor
        self._context = context
        self._first: Any = grpc.aio.EOF
        """The first message's bytes, until the service reads it."""
        self._pace = TokenBuckets(
            STREAM_MESSAGES_PER_SECOND, STREAM_MESSAGES_BURST, keys_max=1, clock=interceptor.clock
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def first(self) -> Any:
        """Reads the message of a method that takes a single one."""
        message = await self.read()
        if message is grpc.aio.EOF:
            await self.refuse("silent", grpc.StatusCode.INVALID_ARGUMENT, "the call came without a message")
        return message

    async def take_first(self) -> None:
        try:
            self._first = await asyncio.wait_for(self._context.read(), FIRST_MESSAGE_S_MAX)
        except asyncio.TimeoutError:
            await self.refuse(
                "silent",
                grpc.StatusCode.DEADLINE_EXCEEDED,
                f"no message came within {FIRST_MESSAGE_S_MAX:.0f} s of the call",
            )

    async def read(self) -> Any:
        """Reads the next message, as gRPC's own context does."""
        raw, self._first = self._first, grpc.aio.EOF
        if self.request is not None:
            raw = await self._context.read()
            while raw is not grpc.aio.EOF and (lacking_s := self._pace.take("")):
                await asyncio.sleep(lacking_s)
        if raw is grpc.aio.EOF:
            return raw
        message = await self._interceptor.parse(self, raw)
        if self.request is None:
            self.request = message
        return message

    def keep(self, request: Any) -> None:
        """Keeps `request` in place of the first message, which may be large: what the audit log needs when the call
        ends."""
        self.request = request

    def note_begun(self) -> None:
        """Writes the beginning of a long call to the audit log."""
        self._interceptor.audit.write(self.caller, self.method.name, self.request, "BEGUN", "", 0.0)

    async def refuse(self, reason: str, code: grpc.StatusCode, text: str, *, retry_s: float | None = None) -> NoReturn:
        self.outcome, self.text = reason, text
        self._interceptor.refusals[reason] += 1
        trailers = [(join.REFUSED_KEY, "1")]
        if retry_s is not None:
            trailers.append((join.RETRY_KEY, str(max(1, int(1000 * retry_s)))))
        await self._context.abort(code, text, tuple(trailers))
        raise AssertionError("abort raises")


def _code_name(context: Any) -> str:
    code = context.code()
    return str(getattr(code, "name", None) or _CODE_NAMES.get(code, "UNKNOWN"))


_CODE_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}
