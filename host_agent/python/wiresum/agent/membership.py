"""A worker's membership in a job at one aggregator: the player of its life (life.py), by gRPC.

One thread owns the machine, and takes events from one queue, in which anybody may put one at any time: a signal's
handler, too. Others wait for the network in its place: one reads what a stream says, and one asks, tells or looks at
the fallback, while that is to be done; one of gRPC's takes our heartbeats and sends them. All memberships of a process
share a thread that notices if the process was stopped (awake.py). All are daemons and all end in `leave`. Nobody has to
call `leave`: a process that ends without it says good-bye on its way out, or, if an exception ended it, tells the
others.

Heartbeats wait while somebody holds the interpreter's lock. This is no loss: gRPC's own threads, which do without the
lock, answer the service's pings meanwhile, and for the service a worker lives for as long as its connection does.
"""

from __future__ import annotations

import logging
import math
import os
import queue
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from wiresum import join as messages
from wiresum.agent import lifetime
from wiresum.agent.absence import Standstill, await_last_results
from wiresum.agent.config import AgentConfig
from wiresum.agent.control import RETRY_PAUSE_S, Control, ask_again_after_s, code_of, details, grpc, is_from_service
from wiresum.agent.diagnosis import error_of, error_of_forgotten
from wiresum.agent.errors import JoinError, SwitchUnreachableError, WiresumError, WorkerLeftError
from wiresum.agent.fallback import Fallback
from wiresum.agent.joining import Interruption, ask_until_granted, with_address
from wiresum.agent.life import Halt, Life, Move, Output, Worker
from wiresum.agent.life_table import ABORT_S_MAX, LEAVE_S_MAX, Event, Phase
from wiresum.agent.machine import host_id
from wiresum.agent.multicast import GroupWatch
from wiresum.agent.orders import Abort
from wiresum.agent.search import ATTEMPT_BYTES, NOT_READY, Services
from wiresum.agent.statistics import NO_TRAFFIC, Moved, TrafficStats
from wiresum.agent.way_out import why_cut_off
from wiresum.agent.world import WORLD, World
from wiresum.join import Admission
from wiresum.join.credentials import CredentialsError
from wiresum.join.release import software_version

log = logging.getLogger(__name__)

THREAD_END_S_MAX = 0.5
DIAGNOSE_S_MAX = 1.0
BEGIN_S_MAX = 5.0
READY_S_MAX = 1.0
_COUNT_MAX = 0xFFFFFFFF
"""A larger count is sent as this."""
_BEGINS = (Phase.JOINED, Phase.ATTENDING)
_HEARD = (Phase.TOLD, Phase.OVER, Phase.LEFT, Phase.INERT)
"""Phases in which an abort is no news any more."""


class _Stream:
    """A stream to a service, from when it is to be opened."""

    def __init__(self) -> None:
        self.beats: queue.SimpleQueue[tuple[Any, ...] | None] = queue.SimpleQueue()
        self.is_over = False
        self._call: Any = None

    def begin(self, call: Any) -> None:
        self._call = call
        if self.is_over:
            call.cancel()

    def hang_up(self) -> None:
        self.is_over = True
        self.beats.put(None)
        if self._call is not None:
            self._call.cancel()


_Source = _Stream | Interruption
"""The stream or the question that an event comes from. Once it is given up, the event does not count."""


