"""Services and workers in virtual time: the real `Membership` of a worker, and the real `Jobs` of a service, with a
network between them that the test can cut. gRPC is a double, whose calls end with gRPC's codes and texts."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from grpc_health.v1 import health_pb2

from wiresum import join as messages
from wiresum.agent.awake import AwakeClock
from wiresum.agent.config import AgentConfig
from wiresum.agent.control import grpc
from wiresum.agent.world import World
from wiresum.controller.driver import JobCounters, Reconciled, SwitchSizes
from wiresum.controller.jobs import outputs, report
from wiresum.controller.jobs.cluster import Switch
from wiresum.controller.jobs.job import Asker, Job, Worker
from wiresum.controller.jobs.limits import Limits
from wiresum.controller.jobs.refusal import Refusal
from wiresum.controller.security.revocation import TELL_S
from wiresum.controller.service.served_jobs import ServedJobs, prove
from wiresum.controller.store import DeposedError, Store
from wiresum_lab.clocks.for_threads import Task, VirtualClock, never
from wiresum_lab.doubles.controller import JobsHarness

LATENCY_S = 0.001
REVOKED = Refusal("UNAUTHENTICATED", "the certificate was revoked: ask whoever issued it for another")
TICK_S = 0.1
STOP_S = 0.5
LIMITS = Limits(heartbeat_interval_ms=100, heartbeat_lost_ms=10_000, connection_lost_ms=1000, reattach_ms=300)
SIZES = SwitchSizes(slots=4096, lanes_max=360, jobs_max=64, threads_max=16)


class Network(VirtualClock):
    """The network of one test: its virtual time, and its services by endpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.services: dict[str, Running] = {}
        self.ports = itertools.count(20_000)
        self.revoked: set[str] = set()
        """Serials of certificates, as all services know them."""

    def revoke(self, certificate: str) -> None:
        self.revoked.add(certificate)
        for running in self.services.values():
            self.start_task(running.turn_out(), "revocation")


class Call(grpc.RpcError):  # type: ignore[misc]
    """A call that streams answers. As in gRPC, the call is itself the error that it ends with."""

    def __init__(self, host: Host, deadline: float) -> None:
        self.host, self._network, self._deadline = host, host.network, deadline
        self.events: deque[Any] = deque()
        self.is_over = False
        self._code = ""
        """The status code with which the call has ended; empty while it is open."""
        self._details = ""
        self._trailers: tuple[tuple[str, str], ...] = ()
        self._callbacks: list[Callable[[], None]] = []

    @property
    def is_answered(self) -> bool:
        return self._code == "OK"

    def lose(self) -> None:
        """Breaks the call's connection; answers that were not read are lost."""
        self.events.clear()
        self.is_over = False
        self.end("UNAVAILABLE", "Socket closed")

    def end(self, code: str = "OK", details: str = "", trailers: Sequence[tuple[str, str]] = ()) -> None:
        """Ends the call. Only the first end counts."""
        if not self.is_over:
            self.is_over, self._code, self._details, self._trailers = True, code, details, tuple(trailers)
            for callback in self._callbacks:
                callback()

    def add_callback(self, callback: Callable[[], None]) -> bool:
        if not self.is_over:
            self._callbacks.append(callback)
        return not self.is_over

    def answer(self, answer: Any) -> None:
        self.events.append(answer)
        self.end()

    def refuse(self, refusal: Refusal) -> None:
        retry = [] if refusal.retry_s is None else [(messages.RETRY_KEY, str(int(1000 * refusal.retry_s)))]
        self.end(refusal.code, refusal.text, [(messages.REFUSED_KEY, "1"), *retry])

    def cancel(self) -> None:
        self.end("CANCELLED", "Locally cancelled by application!")

    def code(self) -> Any:
        return grpc.StatusCode[self._code]

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> Sequence[tuple[str, str]]:
        return self._trailers

    def __iter__(self) -> Call:
        return self

    def _has_news(self) -> bool:
        return self.is_over or (bool(self.events) and not self.host.loses_packets)

    def __next__(self) -> Any:
        if not self._network.wait_for(self._has_news, self._deadline):
            self.end("DEADLINE_EXCEEDED", "Deadline Exceeded")
        if self.events and not self.host.loses_packets and self._code != "CANCELLED":
            self._network.sleep(LATENCY_S)
            return self.events.popleft()
        if self._code == "OK":
            raise StopIteration
        raise self


