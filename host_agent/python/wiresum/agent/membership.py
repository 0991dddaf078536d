"""A worker's membership in a job: the gRPC client of the join service.

Two threads belong to a membership once it attends: ours, which reads what the service says, and one of gRPC's, which
takes our heartbeats and sends them. Both are daemons and both end in `leave`. Nobody has to call that: a process that
ends without it says good-bye on its way out, or, if an exception ended it, tells the others so.

Waiting is bounded everywhere. A switch that was killed refuses connections at once; one whose host has vanished is
noticed by the silence after our heartbeats. Either way there are RECONNECT_S_MAX seconds in which a fresh channel
may find it again, and then the job is over for this worker.

gRPC and fork(): gRPC's own handlers, where they run, stop all gRPC threads before each fork, which takes up to a second
while a stream is open, and does not bring the stream to the child anyway. What a training process forks is a
DataLoader's worker, which needs no gRPC. So the handlers are turned off, unless the user has set
GRPC_ENABLE_FORK_SUPPORT, and in a child a membership is inert. A child may keep the connection open when its parent
is killed; then the heartbeats stop, and the service notices by that.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from wiresum import join as messages
from wiresum.agent.config import AgentConfig
from wiresum.agent.errors import JobAbortedError, JoinError, SwitchUnreachableError, WiresumError, WorkerLostError


def _import_grpc_without_fork_handlers() -> Any:
    """gRPC reads the variable when it starts; it is taken back for the sake of processes that this one starts."""
    unset = "GRPC_ENABLE_FORK_SUPPORT" not in os.environ
    if unset:
        os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    try:
        import grpc
    finally:
        if unset:
            del os.environ["GRPC_ENABLE_FORK_SUPPORT"]
    return grpc


grpc = _import_grpc_without_fork_handlers()

from wiresum.join import join_pb2_grpc  # noqa: E402 - it imports gRPC

log = logging.getLogger(__name__)

WAITING_SAID_AFTER_S = 2.0
RETRY_PAUSE_S = 0.2
CONNECT_S_MAX = 3.0
JOIN_MARGIN_S = 3.0
"""How much longer than the service we wait for the answer, so that the service's text arrives."""
RECONNECT_S_MAX = 3.0
LEAVE_S_MAX = 1.5
THREAD_END_S_MAX = 0.5
DIAGNOSE_S_MAX = 1.0
REASON_CHARACTERS_MAX = 1000

_CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", messages.MESSAGE_BYTES_MAX),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # gRPC's name for how long one attempt to connect may take.
    ("grpc.min_reconnect_backoff_ms", int(1000 * CONNECT_S_MAX)),
    # Data goes to the switch directly, and a proxy for the web is not the way to it.
    ("grpc.enable_http_proxy", 0),
    # Each channel gets a connection of its own, so that a fresh channel means a fresh connection.
    ("grpc.use_local_subchannel_pool", 1),
)


@dataclass(frozen=True)
class Peer:
    rank: int
    host_name: str
    process_id: int

    def __str__(self) -> str:
        return f"rank {self.rank} ({self.host_name}, process {self.process_id})"


@dataclass(frozen=True)
class Endpoint:
    address: str
    """IPv4, dotted."""
    port: int


@dataclass(frozen=True)
class Grant:
    """What the worker was given: the fields of `JoinReply`."""

    job: int
    key: int
    worker: int
    workers: int
    lanes: int
    threads: int
    slots: int
    round_first: int
    switch_endpoint: Endpoint
    peers: tuple[Peer, ...]
    token: str
    heartbeat_interval_ms: int
    heartbeat_lost_ms: int