class Membership:
    """Made by `join`. Any thread may call any method."""

    def __init__(
        self,
        config: AgentConfig,
        request: messages.JoinRequest,
        control: Control,
        reply: messages.JoinReply,
        fallback: Fallback | None,
        abort: Abort,
        world: World,
    ) -> None:
        self.where = f"the switch at {config.switch}"
        """The service's name for people."""
        self.moved: Moved | None = None
        """The newest move to another lease."""
        target = fallback.target if fallback is not None else ""
        services = Services(config.control_endpoints, target, control.endpoint)
        self._clock, self._awake = world.clock, world.awake()
        grant = with_address(reply, control)
        self._life = Life(request, grant, services, self.where, self._awake.now())
        self._config, self._job_name = config, request.job_name
        self._address = request.endpoint.address
        self._control, self._fallback = control, fallback
        self._events: queue.SimpleQueue[tuple[_Source | None, Event, tuple[Any, ...]]] = queue.SimpleQueue()
        self._lock = threading.RLock()  # a signal's handler may leave in the midst of `attend`
        self._thread: threading.Thread | None = None
        self._player: int | None = None
        """The thread that owns the machine."""
        self._stream: _Stream | None = None
        self._asking = Interruption()
        self._begun = self._has_left = False
        self.heard = 0
        """The number of messages from the service over a stream."""
        self._group_watch = GroupWatch(grant, self.where)
        self._standstill = Standstill(self.where)
        self._progress: Callable[[], TrafficStats | None] = lambda: NO_TRAFFIC
        self._on_ended: Callable[[WiresumError], None] | None = None
        """The callback for the job's end, until its call."""
        self._abort = abort
        abort.tell(self._put)
        lifetime.begin(self)

    @classmethod
    def join(
        cls,
        config: AgentConfig,
        *,
        job_name: str,
        rank: int,
        world_size: int,
        address: str,
        port: int,
        threads_max: int,
        lanes_max: int,
        agreed: Mapping[str, str] | None = None,
        admission: Admission = Admission.QUEUE,
        interruption: Interruption | None = None,
        fallback: Fallback | None = None,
        abort: Abort | None = None,
        world: World = WORLD,
    ) -> Membership:
        """Returns when all workers of the job have asked, and there is room for it; there must be room at once unless
        `admission` is QUEUE (join.proto says what the others are). `config` names one aggregator, and `address` and
        `port` are those of this worker's data sockets for it. `agreed` are the settings that the service compares.
        `fallback`: where the job goes on if nobody else serves. `abort`: shared by the worker's memberships at all
        aggregators. Raises a `JoinError`, or the error of `interruption`."""
        request = messages.JoinRequest(
            protocol_version=messages.PROTOCOL_VERSION,
            job_name=job_name,
            rank=rank,
            world_size=world_size,
            endpoint=messages.Endpoint(address=address, port=port),
            threads_max=threads_max,
            lanes_max=lanes_max,
            slots=config.slots,
            host_name=socket.gethostname(),
            process_id=os.getpid(),
            software_version=software_version(),
            attempt=secrets.token_hex(ATTEMPT_BYTES),
            tenant=config.tenant,
            job_token=config.job_token,
            agreed=agreed,
            admission=admission,
            host_id=host_id() if config.share else b"",
            global_rank=config.global_rank if config.global_rank not in (-1, rank) else None,
        )
        try:
            control = Control(config, world)
        except CredentialsError as error:
            raise JoinError(f"cannot join job '{job_name}': {error}", code="UNAUTHENTICATED") from None
        try:
            reply = ask_until_granted(control, config, request, interruption or Interruption(), world.clock)
            return cls(config, request, control, reply, fallback, abort or Abort(), world)
        except BaseException:
            control.close()
            raise

    def attend(
        self,
        *,
        on_ended: Callable[[WiresumError], None],
        progress: Callable[[], TrafficStats | None],
        traffic: Callable[[], TrafficStats],
        halt: Halt,
        move: Move,
    ) -> None:
        """Starts the heartbeats. `progress` gives the traffic with the switch for each of them, None if this worker is
        stopped and so shall have no connection, and `traffic` at any time; `on_ended` is called at most once, from
        another thread, when the job has ended for a reason that is not ours. `halt` and `move` are called from that
        thread; if one raises, the job ends."""
        with self._lock:
            if self._thread is not None:
                raise RuntimeError("this membership attends already")
            if self._player is not None:
                return
            self._on_ended, self._progress = on_ended, progress
            self._awake.watch()
            self._put(Event.BEGIN, Worker(traffic, halt, move, self._why_cut_off, self._with_address))
            self._thread = self._clock.start(self._play, "wiresum-membership")
        # A process that ends at once must not end in between.
        self._clock.wait_for(lambda: self._begun or self._life.phase not in _BEGINS, self._clock.now() + BEGIN_S_MAX)

    @property
    def grant(self) -> messages.JoinReply:
        """The newest lease."""
        return self._life.grant

    @property
    def service(self) -> str:
        """The endpoint in use, host:port."""
        return self._control.endpoint

    @property
    def group_is_silent(self) -> bool:
        """True if nothing comes by the multicast group that the switch sends results to."""
        return self._group_watch.silent

    def own_stop(self) -> str:
        """Returns a sentence if this process itself was stopped lately; otherwise ""."""
        return self._awake.explain()

    def diagnose(self) -> messages.Diagnosis:
        """Returns what the switch has seen of each worker. Raises a `SwitchUnreachableError`."""
        if self._life.phase is Phase.INERT:
            raise SwitchUnreachableError("this process is a child of the worker, and no member of the job")
        try:
            return self._control.stub().Diagnose(self._life.member, timeout=DIAGNOSE_S_MAX)
        except (grpc.RpcError, ValueError) as error:  # ValueError: the channel is closed
            raise SwitchUnreachableError(
                f"{self.where} does not answer the question who lags ({details(error)})"
            ) from None

    def abort(self, reason: str) -> None:
        """Ends the job for everybody. Does not raise. A service that is away is told when there is one again."""
        life = self._life
        if life.phase is Phase.INERT:
            return
        self._abort.give(reason)
        if self._thread is not None and self._player != threading.get_ident():
            # Polled, here and in `leave`: a handler of a signal may do so while its thread does.
            self._clock.wait_for(lambda: life.phase in _HEARD or life.has_lost_lease, self._clock.now() + LEAVE_S_MAX)

    def leave(self) -> None:
        """Says good-bye and ends the threads. Idempotent, bounded, does not raise. After an abort that no service has
        heard the worker looks for one, for up to ABORT_S_MAX."""
        if self._life.phase is Phase.INERT:
            return
        self._abort.give_known_end()
        self._put(Event.LEAVE)
        with self._lock:
            alone = self._thread is None and self._player is None
            if alone:
                self._player = threading.get_ident()
        if alone:
            self._play()
        elif self._player != threading.get_ident():
            bound_s = ABORT_S_MAX + LEAVE_S_MAX + THREAD_END_S_MAX
            self._clock.wait_for(lambda: self._has_left, self._clock.now() + bound_s)
            if self._thread is not None:
                self._clock.join(self._thread, THREAD_END_S_MAX)

    # The player.

    def _put(self, event: Event, *what: Any, source: _Source | None = None) -> None:
        self._events.put((source, event, what))

    def _play(self) -> None:
        self._player = threading.get_ident()
        try:
            while self._life.phase is not Phase.LEFT:
                self._step()
        except Exception:
            log.exception("unexpected error in a worker's life")
            self._say(WiresumError(f"job '{self._job_name}' has ended: this worker has failed; its log says where"))
        finally:
            self._end()

    def _step(self) -> None:
        # Each step has a frame of its own, so that a waiting thread holds nothing of the last event.
        life, timer = self._life, self._life.next_timer()
        left_s = math.inf if timer is None else max(0.0, timer[0] - self._awake.now())
        happened, now = self._clock.take(self._events, left_s), self._awake.now()
        outputs: list[Output] = []
        if happened is not None:
            source, event, what = happened
            if source in (None, self._stream, self._asking):
                outputs = life.handle(event, now, *what)
        elif timer is not None and timer[0] <= now:
            outputs = life.handle(timer[1], now)
        for do, *which in outputs:
            getattr(self, f"_{do.name.lower()}")(*which)

    def _help(self, name: str, function: Callable[[], None], *failed: Any, **source: Any) -> None:
        """Runs a function in another thread. An ending process may have no more threads (from Python 3.12 on): then
        what needs one of gRPC's, too, has failed, and a call runs here. `failed`: the event if the function fails."""

        def run() -> None:
            try:
                function()
            except Exception:
                log.exception("unexpected error in a helper of a worker's life (%s)", name)
                self._put(*failed, **source)

        try:
            self._clock.start(run, f"wiresum-{name}")
        except RuntimeError:
            if name in ("tell", "look"):
                run()
            else:
                self._put(*failed, **source)

    def _end(self) -> None:
        """Cleans up once the worker has left."""
        self._hang_up()
        self._stop_asking()
        self._abort.forget(self._put)
        self._awake.unwatch()
        self._control.close()
        self._close_fallback()
        self._progress, self._on_ended = lambda: NO_TRAFFIC, None  # the old ones refer to our owner
        lifetime.end(self)
        self._has_left = True

    # What the machine wants to be done: life_table.Do.

    def _connect(self, endpoint: str) -> None:
        try:
            self._control.reconnect(endpoint)
        except CredentialsError as error:
            log.warning("cannot connect to %s again: %s", self.where, error)

    def _attend(self) -> None:
        stream = self._stream = _Stream()
        self._help("stream", lambda: self._read(stream), Event.BROKE, "no thread can be started", source=stream)

    def _beat(self, *beat: Any) -> None:
        if self._stream is not None:
            self._stream.beats.put(beat)

    def _hang_up(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.hang_up()

    def _ask(self, *question: Any) -> None:
        self._stop_asking()
        asking = self._asking = Interruption()
        failed = Event.REFUSED, NOT_READY, "asking failed"
        self._help("ask", lambda: self._wait_for_place(asking, *question), *failed, source=asking)

    def _stop_asking(self) -> None:
        self._asking.interrupt(WiresumError())

    def _tell(self, *order: Any) -> None:
        self._help("tell", lambda: self._deliver(*order), Event.UNTOLD, "telling failed", RETRY_PAUSE_S)

    def _look(self, grant: messages.JoinReply) -> None:
        self._help("look", lambda: self._look_at_fallback(grant), Event.SERVES_NOT, "")

    def _close_fallback(self) -> None:
        if self._fallback is not None:
            self._fallback.close()

    def _gone_on(self, why: str) -> None:
        self.moved = Moved(time.time(), why)
        self._group_watch = GroupWatch(self.grant, self.where, self._life.worker.traffic())

    def _say(self, error: WiresumError) -> None:
        if not isinstance(error, WorkerLeftError):
            self._abort.note_end(str(error).removeprefix(f"job '{self._job_name}' has ended: "))
        on_ended, self._on_ended = self._on_ended, None
        if on_ended is not None:
            on_ended(error)

    def _abort_all(self, reason: str) -> None:
        self._abort.give(reason)

    def _heard(self) -> None:
        self._abort.note_heard()

    # What waits for the network, in threads of its own.

    def _read(self, stream: _Stream) -> None:
        if stream.is_over:
            return
        try:
            lifetime.use()
            call = self._control.stub().Attend(self._heartbeats(stream))
            lifetime.watch(call)
            stream.begin(call)
        except ValueError:  # the channel is closed
            self._put(Event.BROKE, "the connection was closed", source=stream)
            return
        finally:
            self._begun = True
        try:
            for said in call:
                self.heard += 1
                if said.HasField("ended"):
                    if said.ended.cause == messages.JobEnded.WORKER_LEFT:
                        await_last_results(self._life.worker.traffic, lambda pause_s: self._over_in(stream, pause_s))
                    self._put(*self._end_of(said.ended), source=stream)
                    return
                happened = Event.HALT if said.HasField("halt") else Event.MOVE if said.HasField("move") else Event.PULSE
                self._put(happened, getattr(said, happened.name.lower()), source=stream)
            self._put(Event.BROKE, "it ended the stream", source=stream)
        except grpc.RpcError as error:
            log.debug("the stream to %s broke: %s", self._control.endpoint, details(error))
            self._put(*self._why_broken(error), source=stream)
        finally:
            stream.hang_up()
            call.with_traceback(None)  # the error that it raises is the call itself, which this frame refers to

    def _over_in(self, stream: _Stream, seconds: float) -> bool:
        return self._clock.wait_for(lambda: stream.is_over, self._clock.now() + seconds)

    def _end_of(self, ended: messages.JobEnded) -> tuple[Any, ...]:
        if stop := self.own_stop():
            ended.reason += f"; {stop}"
        error = error_of(ended, self._job_name, self.where)
        return (Event.LOST, error, ended.reason) if ended.cause == ended.SWITCH_LOST else (Event.ENDED, error)

    def _why_broken(self, error: Any) -> tuple[Any, ...]:
        if code_of(error) == "NOT_FOUND":
            return Event.LOST, *self._forgotten()
        if code_of(error) == "UNAUTHENTICATED" and is_from_service(error):
            text = f"{self.where} lets this worker of job '{self._job_name}' not go on: {details(error)}"
            return Event.BARRED, JoinError(text, code="UNAUTHENTICATED")
        return Event.BROKE, details(error)

    def _forgotten(self) -> tuple[WiresumError, str]:
        error = error_of_forgotten(self._job_name, self.where, self.own_stop(), self.grant.rank, self._address)
        return error, f"{self.where} does not know it any more"

    def _heartbeats(self, stream: _Stream) -> Iterator[messages.Heartbeat]:
        """Runs in gRPC's thread."""
        lifetime.use()
        while (beat := self._newest(stream)) is not None:
            member, halted, counts = beat
            traffic = self._progress() if counts else NO_TRAFFIC
            if traffic is None:
                stream.hang_up()
                return
            yield messages.Heartbeat(
                member=member,
                round_newest=traffic.round_newest & 0xFFFFFFFF,
                halted=halted,
                tensor_newest=traffic.tensor_newest - 1 if traffic.tensor_newest else None,
                sums_wrong=min(traffic.sums_wrong, _COUNT_MAX),
            )
            self._group_watch.look(self._life.worker.traffic)
            self._standstill.look(self._life.worker.traffic(), self._awake.now())

    def _newest(self, stream: _Stream) -> tuple[Any, ...] | None:
        """Returns the next heartbeat that is due; None: the stream is over. An earlier end would tell the service that
        we close our side, which it would take for a loss before it has our Leave."""
        beat = self._clock.take(stream.beats, math.inf)
        while beat is not None and not stream.beats.empty():  # this worker was slow
            beat = stream.beats.get()
        return beat

    def _wait_for_place(
        self, interruption: Interruption, request: messages.JoinRequest, within_s: float, if_ready: bool
    ) -> None:
        endpoint, answer = self._control.endpoint, partial(self._put, source=interruption)
        if if_ready and not self._control.is_ready(READY_S_MAX):
            answer(Event.REFUSED, NOT_READY, f"the service at {endpoint} has no switch that takes jobs")
            return
        here = replace(self._config, switch=endpoint, join_timeout_s=within_s)
        try:
            reply = ask_until_granted(self._control, here, request, interruption, self._clock)
        except JoinError as error:
            answer(Event.REFUSED, error.code, str(error))
        except WiresumError as error:
            answer(Event.ENDED, error)
        else:
            answer(Event.GRANTED, reply)

    def _deliver(self, member: messages.Member, order: messages.JobEnded) -> None:
        stub = self._control.stub()
        try:
            if order.cause == messages.JobEnded.WORKER_LEFT:
                stub.Leave(messages.LeaveRequest(member=member), timeout=LEAVE_S_MAX)
            else:
                # A sum that was wrong twice is known here first: the newest heartbeat was before that.
                wrong = min(self._life.worker.traffic().sums_wrong, _COUNT_MAX)
                abort = messages.AbortRequest(member=member, reason=order.reason, sums_wrong=wrong)
                stub.Abort(abort, timeout=LEAVE_S_MAX)
        except (grpc.RpcError, ValueError) as error:
            log.debug("%s was not told of an order: %s", self.where, details(error))
            pause_s = ask_again_after_s(error)
            if pause_s is None and is_from_service(error):
                self._put(Event.UNKNOWN, *self._forgotten())
            else:
                self._put(Event.UNTOLD, details(error), pause_s or RETRY_PAUSE_S)
        else:
            self._put(Event.TOLD)

    def _look_at_fallback(self, grant: messages.JoinReply) -> None:
        assert self._fallback is not None
        self._fallback.open(grant)
        if self._fallback.serves():
            self._put(Event.SERVES)
        else:
            self._put(Event.SERVES_NOT, self._fallback.trouble)

    # What the machine asks at once.

    def _why_cut_off(self, grant: messages.JoinReply) -> str:
        return why_cut_off(self._config.transport_kind, self._address, grant.switch_endpoint.address)

    def _with_address(self, grant: messages.JoinReply) -> messages.JoinReply:
        return with_address(grant, self._control)

    # The process's end, and its children.

    def abort_at_exit(self) -> None:
        error = getattr(sys, "last_value", None)
        interactive = hasattr(sys, "ps1")  # there, the last exception is one of many, and not why the process ends
        if error is not None and not interactive:
            self.abort(f"its program ended with {type(error).__name__}: {error}")

    def after_fork_in_child(self) -> None:
        self._events = queue.SimpleQueue()  # the lock inside the old one may be held by a thread that is not here
        self._lock = threading.RLock()
        self._life.handle(Event.FORKED, 0.0)
        lifetime.keep_for_ever(self._control, self._stream)
