"""A worker's membership in a job: the gRPC client of the join service.

Two threads belong to a membership once it attends: ours, which reads what the service says, and one of gRPC's, which
takes our heartbeats and sends them. All memberships of a process share one that notices if the process was stopped
(awake.py). All are daemons and all end in `leave`. Nobody has to call that: a process that ends without it says
good-bye on its way out, or, if an exception ended it, tells the others so.

The service is not needed while a job runs: the packets go to the switch. So a connection to it that breaks, because a
controller is restarted or a standby takes over, is made again without anybody noticing: a service that was killed
refuses connections at once, and one whose host has vanished is noticed by the silence after our heartbeats. How long
that goes on is absence.py's matter.

Heartbeats wait while somebody holds the interpreter's lock. That is no loss: gRPC's own threads, which do without the
lock, answer the service's pings meanwhile, and for the service a worker lives for as long as its connection does.

The service may move the job to another lease: moves.py. A worker whose service is gone, or has lost its job, halts by
itself, and looks for another lease: resuming.py. It attends at each service, and one that knows it moves the job. At
one that does not it asks for a place.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from wiresum import join as messages
from wiresum.agent import lifetime
from wiresum.agent.absence import Absence, Patience, Silence, await_last_results
from wiresum.agent.config import AgentConfig
from wiresum.agent.control import RETRY_PAUSE_S, Control, ask_again_after_s, code_of, details, grpc, is_from_service
from wiresum.agent.diagnosis import error_of, error_of_forgotten
from wiresum.agent.errors import JoinError, SessionClosedError, SwitchUnreachableError, WiresumError
from wiresum.agent.joining import Interruption, ask_until_granted, with_address
from wiresum.agent.moves import Halt, Move, Moves
from wiresum.agent.multicast import GroupWatch
from wiresum.agent.orders import Abort
from wiresum.agent.resuming import FALLBACK_AFTER_S, RESUME_S, Fallback, Resuming, resumed
from wiresum.agent.statistics import NO_TRAFFIC, Moved, TrafficStats
from wiresum.agent.way_out import why_cut_off
from wiresum.agent.world import WORLD, World
from wiresum.join import Admission
from wiresum.join.credentials import CredentialsError
from wiresum.join.release import software_version

log = logging.getLogger(__name__)

SILENCE_S_MAX = 6.0
"""After which the connection is made anew, perhaps to a standby: the service is not given up for that."""
LEAVE_S_MAX = 1.5
ABORT_S_MAX = 30.0
"""How long a worker that leaves looks for a service to tell that it has ended the job, from when it did."""
THREAD_END_S_MAX = 0.5
DIAGNOSE_S_MAX = 1.0
BEGIN_S_MAX = 5.0
ATTEMPT_BYTES = 16
_LEFT = messages.JobEnded(cause=messages.JobEnded.WORKER_LEFT)
NO_ROUND = 0
"""Nothing was sent yet: rounds begin at 1."""


class _End(NamedTuple):
    """Of a job at its service."""

    error: WiresumError
    lost: str = ""
    """It may go on with another lease, since it has lost this one for that reason, a clause; empty: it is over."""
    go_to: str = ""
    """The service does not say that it has ended, but there is a better one: its endpoint."""
    left_s: float = 0.0
    """For which the service may still come back with the job."""


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
        self.grant = with_address(reply, control)
        """The newest."""
        self.where = f"the switch at {config.switch}"
        """For people."""
        self._config = config
        self._address = request.endpoint.address
        self._fallback = fallback
        self._job_name = request.job_name
        self._request = request
        self._control = control
        self._member = _member_of(reply)
        self._lock = threading.RLock()  # as all of ours: a signal's handler may leave or abort in the midst of either
        self._clock, self._awake = world.clock, world.awake()
        self._group_watch = GroupWatch(self.grant, self.where)
        self._leaves = False
        """`leave` was called ..."""
        self._leaver: threading.Thread | None = None
        """... first by this thread."""
        self._leaving = threading.Event()
        """There is nothing left to be done but to end the threads."""
        self._begun = threading.Event()
        self._left = threading.Event()
        self._thread: threading.Thread | None = None
        self._call: Any = None
        self._progress: Callable[[], int | None] = lambda: NO_ROUND
        self._traffic: Callable[[], TrafficStats] = lambda: NO_TRAFFIC
        self._moves = Moves(request.job_name, self._awake.now)
        self._resuming: Resuming | None = None
        self._beat_now = threading.Event()
        """A heartbeat is due before its time, or there is nobody to send one to."""
        self._began_at = 0.0
        """When this stream did."""
        self._heard_at = 0.0
        self._events = 0
        self._ended = False
        self._given_up = False
        self._abort = abort
        self._telling = world.clock.lock()
        """Of an order: one thread at a time."""
        self._told_of_abort = self._told_of_leave = False
        self._on_ended: Callable[[WiresumError], None] | None = None
        """Until it was called."""
        self._inert = False
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
        can_move: bool = False,
        fallback: Fallback | None = None,
        abort: Abort | None = None,
        world: World = WORLD,
    ) -> Membership:
        """Returns when all workers of the job have asked, and there is room for it; there must be room at once unless
        `admission` is QUEUE (join.proto says what the others are). `config` names one aggregator, and `address` and
        `port` are those of this worker's data sockets for it. `agreed` are the settings that the service compares.
        `can_move`: `attend` will be given `halt` and `move`. `fallback`: where the job goes on if nobody else serves.
        `abort`: that of the worker's memberships at all aggregators. Raises a `JoinError`, or what `interruption`
        says."""
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
            key=config.key,
            attempt=secrets.token_hex(ATTEMPT_BYTES),
            tenant=config.tenant,
            priority=config.priority,
            job_token=config.job_token,
            agreed=agreed,
            admission=admission,
            can_move=can_move,
        )
        try:
            control = Control(config, world)
        except CredentialsError as error:
            raise JoinError(f"cannot join job '{job_name}': {error}", code="UNAUTHENTICATED") from None
        try:
            reply = ask_until_granted(control, config, request, interruption or Interruption(), world.clock)
            return cls(config, request, control, reply, fallback, abort or Abort(world.clock.now), world)
        except BaseException:
            control.close()
            raise

    def attend(
        self,
        *,
        on_ended: Callable[[WiresumError], None],
        progress: Callable[[], int | None],
        traffic: Callable[[], TrafficStats] = lambda: NO_TRAFFIC,
        halt: Halt | None = None,
        move: Move | None = None,
    ) -> None:
        """Starts the heartbeats. `progress` gives the newest round of this worker, None if it is stopped and so shall
        have no connection, and `traffic` what went to and came from the switch; `on_ended` is called at most once, from
        another thread, when the job has ended for a reason that is not ours. `halt` and `move` are called from that
        thread; if one raises, the job ends."""
        with self._lock:
            if self._thread is not None:
                raise RuntimeError("this membership attends already")
            if self._leaves:
                return
            self._on_ended = on_ended
            self._progress, self._traffic = progress, traffic
            self._moves.set_data_path(halt, move)
            self._awake.watch()
            self._thread = self._clock.start(self._attend, "wiresum-membership")
        self._clock.wait(self._begun, BEGIN_S_MAX)  # so that a process that ends at once does not end in between

    @property
    def service(self) -> str:
        """The endpoint that is talked to, host:port."""
        return self._control.endpoint

    @property
    def moved(self) -> Moved | None:
        """The newest move to another lease."""
        return self._moves.newest

    @property
    def group_is_silent(self) -> bool:
        """Does nothing come by the multicast group that the switch sends results to?"""
        return self._group_watch.silent

    def own_stop(self) -> str:
        """A sentence, if this process itself was stopped lately; otherwise empty."""
        return self._awake.explain()

    def diagnose(self) -> messages.Diagnosis:
        """What the switch has seen of each worker. Raises a `SwitchUnreachableError`."""
        if self._inert:
            raise SwitchUnreachableError("this process is a child of the worker, and no member of the job")
        try:
            return self._control.stub().Diagnose(self._member, timeout=DIAGNOSE_S_MAX)
        except (grpc.RpcError, ValueError) as error:  # ValueError: the channel is closed
            raise SwitchUnreachableError(
                f"{self.where} does not answer the question who lags ({details(error)})"
            ) from None

    def abort(self, reason: str) -> None:
        """Ends the job for everybody. Does not raise. A service that is away is told when there is one again."""
        if self._inert or self._leaves or self._ended:
            return
        self._abort.give(reason)
        self._heed_order()
        self._tell_order()

    def leave(self) -> None:
        """Says good-bye and ends the threads. Idempotent, bounded, does not raise. After an abort that no service has
        heard it looks for one, for up to ABORT_S_MAX."""
        if self._inert:
            return
        with self._lock:
            first, self._leaves = not self._leaves, True
            if first:
                self._leaver = threading.current_thread()
        if not first:  # another thread is at it, or was; or this one is, which a signal has interrupted
            if threading.current_thread() not in (self._thread, self._leaver):
                self._clock.wait(self._left, ABORT_S_MAX + LEAVE_S_MAX + THREAD_END_S_MAX)
            return
        try:
            give_up_at = self._clock.now() + LEAVE_S_MAX
            self._heed_order()
            if not self._tell_order():
                self._await_told(give_up_at)
            self._leaving.set()
            if self._told_of_abort:
                self._tell_of_leave()
        finally:
            self._leaving.set()
            self._stop_resuming(SessionClosedError("this worker has left the job"))
            self._hang_up()
            if self._thread is not None and threading.current_thread() is not self._thread:
                self._clock.join(self._thread, THREAD_END_S_MAX)
            self._awake.unwatch()
            self._control.close()
            if self._fallback is not None:
                self._fallback.close()
            self._left.set()
            self._progress, self._traffic = lambda: NO_ROUND, lambda: NO_TRAFFIC  # the old ones refer to our owner
            self._moves.set_data_path(None, None)
            self._on_ended = None
            lifetime.end(self)

    # What it has said of the job's end: orders.py.

    def _order(self) -> messages.JobEnded | None:
        """What a service has yet to hear."""
        if self._abort.order is not None:
            return None if self._told_of_abort else self._abort.order
        return _LEFT if self._leaves and not self._told_of_leave else None

    @property
    def _is_done(self) -> bool:
        """This worker does nothing for the job any more, but for telling so."""
        return self._leaves or self._abort.order is not None

    def _has_to_do(self) -> bool:
        """At another service, if this one has lost the job."""
        with self._telling:  # what is being told has its answer
            return not self._is_done or self._order() is not None

    def _heed_order(self) -> None:
        with self._lock:
            resuming = self._resuming
        if resuming is not None:
            resuming.heed_order()

    def _tell_order(self) -> bool:
        """To the service that is talked to, as a member. Returns whether there is nothing left to tell."""
        with self._telling:
            order = self._order()
            if order is _LEFT:
                self._tell_of_leave()
            elif order is not None and self._tell(
                "Abort", messages.AbortRequest(member=self._member, reason=order.reason)
            ):
                self._note_over()
            return self._order() is None

    def _tell_of_leave(self) -> None:
        self._told_of_leave = self._tell("Leave", messages.LeaveRequest(member=self._member))

    def _note_over(self) -> None:
        """A service has ended the job."""
        self._told_of_abort = self._abort.is_told = True

    def _await_told(self, give_up_at: float) -> None:
        """While the thread that attends looks for a service that hears the order."""
        thread = self._thread
        if thread is None or thread is threading.current_thread() or not lifetime.can_start_threads():
            return
        if self._abort.order is not None and not self._abort.is_told and self.grant.workers > 1:
            give_up_at = self._abort.given_at + min(ABORT_S_MAX, self._config.lost_after_s)
            log.warning(
                "no service has heard yet that this worker has ended job '%s' (%s): it looks for one for up to %.0f s",
                self._job_name, self._abort.order.reason, max(0.0, give_up_at - self._clock.now()),
            )  # fmt: skip
        self._clock.wait_for(lambda: not thread.is_alive() or self._order() is None or self._abort.is_told, give_up_at)

    def _tell(self, what: str, request: messages.LeaveRequest | messages.AbortRequest) -> bool:
        """Whether it was told. Looks for a service that is away for a moment, unless the job is over anyway."""
        if self._given_up:
            return False
        give_up_at = self._clock.now() + LEAVE_S_MAX
        while (left_s := give_up_at - self._clock.now()) > 0:
            turns = self._control.turns
            try:
                getattr(self._control.stub(), what)(request, timeout=left_s)
                return True
            except (grpc.RpcError, ValueError) as error:
                log.debug("%s was not told of a %s: %s", self.where, what, details(error))
                pause_s = ask_again_after_s(error)
            if pause_s is None or self._ended or self._resuming is not None or not self._move_on(turns):
                return False
            self._clock.sleep(pause_s)
        return False

    # Attending.

    def _attend(self) -> None:
        absence = self._watch_for_absence()
        ended: WiresumError | None = None
        while ended is None and not self._leaving.is_set():
            turns = self._control.turns
            grant = self.grant
            end = self._attend_until_broken(absence)
            if end is not None and not end.lost:
                ended = end.error
            elif self._resuming is not None and not (end is not None and end.go_to):
                ended = self._look_for_lease(end is not None, absence.cause, turns)
            elif end is not None:
                ended = self._begin_to_resume(end, turns)
            elif not self._clock.wait(self._leaving, RETRY_PAUSE_S):
                self._move_on(turns)
                if (error := absence.error()) is not None:
                    end = _End(error, f"{self.where} does not answer", left_s=absence.left_s)
                    ended = self._begin_to_resume(end, self._control.turns)
            if self.grant is not grant:
                absence = self._watch_for_absence()
        self._ended = True
        if ended is not None:
            self._say_ended(ended)

    def _say_ended(self, error: WiresumError) -> None:
        """Once, and not to one that leaves."""
        on_ended, self._on_ended = self._on_ended, None
        if on_ended is not None and not self._leaves:
            on_ended(error)

    def _watch_for_absence(self) -> Absence:
        return Absence(
            self.where,
            Patience.of(self.grant, self._config.lost_after_s, has_fallback=self._fallback is not None),
            self._traffic,
            lambda: why_cut_off(self._config.transport, self._address, self.grant.switch_endpoint.address),
            self._awake.now,
        )

    def _attend_until_broken(self, absence: Absence) -> _End | None:
        """Why the job has ended; None if only the stream has."""
        self._heard_at = self._began_at = self._awake.now()
        hung_up, silence = threading.Event(), Silence(self._traffic, self._awake.now)
        if not lifetime.can_start_threads():
            self._clock.wait(self._leaving, LEAVE_S_MAX)
            return None
        try:
            call = self._call = self._control.stub().Attend(self._heartbeats(hung_up))
        except ValueError:  # `leave` has closed the channel
            return None
        finally:
            self._begun.set()
        try:
            for event in call:
                self._heard_at = self._awake.now()
                self._events += 1
                absence.hear(self._control.endpoint)
                if event.HasField("ended"):
                    return self._hear_end(event.ended)
                if self._is_done:
                    self._tell_order()
                    continue
                self._obey(event)
                if event.pulse.lost and self._fallback is not None and self._moves.halted is None:
                    self._halt_if_unanswered(silence, event.pulse.lost)
                if (end := self._stands_still()) is not None:
                    return end
        except grpc.RpcError as error:
            if code_of(error) == "NOT_FOUND":
                return _End(self._why_forgotten(), f"{self.where} does not know it any more")
            if code_of(error) == "UNAUTHENTICATED" and is_from_service(error):
                text = f"{self.where} lets this worker of job '{self._job_name}' not go on: {details(error)}"
                return _End(JoinError(text, code="UNAUTHENTICATED"))
            absence.cause = details(error)
            log.debug("the stream to %s broke: %s", self._control.endpoint, absence.cause)
        finally:
            hung_up.set()
            self._beat_now.set()
            call.cancel()
            call.with_traceback(None)  # the error that it raises is the call itself, which this frame refers to
        return None

    def _hear_end(self, ended: messages.JobEnded) -> _End:
        if stop := self.own_stop():
            ended.reason += f"; {stop}"
        error = error_of(ended, self._job_name, self.where)
        if ended.cause == messages.JobEnded.SWITCH_LOST:
            return _End(error, ended.reason)
        self._note_over()
        if ended.cause == messages.JobEnded.WORKER_LEFT:
            await_last_results(self._traffic, lambda pause_s: self._clock.wait(self._leaving, pause_s))
        return _End(error)

    def _why_forgotten(self) -> WiresumError:
        return error_of_forgotten(self._job_name, self.where, self.own_stop(), self.grant.rank, self._address)

    def _heartbeats(self, hung_up: threading.Event) -> Iterator[messages.Heartbeat]:
        """Runs in gRPC's thread. Also the one who notices that the service has fallen silent."""
        silence_s_max = min(SILENCE_S_MAX, self.grant.heartbeat_lost_ms / 1000)
        while not (hung_up.is_set() or self._leaving.is_set()):
            round_newest = NO_ROUND if self._is_done else self._progress()
            if round_newest is None:
                self._hang_up()
                return
            self._beat_now.clear()
            yield messages.Heartbeat(
                member=self._member,
                round_newest=round_newest & 0xFFFFFFFF,
                halted=None if self._is_done else self._moves.halted,
            )
            self._group_watch.look(self._traffic)
            self._clock.wait(self._beat_now, self.grant.heartbeat_interval_ms / 1000)
            if self._awake.now() - self._heard_at > silence_s_max:
                log.info("%s has been silent for %.1f s: a fresh connection is made", self.where, silence_s_max)
                self._hang_up()
                return
        # To end here would tell the service that we close our side, and it would take that for a loss before it has
        # our Leave: the stream ends when it is cancelled.
        self._clock.wait(hung_up, LEAVE_S_MAX + THREAD_END_S_MAX)

    # Moving.

    def _obey(self, event: messages.JobEvent) -> None:
        """What the service tells this worker to do."""
        if event.HasField("halt"):
            self._try_to_move(lambda: self._halt_for(event.halt))
        elif event.HasField("move"):
            self._try_to_move(lambda: self._move_to(event.move))

    def _try_to_move(self, step: Callable[[], None]) -> None:
        """A job that cannot ends for all, unless this worker has ended or left it anyway."""
        try:
            step()
        except SessionClosedError:
            log.debug("this worker leaves, and does not move")
        except Exception as error:
            if self._is_done:
                return
            log.exception("the job cannot move")
            text = f"the job cannot move to another lease: {error}"
            self._abort.give(text)  # before: who hears that it has ended may leave at once
            self._say_ended(WiresumError(f"job '{self._job_name}' has ended: {text}"))
            self.abort(text)

    def _halt_for(self, halt: messages.Halt) -> None:
        if self._moves.halt_for(halt):  # else each answer to a heartbeat would call for the next one
            self._beat_now.set()

    def _move_to(self, move: messages.Move) -> None:
        if self._moves.is_expected(move):
            self._go_on_at(move.grant, move.roles, move.move_number)

    def _go_on_at(self, reply: messages.JoinReply, roles: bytes, move_number: int) -> None:
        """Raises a ValueError for a lease that is not like the one before."""
        grant, before = with_address(reply, self._control), self.grant
        self._member = _member_of(grant)
        grant.members_secret = before.members_secret  # of the job, which has used it
        self._moves.go_on(grant, roles, before, move_number)
        self.grant = grant
        self._group_watch = GroupWatch(grant, self.where, self._traffic())
        self._resuming = None
        self._beat_now.set()
        if self._fallback is not None and self._control.endpoint != self._fallback.target:
            self._control.further = ""
            self._fallback.close()
        endpoint = grant.switch_endpoint
        log.warning("job '%s' goes on at %s, %s:%d", self._job_name, grant.switch_name, endpoint.address, endpoint.port)

    # Looking for another lease.

    def _begin_to_resume(self, end: _End, turns: int) -> WiresumError | None:
        """Returns why it does not."""
        if not self._moves.can_halt or not self._has_to_do():
            self._given_up = True
            return end.error
        if not self._is_done and self._moves.halted is None:
            self._halt_unasked(end.lost)
        halted = self._moves.halted
        if halted is None and not self._is_done:  # the session is being closed
            self._clock.wait(self._leaving, RETRY_PAUSE_S)
            return None
        self._request.resumed.CopyFrom(resumed(self.grant, halted.positions if halted else b"", end.lost))
        with self._lock:
            if self._resuming is None:
                within_s = max(end.left_s, min(RESUME_S, self._config.lost_after_s))
                awake, clock = self._awake.now, self._clock
                self._resuming = Resuming(
                    self._control, self._config, end.error, within_s, self._fallback, self._order, awake, clock
                )
        self._control.further = end.go_to  # the fallback has just proved that it is the one, or has to again
        self._move_on(turns, end.go_to or self._control.endpoints[0])
        return None

    def _halt_unasked(self, why: str) -> None:
        def halt() -> None:
            self._moves.halt_unasked(why)
            self._beat_now.set()

        self._try_to_move(halt)

    def _halt_if_unanswered(self, silence: Silence, why: str) -> None:
        """The service says that the switch is lost, and so it seems. A job that halts can go on at the fallback."""
        if silence.seconds() >= FALLBACK_AFTER_S and silence.unanswered:
            self._halt_unasked(why)

    def _stands_still(self) -> _End | None:
        """The service has a job that has halted, and no lease for it, while the fallback serves."""
        fallback, halted_at = self._fallback, max(self._moves.halted_at, self._began_at)
        if fallback is None or self._moves.halted is None or self._control.endpoint == fallback.target:
            return None
        if self._awake.now() - halted_at < FALLBACK_AFTER_S:
            return None
        fallback.open(self.grant)
        if not fallback.serves():
            return None
        error = SwitchUnreachableError(f"job '{self._job_name}' has ended: {self.where} has no lease for it any more")
        return _End(error, f"{self.where} has no lease for it", fallback.target)

    def _look_for_lease(self, answered: bool, cause: str, turns: int) -> WiresumError | None:
        """At the service that is talked to; `answered`: it does, but does not have the job. Returns why there is none
        at all, or why the job is over."""
        resuming = self._resuming
        assert resuming is not None, "it has no lease"
        if not self._has_to_do():
            return resuming.lost
        if answered and (reply := resuming.ask(self._request, self.grant)) is not None:
            if not self._is_done:
                self._try_to_move(lambda: self._go_on_at(reply, reply.roles, 0))
            else:  # the order came too late for that question, and now there is a service where it is a member
                self._member, self._resuming = _member_of(reply), None
                self._tell_order()
            return None
        if resuming.over is not None:
            self._note_over()
        if (over := resuming.look(self.grant, cause)) is not None:
            self._given_up = True
        elif not self._clock.wait(self._leaving, RETRY_PAUSE_S):
            self._move_on(turns, resuming.next if answered else "")
        return over

    def _stop_resuming(self, why: WiresumError) -> None:
        with self._lock:
            resuming = self._resuming
        if resuming is not None:
            resuming.stop(why)

    def _move_on(self, turns: int, to: str = "") -> bool:
        """To a fresh connection. False: not with what the TLS directory holds now."""
        try:
            self._control.move_on(turns, to)
        except CredentialsError as error:
            log.warning("cannot connect to %s again: %s", self.where, error)
            return False
        return True

    def _hang_up(self) -> None:
        if self._call is not None:
            self._call.cancel()

    # The process's end, and its children.

    def abort_at_exit(self) -> None:
        error = getattr(sys, "last_value", None)
        interactive = hasattr(sys, "ps1")  # there, the last exception is one of many, and not why the process ends
        if error is not None and not interactive:
            self.abort(f"its program ended with {type(error).__name__}: {error}")

    def after_fork_in_child(self) -> None:
        self._inert = self._leaves = True
        self._leaving = threading.Event()  # the lock inside the old one may be held by a thread that is not here
        self._leaving.set()
        self._lock = threading.RLock()
        lifetime.keep_for_ever(self._control, self._call)


def _member_of(grant: messages.JoinReply) -> messages.Member:
    return messages.Member(job=grant.job, worker=grant.worker, token=grant.token, switch_name=grant.switch_name)