class Host(World):
    """The host of one worker."""

    clock: Network

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        self.network = network
        self.cut_off = ""
        """How each call to a service fails: "refused", as if the service were gone, "misfit", as if its certificate
        were another authority's, or "silence", as if packets were lost. Empty: calls do not fail."""
        self.calls: list[Call] = []
        self.loses_packets = False
        """Whether open calls hear nothing. When this is cleared, they hear everything, as TCP would resend it."""
        self.loses: Callable[[], str] = str
        """Returns what the next call loses with its connection: "question", "answer", or nothing (empty)."""
        self.certificate = f"serial {next(network.ports)}"

    def awake(self) -> AwakeClock:
        return _NeverStopped(self.network.now)

    def connect(self, endpoint: str, config: AgentConfig, options: Sequence[tuple[str, Any]]) -> Channel:
        return Channel(self, endpoint)

    def listens(self, endpoint: str) -> bool:
        """Also of a process that is stopped, for which the system accepts connections."""
        return not self.cut_off and endpoint in self.network.services

    def cut(self, how: str) -> None:
        self.cut_off = how
        for call in self.calls:
            call.end("UNAVAILABLE", "Socket closed")
        self.calls.clear()


class _NeverStopped(AwakeClock):
    def watch(self) -> None:
        """Does nothing: virtual time moves in jumps, which must not count as stops of the process."""


class Channel:
    """The part of `grpc.Channel` that generated code uses."""

    def __init__(self, host: Host, endpoint: str) -> None:
        self._host, self._endpoint = host, endpoint
        self._closed = False
        self._calls: list[Call] = []

    def close(self) -> None:
        self._closed = True
        for call in self._calls:
            call.end("CANCELLED", "Channel closed!")

    def unary_unary(self, path: str, **_: object) -> Callable[..., Any]:
        def ask(request: Any, timeout: float) -> Any:
            call = self._begin(path, timeout, lambda service, call: service.take_call(path, request, call))
            (answer,) = call
            return answer

        return ask

    def unary_stream(self, path: str, **_: object) -> Callable[..., Call]:
        def ask(request: Any, timeout: float) -> Call:
            sent = type(request).FromString(request.SerializeToString())
            return self._begin(path, timeout, lambda service, call: service.take_join(sent, call))

        return ask

    def stream_stream(self, path: str, **_: object) -> Callable[..., Call]:
        def attend(beats: Iterator[messages.Heartbeat]) -> Call:
            return self._begin(path, math.inf, lambda service, call: service.take_stream(beats, call))

        return attend

    def _begin(self, path: str, timeout: float, serve: Callable[[Running, Call], None]) -> Call:
        if self._closed:
            raise ValueError("Cannot invoke RPC on closed channel!")
        host, network = self._host, self._host.network
        call = Call(host, network.now() + timeout)
        self._calls = [other for other in self._calls if not other.is_over] + [call]
        host.calls = [other for other in host.calls if not other.is_over] + [call]
        network.sleep(LATENCY_S)
        if self._is_silent():
            network.start(functools.partial(self._reach_late, call, serve), "a call that is sent again")
        else:
            self._reach(call, serve)
        return call

    def _reach_late(self, call: Call, serve: Callable[[Running, Call], None]) -> None:
        """Delivers a call when packets pass again, as TCP would by a retransmission."""
        self._host.network.wait_for(lambda: call.is_over or not self._is_silent(), math.inf)
        self._reach(call, serve)

    def _is_silent(self) -> bool:
        service = self._host.network.services.get(self._endpoint)
        return self._host.cut_off == "silence" or (service is not None and service.frozen)

    def _reach(self, call: Call, serve: Callable[[Running, Call], None]) -> None:
        service = self._host.network.services.get(self._endpoint)
        if self._host.cut_off or service is None:
            why = "CERTIFICATE_VERIFY_FAILED" if self._host.cut_off == "misfit" else "Connection refused"
            call.end("UNAVAILABLE", f"failed to connect to all addresses; last error: {self._endpoint}: {why}")
        elif not call.is_over and self._host.certificate in self._host.network.revoked:
            call.refuse(REVOKED)
        elif not call.is_over:
            lost = self._host.loses()
            if lost != "question":
                serve(service, call)
            if lost:
                call.lose()