class Membership:
    """Made by `join`. Any thread may call any method."""

    def __init__(self, config: AgentConfig, job_name: str, channel: Any, reply: messages.JoinReply) -> None:
        self.grant = _grant(config, reply)
        self._switch = f"{config.switch_host}:{config.switch_port}"
        self._job_name = job_name
        self._channel = channel
        self._member = messages.Member(job=reply.job, worker=reply.worker, token=reply.token)
        self._lock = threading.Lock()
        self._leaving = threading.Event()
        self._left = threading.Event()
        self._thread: threading.Thread | None = None
        self._call: Any = None
        self._heard_at = 0.0
        self._events = 0
        self._inert = False
        _alive.add(self)

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
    ) -> Membership:
        """Returns when all workers of the job have asked. `address` and `port` are those of this worker's data
        sockets. Raises a `JoinError`."""
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
            software_version=_software_version(),
            key=config.key,
        )
        channel = _open_channel(config)
        try:
            return cls(config, job_name, channel, _ask_until_answered(channel, config, request))
        except BaseException:
            channel.close()
            raise

    def attend(self, *, on_ended: Callable[[WiresumError], None], progress: Callable[[], int]) -> None:
        """Starts the heartbeats. `progress` gives the newest round of this worker; `on_ended` is called at most once,
        from another thread, when the job has ended for a reason that is not ours."""
        with self._lock:
            if self._thread is not None:
                raise RuntimeError("this membership attends already")
            if self._leaving.is_set():
                return
            self._thread = threading.Thread(
                target=self._attend, args=(on_ended, progress), name="wiresum-membership", daemon=True
            )
            self._thread.start()

    def diagnose(self, tensor: int) -> str:
        """Who lags in the collective with this tag, in a sentence. Does not raise."""
        if self._inert:
            return "this process is a child of the worker, and no member of the job"
        try:
            diagnosis = self._stub().Diagnose(self._member, timeout=DIAGNOSE_S_MAX)
        except (grpc.RpcError, ValueError) as error:  # ValueError: the channel is closed
            return f"the switch at {self._switch} does not answer the question who lags ({_details(error)})"
        return describe(diagnosis, tensor)

    def abort(self, reason: str) -> None:
        """Ends the job for everybody. Does not raise: if the switch is gone, so is the job."""
        if self._inert or self._leaving.is_set():
            return
        try:
            request = messages.AbortRequest(member=self._member, reason=reason[:REASON_CHARACTERS_MAX])
            self._stub().Abort(request, timeout=LEAVE_S_MAX)
        except (grpc.RpcError, ValueError) as error:
            log.debug("the switch was not told that the job was aborted: %s", _details(error))

    def leave(self) -> None:
        """Says good-bye and ends the threads. Idempotent, bounded, does not raise."""
        with self._lock:
            first = not self._leaving.is_set()
            self._leaving.set()
        if self._inert:
            return
        if not first:  # another thread is at it, or was
            if threading.current_thread() is not self._thread:
                self._left.wait(LEAVE_S_MAX + THREAD_END_S_MAX)
            return
        try:
            self._stub().Leave(self._member, timeout=LEAVE_S_MAX)
        except (grpc.RpcError, ValueError) as error:
            log.debug("the switch was not told that this worker leaves: %s", _details(error))
        finally:
            self._hang_up()
            if self._thread is not None and threading.current_thread() is not self._thread:
                self._thread.join(THREAD_END_S_MAX)
            self._channel.close()
            self._left.set()
            _alive.discard(self)

    # Attending.

    def _attend(self, on_ended: Callable[[WiresumError], None], progress: Callable[[], int]) -> None:
        give_up_at = 0.0
        ended: WiresumError | None = None
        connected = True
        while ended is None and not self._leaving.is_set():
            if connected:
                events = self._events
                ended = self._attend_until_broken(progress)
                if self._events != events:  # a stream that never worked is no reason to begin the count again
                    give_up_at = time.monotonic() + RECONNECT_S_MAX
            elif time.monotonic() >= give_up_at:
                ended = SwitchUnreachableError(
                    f"the switch at {self._switch} does not answer, {RECONNECT_S_MAX:.0f} s after the connection to it "
                    f"broke: it was stopped, or the network to it fails. Look at its log, and start the job again"
                )
            if ended is None:
                self._leaving.wait(RETRY_PAUSE_S)
                connected = time.monotonic() < give_up_at and self._reconnect(give_up_at)
        if ended is not None and not self._leaving.is_set():
            on_ended(ended)

    def _attend_until_broken(self, progress: Callable[[], int]) -> WiresumError | None:
        """Why the job has ended; None if only the stream has."""
        self._heard_at = time.monotonic()
        hung_up = threading.Event()
        try:
            call = self._call = self._stub().Attend(self._heartbeats(progress, hung_up))
        except ValueError:  # `leave` has closed the channel
            return None
        try:
            for event in call:
                self._heard_at = time.monotonic()
                self._events += 1
                if event.HasField("ended"):
                    return _error_of(event.ended, self._job_name)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                return SwitchUnreachableError(
                    f"the switch at {self._switch} does not know job '{self._job_name}' any more: it was started anew, "
                    f"or it took this worker for lost while the connection was broken. Start the job again"
                )
            log.debug("the stream to %s broke: %s", self._switch, _details(error))
        finally:
            hung_up.set()
            call.cancel()
        return None

    def _heartbeats(self, progress: Callable[[], int], hung_up: threading.Event) -> Iterator[messages.Heartbeat]:
        """Runs in gRPC's thread. Also the one who notices that the switch has fallen silent."""
        silence_s_max = self.grant.heartbeat_lost_ms / 1000
        while not (hung_up.is_set() or self._leaving.is_set()):
            yield messages.Heartbeat(member=self._member, round_newest=progress() & 0xFFFFFFFF)
            hung_up.wait(self.grant.heartbeat_interval_ms / 1000)
            if time.monotonic() - self._heard_at > silence_s_max:
                log.warning("the switch at %s has been silent for %.1f s", self._switch, silence_s_max)
                self._hang_up()
                return
        # To end here would tell the service that we close our side, and it would take that for a loss before it has
        # our Leave: the stream ends when it is cancelled.
        hung_up.wait(LEAVE_S_MAX + THREAD_END_S_MAX)

    def _reconnect(self, give_up_at: float) -> bool:
        """One attempt with a fresh channel: does the service answer, whatever it says?"""
        channel = _new_channel(self._switch)
        try:
            timeout_s = min(DIAGNOSE_S_MAX, max(RETRY_PAUSE_S, give_up_at - time.monotonic()))
            join_pb2_grpc.JoinServiceStub(channel).Diagnose(self._member, timeout=timeout_s)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.NOT_FOUND:
                channel.close()
                return False
        with self._lock:
            if not self._leaving.is_set():
                channel, self._channel = self._channel, channel
        channel.close()
        return True

    def _hang_up(self) -> None:
        if self._call is not None:
            self._call.cancel()

    def _stub(self) -> join_pb2_grpc.JoinServiceStub:
        return join_pb2_grpc.JoinServiceStub(self._channel)

    # The process's end, and its children.

    def _at_exit(self) -> None:
        error = getattr(sys, "last_value", None)
        interactive = hasattr(sys, "ps1")  # there, the last exception is one of many, and not why the process ends
        if error is not None and not interactive:
            self.abort(f"its program ended with {type(error).__name__}: {error}")
        self.leave()

    def _after_fork_in_child(self) -> None:
        self._inert = True
        self._leaving = threading.Event()  # the lock inside the old one may be held by a thread that is not here
        self._leaving.set()
        self._lock = threading.Lock()
        _inherited.append((self._channel, self._call))


