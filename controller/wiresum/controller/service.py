"""The join service: `Jobs`, gRPC around it, and a switch behind it.

gRPC's asyncio server, because nearly every call here is one that waits: each worker holds an Attend stream for as
long as it is a member, and a Join until the last worker has come. A threaded server would need a thread for each of
them; here they are coroutines of one loop, which is also what makes `Jobs` safe without a lock: only the loop's
thread touches it.

Calls to the switch may block, so they run in a thread of their own, one at a time and in the order in which `Jobs`
asked for them, and heartbeats are answered meanwhile.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

import grpc
import grpc.aio

from wiresum import join
from wiresum.controller import report
from wiresum.controller.driver import DriverError, JobCounters, SwitchDriver
from wiresum.controller.jobs import Admit, Close, Evict, Grant, Jobs, Limits, Output, Refuse, Tell, Worker
from wiresum.controller.refusal import Refusal
from wiresum.controller.switch_calls import SwitchCalls
from wiresum.join import join_pb2_grpc

log = logging.getLogger(__name__)

TICK_S = 0.1
FIRST_HEARTBEAT_S_MAX = 5.0
"""A stream on which nobody says who they are is closed after this."""
CALLS_MAX = 8192
"""Calls in progress, waiting Joins and Attend streams among them; gRPC refuses more with RESOURCE_EXHAUSTED."""
STOP_MARGIN_S = 5.0

_OPTIONS = (
    ("grpc.max_receive_message_length", join.MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", join.LIST_BYTES_MAX),
    # A second switch at the same port must fail, not share the port's connections with the first.
    ("grpc.so_reuseport", 0),
    # Notices within half a minute when the host of a worker that waits in Join has vanished without a word. (For one
    # that attends, heartbeats do that sooner.)
    ("grpc.keepalive_time_ms", 15_000),
    ("grpc.keepalive_timeout_ms", 10_000),
)

T = TypeVar("T")


@dataclass
class _Mailbox:
    """What is to be sent on one Attend stream: the end, or else a pulse. Pulses that pile up count as one."""

    ended: join.JobEnded | None = None
    closed: bool = False
    filled: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, *, ended: join.JobEnded | None = None, closed: bool = False) -> None:
        self.ended = self.ended or ended
        self.closed |= closed
        self.filled.set()


class JoinService(join_pb2_grpc.JoinServiceServicer):
    """Everything here runs in one event loop, but for the calls to the switch."""

    def __init__(self, driver: SwitchDriver, limits: Limits, clock: Callable[[], float]) -> None:
        self._driver = driver
        self._clock = clock
        self._jobs = Jobs(driver.sizes, driver.endpoint, limits)
        self._answers: dict[Worker, asyncio.Future[join.JoinReply]] = {}
        self._mailboxes: dict[Worker, _Mailbox] = {}
        self._switch_calls = SwitchCalls(asyncio.get_running_loop())
        self._tasks: set[asyncio.Task[None]] = set()

    # The service, as join.proto describes it.

    async def Join(self, request: join.JoinRequest, context: Any) -> join.JoinReply:  # noqa: N802
        try:
            worker = self._jobs.ask(request, self._clock())
        except Refusal as refusal:
            await _refuse(context, refusal)
        answer: asyncio.Future[join.JoinReply] = asyncio.get_running_loop().create_future()
        self._answers[worker] = answer
        self._carry_out()
        try:
            return await answer
        except Refusal as refusal:
            await _refuse(context, refusal)
        except asyncio.CancelledError:
            self._jobs.withdraw(worker, self._clock())
            raise
        finally:
            del self._answers[worker]
            self._carry_out()

    async def Attend(self, requests: object, context: Any) -> None:  # noqa: N802
        try:
            first = await asyncio.wait_for(context.read(), FIRST_HEARTBEAT_S_MAX)
            if first is grpc.aio.EOF:
                raise Refusal("INVALID_ARGUMENT", "an Attend stream must begin with a heartbeat")
            worker = self._jobs.attend(first.member, self._clock())
        except asyncio.TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "no heartbeat came on this Attend stream")
        except Refusal as refusal:
            await _refuse(context, refusal)
        mailbox = self._open_mailbox(worker)
        stream = worker.stream
        self._hear(worker, mailbox, first)
        self._carry_out()
        reader = asyncio.create_task(self._read(worker, mailbox, context))
        try:
            await self._write(worker, mailbox, context)
        finally:
            reader.cancel()
            if self._mailboxes.get(worker) is mailbox:
                del self._mailboxes[worker]
            self._jobs.broken(worker, stream, self._clock())
            self._carry_out()

    async def Leave(self, request: join.Member, context: Any) -> join.LeaveReply:  # noqa: N802
        await self._granted(context, lambda: self._jobs.leave(request, self._clock()))
        return join.LeaveReply()

    async def Abort(self, request: join.AbortRequest, context: Any) -> join.AbortReply:  # noqa: N802
        await self._granted(context, lambda: self._jobs.abort(request.member, request.reason, self._clock()))
        return join.AbortReply()

    async def Diagnose(self, request: join.Member, context: Any) -> join.Diagnosis:  # noqa: N802
        job = await self._granted(context, lambda: self._jobs.job_of(request))
        return report.diagnosis(job, (await self._counters([job.number])).get(job.number, JobCounters()), self._clock())

    async def ListJobs(self, request: join.ListJobsRequest, context: Any) -> join.ListJobsReply:  # noqa: N802
        counters = await self._counters([job.number for job in self._jobs.all() if job.entry])
        return report.listing(self._jobs.all(), self._jobs.leases, counters, self._clock())

    # From start to stop.

    async def tick_forever(self) -> NoReturn:
        while True:
            await asyncio.sleep(TICK_S)
            try:
                self._jobs.tick(self._clock())
                self._carry_out()
            except Exception:  # without ticks no silence would ever be noticed
                log.exception("a tick of the join service failed; it goes on")

    async def close(self, reason: str, grace_s: float) -> None:
        """Ends all jobs, and waits until the workers have been told and the switch has forgotten them."""
        self._jobs.close(reason, self._clock())
        self._carry_out()
        give_up_at = time.monotonic() + grace_s
        while len(self._jobs) and time.monotonic() < give_up_at:
            await asyncio.sleep(0.01)
        self._switch_calls.close()

    # Streams.

    def _open_mailbox(self, worker: Worker) -> _Mailbox:
        if worker in self._mailboxes:
            self._mailboxes[worker].put(closed=True)
        mailbox = self._mailboxes[worker] = _Mailbox()
        return mailbox

    def _hear(self, worker: Worker, mailbox: _Mailbox, heartbeat: join.Heartbeat) -> None:
        self._jobs.beat(worker, heartbeat.round_newest, self._clock())
        mailbox.put()

    async def _read(self, worker: Worker, mailbox: _Mailbox, context: Any) -> None:
        """Until the worker closes its side, or is gone: then the stream is over."""
        try:
            while (heartbeat := await context.read()) is not grpc.aio.EOF:
                self._hear(worker, mailbox, heartbeat)
        except Exception as error:
            log.debug("the stream of %s broke: %s", worker, error)
        finally:
            mailbox.put(closed=True)

    async def _write(self, worker: Worker, mailbox: _Mailbox, context: Any) -> None:
        """Sends what comes into the mailbox. A worker that does not read for too long has broken its stream."""
        try:
            while (event := await self._next_event(mailbox)) is not None:
                await asyncio.wait_for(context.write(event), self._jobs.limits.heartbeat_lost_ms / 1000)
                if event.HasField("ended"):
                    self._jobs.told(worker, self._clock())
                    return
        except asyncio.TimeoutError:
            log.info("%s does not read its stream", worker)

    async def _next_event(self, mailbox: _Mailbox) -> join.JobEvent | None:
        """None: the stream is to be closed."""
        await mailbox.filled.wait()
        mailbox.filled.clear()
        if mailbox.ended is not None:
            return join.JobEvent(ended=mailbox.ended)
        return None if mailbox.closed else join.JobEvent(pulse=join.Pulse())

    # What Jobs wants done.

    def _carry_out(self) -> None:
        for output in self._jobs.take_outputs():
            self._carry_out_one(output)

    def _carry_out_one(self, output: Output) -> None:
        match output:
            case Grant(worker, reply):
                self._answer(worker, lambda answer: answer.set_result(reply))
            case Refuse(worker, refusal):
                self._answer(worker, lambda answer: answer.set_exception(refusal))
            case Tell(worker, ended):
                if worker in self._mailboxes:
                    self._mailboxes[worker].put(ended=ended)
            case Close(worker):
                if worker in self._mailboxes:
                    self._mailboxes[worker].put(closed=True)
            case Admit(entry):
                call = self._switch_calls.submit(functools.partial(self._driver.admit, entry))
                self._spawn(self._await_admission(entry.job, call))
            case Evict(number):
                call = self._switch_calls.submit(functools.partial(self._driver.evict, number))
                self._spawn(self._await_eviction(number, call))

    def _answer(self, worker: Worker, how: Callable[[asyncio.Future[join.JoinReply]], None]) -> None:
        answer = self._answers.get(worker)
        if answer is not None and not answer.done():
            how(answer)

    async def _await_admission(self, number: int, call: Awaitable[None]) -> None:
        try:
            await call
            self._jobs.admitted(number, self._clock())
        except DriverError as error:
            self._jobs.refused(number, str(error))
        except Exception:
            log.exception("%s failed to admit job %d", self._driver.name, number)
            self._jobs.refused(number, "an unexpected error")
        self._carry_out()

    async def _await_eviction(self, number: int, call: Awaitable[None]) -> None:
        try:
            await call
            self._jobs.evicted(number, self._clock())
        except DriverError as error:
            log.warning("job %d stays in the switch for now, and it will be asked again: %s", number, error)
            self._jobs.evict_failed(number, self._clock())
        except Exception:
            log.exception("%s failed to evict job %d; it will be asked again", self._driver.name, number)
            self._jobs.evict_failed(number, self._clock())
        self._carry_out()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _counters(self, numbers: list[int]) -> dict[int, JobCounters]:
        """Empty if the switch cannot say: a report without counters is better than none."""
        try:
            return await self._switch_calls.submit(
                lambda: {number: self._driver.counters(number) for number in numbers}
            )
        except Exception:
            log.exception("%s does not say what it counted", self._driver.name)
            return {}

    async def _granted(self, context: Any, action: Callable[[], T]) -> T:
        try:
            result = action()
        except Refusal as refusal:
            await _refuse(context, refusal)
        self._carry_out()
        return result


async def _refuse(context: Any, refusal: Refusal) -> NoReturn:
    await context.abort(grpc.StatusCode[refusal.code], refusal.text, ((join.REFUSED_KEY, "1"),))
    raise AssertionError("abort raises")


class JoinServer:
    """The join service of one switch, in a thread of its own. The driver stays the caller's: close it after `stop`."""

    def __init__(
        self, driver: SwitchDriver, limits: Limits | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._driver = driver
        self._limits = limits or Limits()
        self._clock = clock
        self.port = 0
        """The TCP port that it listens at, once started."""
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._grace_s = 0.0

    def start(self, host: str = "0.0.0.0", port: int = join.DEFAULT_CONTROL_PORT) -> int:
        """Returns the TCP port, which is a free one for port 0. Raises `OSError` if it cannot listen there."""
        if self._thread is not None:
            raise RuntimeError("this server was started before: make a new one")
        bound: concurrent.futures.Future[int] = concurrent.futures.Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run(f"{host}:{port}", bound)), name="wiresum-join-service", daemon=True
        )
        self._thread.start()
        self.port = bound.result()
        return self.port

    def stop(self, grace_s: float = 2.0) -> None:
        """Tells all workers that the switch is being stopped, and ends. Idempotent; returns after `grace_s` and a
        little, whatever the workers do."""
        if self._thread is None or self._loop is None or self._stop is None:
            return
        self._grace_s = grace_s
        if self._thread.is_alive():
            try:
                self._loop.call_soon_threadsafe(self._stop.set)
            except RuntimeError:
                log.debug("the loop has ended by itself")
        self._thread.join(grace_s + STOP_MARGIN_S)
        if self._thread.is_alive():
            log.error(
                "the join service did not end in %.0f s; the process will end without it", grace_s + STOP_MARGIN_S
            )

    async def _run(self, listen: str, bound: concurrent.futures.Future[int]) -> None:
        try:
            server = grpc.aio.server(options=_OPTIONS, maximum_concurrent_rpcs=CALLS_MAX)
            service = JoinService(self._driver, self._limits, self._clock)
            join_pb2_grpc.add_JoinServiceServicer_to_server(service, server)
            port = _listen(server, listen)
            await server.start()
            self._loop = asyncio.get_running_loop()
            self._stop = asyncio.Event()
        except Exception as error:
            bound.set_exception(error)
            return
        log.info("the join service of %s listens at %s", self._driver.name, listen)
        ticking = asyncio.create_task(service.tick_forever())
        bound.set_result(port)
        await self._stop.wait()
        await service.close("the switch was stopped", self._grace_s)
        await server.stop(0.1)
        ticking.cancel()


def _listen(server: Any, address: str) -> int:
    try:
        port = server.add_insecure_port(address)
    except RuntimeError:
        port = 0
    if not port:
        raise OSError(f"cannot listen at {address}: is another switch running there? Stop it, or choose another port")
    return int(port)