class Service:
    """A service at one endpoint, which can be started and killed many times.

    `state` is a folder; a service without one forgets its jobs. Among several services with the same folder only one
    serves, as with a controller and its standby.
    """

    def __init__(
        self,
        network: Network,
        limits: Limits = LIMITS,
        state: Path | None = None,
        sizes: SwitchSizes = SIZES,
        switches: Callable[[], Sequence[Switch]] = tuple,
    ) -> None:
        self.sizes, self.switches = sizes, switches
        """Sizes of the only switch; `switches` returns the switches if there are several."""
        self.endpoint = f"127.0.0.1:{next(network.ports)}"
        self.network, self._limits, self._state = network, limits, state
        self._store: Store | None = None

    @property
    def state(self) -> Path | str:
        """The folder of the state; the endpoint if the service has none. Services that share a state have the same
        value."""
        return self._state or self.endpoint

    @property
    def keeps_state(self) -> bool:
        return self._state is not None

    @property
    def running(self) -> Running:
        """The present run of the service."""
        return self.network.services[self.endpoint]

    def start(self) -> Service:
        if self._state is not None:
            for other in list(self.network.services.values()):
                if other.owner.state == self.state and not other.frozen:
                    other.owner.kill()  # a deposed service notices before it answers
            self._store = Store(self._state)
            self._store._database.execute("PRAGMA synchronous = OFF")  # no test cuts the power
            self._store.begin()
        assert self.endpoint not in self.network.services, "its port is taken"
        self.network.services[self.endpoint] = Running(self.network, self, self._limits, self._store)
        return self

    def kill(self) -> None:
        """Kills the service without a word to workers. Idempotent."""
        running = self.network.services.pop(self.endpoint, None)
        if running is not None:
            running.frozen = False
            running.hang_up()
        if self._store is not None:
            self._store.close()
            self._store = None

    def stop(self, *, keep_jobs: bool = False) -> None:
        """Stops the service, and tells all workers. `keep_jobs` keeps jobs for the next run, as a controller with a
        state does."""
        self.running.close(keep_jobs=keep_jobs)
        self.network.sleep(STOP_S)
        self.kill()

    def jobs(self) -> list[Job]:
        """The jobs that have not ended; empty while the service does not run."""
        if self.endpoint not in self.network.services:
            return []
        return [job for job in self.running.jobs.all() if job.ended is None]