_alive: weakref.WeakSet[Membership] = weakref.WeakSet()
_inherited: list[object] = []
"""What a child must never destroy, since that would need gRPC's threads, which a child does not have."""


def _leave_all() -> None:
    for membership in list(_alive):
        membership._at_exit()


def _make_all_inert() -> None:
    for membership in list(_alive):
        membership._after_fork_in_child()


atexit.register(_leave_all)
os.register_at_fork(after_in_child=_make_all_inert)


# Joining.


def _ask_until_answered(channel: Any, config: AgentConfig, request: messages.JoinRequest) -> messages.JoinReply:
    """Launchers start workers and switch at the same time, so a switch that is not there yet is waited for; and so is
    a job of the same name that is just ending."""
    stub = join_pb2_grpc.JoinServiceStub(channel)
    started_at = time.monotonic()
    said = ""
    while True:
        waited_s = time.monotonic() - started_at
        left_s = config.join_timeout_s - waited_s
        request.timeout_ms = max(1, int(1000 * left_s))
        try:
            return stub.Join(request, timeout=left_s + JOIN_MARGIN_S)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE or left_s <= RETRY_PAUSE_S:
                raise _join_error(error, config, request.job_name) from None
            waiting = _details(error) if _is_from_service(error) else f"waiting for switch at {config.switch}"
            if waited_s >= WAITING_SAID_AFTER_S and waiting != said:
                said = waiting
                log.warning("%s (for up to %.0f s more)", waiting, left_s)
        time.sleep(RETRY_PAUSE_S)


def _is_from_service(error: Any) -> bool:
    """Did the service say so, or did gRPC fail to reach it? The status code is the same for both."""
    return any(key == messages.REFUSED_KEY for key, _ in error.trailing_metadata() or ())


def _join_error(error: Any, config: AgentConfig, job_name: str) -> JoinError:
    code = error.code()
    where = f"the switch at {config.switch_host}:{config.switch_port}"
    if _is_from_service(error):
        text = f"cannot join job '{job_name}' at {where}: {_details(error)}"
    elif code is grpc.StatusCode.UNAVAILABLE:
        text = (
            f"cannot reach {where} after {config.join_timeout_s:g} s ({_details(error)}): start one there with "
            f"`wiresum switch`, or set WIRESUM_SWITCH to the host:port of one that runs"
        )
    elif code is grpc.StatusCode.DEADLINE_EXCEEDED:
        text = f"{where} was reached, but did not answer in {config.join_timeout_s:g} s: look at its log"
    elif code is grpc.StatusCode.UNIMPLEMENTED:
        text = f"what listens at {config.switch} is no Wiresum switch: set WIRESUM_SWITCH to the host:port of one"
    else:
        text = f"cannot join job '{job_name}': talking to {where} failed: {_details(error)}"
    return JoinError(text, code=code.name)


def _details(error: Any) -> str:
    details = getattr(error, "details", None)
    return str(details() if details else error) or type(error).__name__


def _open_channel(config: AgentConfig) -> Any:
    return _new_channel(f"{config.switch_host}:{config.switch_port}")


def _new_channel(target: str) -> Any:
    return grpc.insecure_channel(target, options=_CHANNEL_OPTIONS)


def _grant(config: AgentConfig, reply: messages.JoinReply) -> Grant:
    address = reply.switch_endpoint.address
    if address in ("", "0.0.0.0"):
        address = socket.gethostbyname(config.switch_host)  # worked a moment ago, when we connected
    return Grant(
        job=reply.job,
        key=reply.key,
        worker=reply.worker,
        workers=reply.workers,
        lanes=reply.lanes,
        threads=reply.threads,
        slots=reply.slots,
        round_first=reply.round_first,
        switch_endpoint=Endpoint(address, reply.switch_endpoint.port),
        peers=tuple(Peer(peer.rank, peer.host_name, peer.process_id) for peer in reply.peers),
        token=reply.token,
        heartbeat_interval_ms=reply.heartbeat_interval_ms,
        heartbeat_lost_ms=reply.heartbeat_lost_ms,
    )


def _software_version() -> str:
    try:
        return metadata.version("wiresum")
    except metadata.PackageNotFoundError:
        return ""


# What the service says, in the words of this package.


def _error_of(ended: messages.JobEnded, job_name: str) -> WiresumError:
    text = f"job '{job_name}' has ended: {ended.reason}"
    if ended.cause == messages.JobEnded.WORKER_LOST:
        return WorkerLostError(text, rank=ended.worker.rank, host_name=ended.worker.host_name)
    if ended.cause == messages.JobEnded.SWITCH_LOST:
        return SwitchUnreachableError(text)
    return JobAbortedError(text, reason=ended.reason)


def describe(diagnosis: messages.Diagnosis, tensor: int) -> str:
    """A sentence on who lags in a collective. Its tag has its number in the low 16 bits, a serial number."""
    findings = []
    contributions_most = max((worker.contributions for worker in diagnosis.workers), default=0)
    for worker in diagnosis.workers:
        peer = Peer(worker.peer.rank, worker.peer.host_name, worker.peer.process_id)
        if worker.left:
            findings.append(f"{peer} has left the job")
        elif not worker.contributions:
            findings.append(f"nothing of {peer} has reached the switch: is its UDP traffic let through?")
        elif lag := _lag(worker, tensor, contributions_most):
            findings.append(f"{peer} is {lag} behind; it was alive {worker.heartbeat_age_ms / 1000:.1f} s ago")
    if findings:
        return "; ".join(findings)
    return (
        f"all workers have begun collective number {tensor & 0xFFFF}, so none lags: packets between them and the "
        f"switch are lost, or come very slowly"
    )


def _lag(worker: messages.Diagnosis.Worker, tensor: int, contributions_most: int) -> str:
    """Empty if it does not lag. A switch that does not remember tags still counts packets, and by those a worker that
    has stopped differs from the others, which wait for it."""
    if not worker.HasField("tensor_last"):
        packets = contributions_most - worker.contributions
        return f"{packets} packet{'s' * (packets > 1)}" if packets else ""
    behind = (tensor - worker.tensor_last) % (1 << 16)
    if not 0 < behind < 1 << 15:
        return ""
    return "one collective" if behind == 1 else f"{behind} collectives"