class Running(JobsHarness):
    """One run of a service, from its start until it is killed. Switches carry out orders at once."""

    def __init__(self, network: Network, owner: Service, limits: Limits, store: Store | None) -> None:
        self._network, self.owner = network, owner
        self.refuses_with = ""
        """The reason with which the switch refuses to admit a job; empty: it admits all."""
        self.served: ServedJobs | None = None
        """The only jobs that it serves; None: all."""
        self.forgets = True
        """Whether the switch can evict a job."""
        self.frozen = False
        """Whether the process is stopped. Connections to it stay open."""
        self.lag_s = 0.0
        """Seconds that the disk needs for a write."""
        self._unwritten: list[outputs.Output] = []
        self._writes = False
        self._lost: set[str] = set()
        """Switches that have lost their jobs, and have not reported that yet."""
        self._joins: dict[Worker, Call] = {}
        self._streams: dict[Worker, Call] = {}
        self._calls: list[Call] = []
        super().__init__(owner.sizes, limits, switches=owner.switches(), store=store, now=network.now())
        network.start_task(self._tick(), f"service at {owner.endpoint}")
        if network.revoked:
            network.start_task(self.turn_out(), "revocation")

    @property
    def runs(self) -> bool:
        return self._network.services.get(self.owner.endpoint) is self

    def hang_up(self) -> None:
        for call in self._calls:
            call.end("UNAVAILABLE", "Socket closed")

    def close(self, *, keep_jobs: bool) -> None:
        with self._now():
            self.jobs.close("the switch was stopped", self.now, keep_jobs=keep_jobs)

    def lose_switch(self, name: str = "", *, comes_back: bool = True, forgets: bool = True) -> None:
        """A switch (the first one, unless named) is killed, which `forgets` its jobs, or becomes unreachable."""
        name = name or self.switches[0].name
        self._lost |= {name} if forgets else set()
        with self._now():
            self.jobs.switch_changed(name, "no answer", self.now)
        if comes_back:
            self.find_switch(name)

    def find_switch(self, name: str = "") -> None:
        """A switch is reachable again; a switch that was killed has lost its jobs."""
        with self._now():
            self.jobs.switch_changed(name or self.switches[0].name, "", self.now)

    def drain(self, name: str, *, resume: bool) -> None:
        with self._now():
            self.jobs.drain(name, resume=resume)

    def thaw(self) -> None:
        """Continues the process, which ends if another service serves from its state meanwhile."""
        self.frozen = False
        try:
            if self.store is not None and self.runs:
                self.store.check_serving()
        except DeposedError:
            self.owner.kill()

    def turn_out(self) -> Task:
        """Holders of certificates that are revoked: first their jobs are told, and then their calls end."""
        yield self.is_thawed, math.inf
        with self._now():
            if self.runs:
                self.jobs.expel(self._network.revoked.__contains__, self.now)
        yield never, self._network.now() + TELL_S
        for call in self._calls:
            if call.host.certificate in self._network.revoked:
                call.refuse(REVOKED)

    def is_thawed(self) -> bool:
        return not self.frozen

    @contextlib.contextmanager
    def _now(self) -> Iterator[None]:
        self._network.wait_for(self.is_thawed, math.inf)
        self.now = self._network.now()
        yield
        if self.runs:
            self.settle()
        self.done.clear()

    def settle(self) -> None:
        """Carries out all outputs. Writes wait for the disk, and so do all outputs after them."""
        while batch := self.jobs.take_outputs():
            if self._writes or (self.lag_s and any(isinstance(output, outputs.Write) for output in batch)):
                self._unwritten += batch
                if not self._writes:
                    self._writes = True
                    self._network.start_task(self._write(), "disk")
            else:
                self.write(batch)
                self.carry_out(batch)

    def _write(self) -> Task:
        while self._unwritten:
            batch, self._unwritten = self._unwritten, []
            for carry_out in (self.write, self.carry_out):
                yield never, self._network.now() + self.lag_s / 2
                yield self.is_thawed, math.inf
                if not self.runs:
                    return
                self.now = self._network.now()
                carry_out(batch)
            self._unwritten += self.jobs.take_outputs()
        self._writes = False

    def _tick(self) -> Task:
        while self.runs:
            yield never, self._network.now() + TICK_S
            yield self.is_thawed, math.inf
            if self.runs:
                with self._now():
                    self.jobs.tick(self.now)

    # Calls of workers.

    def _begin(self, call: Call) -> None:
        self._calls = [other for other in self._calls if not other.is_over] + [call]

    def take_join(self, request: messages.JoinRequest, call: Call) -> None:
        self._begin(call)
        try:
            if self.served is not None:
                self.served.check(request)
            with self._now():
                worker = self.jobs.ask(request, self.now, Asker(certificate=call.host.certificate))
                number = worker.call
                self._joins[worker] = call
        except Refusal as refusal:
            return call.refuse(refusal)

        def watch() -> Task:
            yield lambda: call.is_over, math.inf
            if self._joins.get(worker) is call:
                del self._joins[worker]
            yield self.is_thawed, math.inf
            if self.runs and not call.is_answered:
                with self._now():
                    self.jobs.hung_up(worker, number, self.now)

        self._network.start_task(watch(), f"Join of {worker}")
        return None

    def take_stream(self, beats: Iterable[messages.Heartbeat], call: Call) -> None:
        self._begin(call)
        self._network.start(functools.partial(self._hear_all, beats, call), "heartbeats")

    def _hear_all(self, beats: Iterable[messages.Heartbeat], call: Call) -> None:
        worker, stream = None, 0
        for beat in beats:
            if call.is_over or not self.runs:
                break
            try:
                with self._now():
                    if worker is None:
                        worker = self.jobs.attend(beat.member, self.now, Asker(certificate=call.host.certificate))
                        stream, self._streams[worker] = worker.stream, call
                        self._network.start_task(self._await_break(worker, stream, call), "stream")
                    halted = beat.halted if beat.HasField("halted") else None
                    self.jobs.beat(worker, beat.round_newest, self.now, halted)
            except Refusal as refusal:
                call.refuse(refusal)
                break
            if not call.events:
                lost = self.jobs.moving.lost(worker.job)
                call.events.append(messages.JobEvent(pulse=messages.Pulse(lost=lost)))

    def _await_break(self, worker: Worker, stream: int, call: Call) -> Task:
        yield lambda: call.is_over, math.inf
        if self._streams.get(worker) is call:
            del self._streams[worker]
        yield self.is_thawed, math.inf
        if self.runs:
            with self._now():
                self.jobs.broken(worker, stream, self.now)

    def take_call(self, path: str, request: Any, call: Call) -> None:
        name = path.rpartition("/")[2]
        answer: Any = None
        try:
            with self._now():
                if name == "Check":
                    serving = health_pb2.HealthCheckResponse
                    usable = self.jobs.cluster.is_usable()
                    answer = serving(status=serving.SERVING if usable else serving.NOT_SERVING)
                elif name == "Prove":
                    answer = messages.Proof(mac=prove(self.served, request))
                elif name == "Leave":
                    self.jobs.leave(request, self.now)
                    answer = messages.LeaveReply()
                elif name == "Abort":
                    self.jobs.abort(request, self.now)
                    answer = messages.AbortReply()
                elif name == "Diagnose":
                    job = self.jobs.find(request).job
                    workers = job.members.world_size
                    counted = JobCounters(
                        packets={},
                        results=0,
                        tensor_last=range(workers),
                        contributions=[5] * workers,
                    )
                    by_name = dict.fromkeys(job.lease.nodes, counted)
                    answer = report.diagnosis(job, by_name, self.now, self.jobs.moving)
        except Refusal as refusal:
            return call.refuse(refusal)

        if self._writes:
            self._network.start_task(self._answer_when_written(call, answer), "answer")
        else:
            call.answer(answer)
        return None

    def _answer_when_written(self, call: Call, answer: Any) -> Task:
        yield lambda: call.is_over or not self._writes, math.inf
        call.answer(answer)

    def answer(self, output: outputs.Output) -> None:
        match output:
            case outputs.Wait(worker, waiting):
                self._say(worker, messages.JoinEvent(waiting=waiting))
            case outputs.Grant(worker, reply):
                self._say(worker, messages.JoinEvent(granted=reply))
            case outputs.RefuseForGood(worker, ended):
                self._say(worker, messages.JoinEvent(ended=ended))
            case outputs.Refuse(worker, refusal) if worker in self._joins:
                self._joins.pop(worker).refuse(refusal)
            case outputs.Tell(worker, ended) if worker in self._streams:
                call = self._streams.pop(worker)
                call.events.append(messages.JobEvent(ended=ended))
                call.end()
                self.jobs.told(worker, self.now)
            case outputs.Halt(worker, event) | outputs.GoOn(worker, event):
                if worker in self._streams:
                    self._streams[worker].events.append(event)
            case outputs.Close(worker) if worker in self._streams:
                self._streams.pop(worker).end()
            case outputs.Evict(name, number) if not self.forgets:
                self.jobs.evict_failed(name, number, self.now)
            case outputs.Admit(name, entry) if why := self.refuses_with or self.jobs.cluster.switches[name].trouble:
                self.jobs.refused(name, entry.job, why, self.now)
            case outputs.Reconcile(name):
                reloaded = name in self._lost
                self._lost.discard(name)
                self.jobs.reconciled(output, Reconciled(reloaded=reloaded), self.now)
            case _:
                super().answer(output)

    def _say(self, worker: Worker, event: messages.JoinEvent) -> None:
        if worker in self._joins:
            call = self._joins[worker]
            call.events.append(event)
            if not event.HasField("waiting"):
                del self._joins[worker]
                call.end()
